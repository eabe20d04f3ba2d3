"""Whoever purges a namespace is killed in the middle: it can be recovered with what is left, and it can be purged."""

from __future__ import annotations

import subprocess
import sys

import pytest
from fault_helpers import LONG_ENOUGH, Place

from headgate import Limit, NamespaceNotFound, SyncRateLimiter

RPM = Limit.per_minute("rpm", 60)

# After each step it says so, and waits.
PURGER = """
import sys
from headgate import SyncRateLimiter
url, name = sys.argv[1:]
with SyncRateLimiter(url, namespace="admin", store_timeout=30) as limiter:
    purge = limiter.engine.store.purge
    def step(namespace):
        print("purging", flush=True)
        sys.stdin.readline()
        removed = purge(namespace)
        print(removed, flush=True)
        sys.stdin.readline()
        return removed
    limiter.engine.store.purge = step
    limiter.purge_namespace(name, confirm=name)
"""


def purge_and_die(place: Place, *, after: int) -> None:
    """After so many lines that it says."""
    command = [sys.executable, "-c", PURGER, *place]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    for said in range(after):
        assert process.stdout.readline()
        if said < after - 1:
            process.stdin.write("\n")
            process.stdin.flush()
    process.kill()
    process.communicate()


@pytest.mark.parametrize("after", [1, 2])
def test_it_can_be_recovered_and_it_can_be_purged(place: Place, after: int) -> None:
    with SyncRateLimiter(place.url, namespace="admin", store_timeout=LONG_ENOUGH) as admin:
        with place.limiter() as limiter:
            limiter.set_system_defaults([RPM])
            for number in range(20):
                limiter.adjust(f"e{number}", "api", {"rpm": 1})
        admin.delete_namespace(place.namespace)
        purge_and_die(place, after=after)
        assert admin.get_namespace(place.namespace).status == "purging"
        with place.limiter() as late, pytest.raises(NamespaceNotFound, match="recover"):
            late.available("e0", "api")

        admin.recover_namespace(place.namespace)
        with place.limiter() as again:
            left = again.available("e0", "api", [RPM])["rpm"]
            assert left >= 59  # what is gone is as if it had never been
            if after == 1:
                assert again.get_system_defaults() == [RPM]

        admin.delete_namespace(place.namespace)
        purge_and_die(place, after=after)
        admin.purge_namespace(place.namespace, confirm=place.namespace)
        assert place.namespace not in {one.name for one in admin.list_namespaces(limit=1000)}
        assert place.namespace not in admin.list_orphans()
        with place.limiter() as anew:
            assert anew.get_system_defaults() == []
            assert anew.get_usage("e0") == []
