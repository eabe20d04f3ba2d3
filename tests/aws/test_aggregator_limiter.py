"""Usage of what leases have consumed, by the limiter itself."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from aggregator_helpers import Play

from headgate import Limit, RateLimitExceeded, SyncRateLimiter
from headgate.aws.aggregator import Split
from headgate.aws.aggregator.hot_buckets import split_plan
from headgate.core.units import MILLI
from headgate.stores.dynamodb import keys
from headgate.stores.dynamodb.items import attribute
from headgate.stores.dynamodb.namespaces import Namespaces

LIMITS = [Limit.per_minute("rpm", 60), Limit.per_day("tokens.per-day", 1_000_000)]


def namespace_id(play: Play, name: str) -> str:
    found = play.host.run(Namespaces(play.host.deliverer).find_plan(name))
    assert found is not None
    return found


@pytest.mark.parametrize("shards", [1, 4])
def test_usage_is_what_the_leases_consumed(play: Play, shards: int) -> None:
    """Refusals, corrections, rollbacks, and a parent that is charged with its children; by threads and processes."""
    with SyncRateLimiter(play.url, namespace="team", store_timeout=20.0) as limiter:
        limiter.setup()
        limiter.create_entity("org")
        for child in ("ann", "bob"):
            limiter.create_entity(child, parent_id="org", cascade=True)
        limiter.set_resource_defaults("api", LIMITS)
        ns = namespace_id(play, "team")
        if shards > 1:
            with limiter.acquire("org", "api", {"rpm": 1}):
                count = 1
            while count < shards:
                for shard in range(count):
                    play.host.run(
                        split_plan(play.host.deliverer, Split(keys.pk_bucket(ns, "org", "api", shard), count))
                    )
                count *= 2

    def work(seed: int) -> Counter[tuple[str, str]]:
        dice = random.Random(seed)
        total: Counter[tuple[str, str]] = Counter()
        child = ("ann", "bob")[seed % 2]
        with SyncRateLimiter(play.url, namespace="team", store_timeout=20.0) as limiter:
            for _ in range(12):
                try:
                    with limiter.acquire(child, "api", {"rpm": 1, "tokens.per-day": dice.randint(1, 500)}) as lease:
                        lease.adjust(**{"tokens.per-day": dice.choice([-0.5, 250, 1000])})
                        if dice.random() < 0.3:
                            raise KeyError
                except (KeyError, RateLimitExceeded):
                    continue
                for limit, tokens in lease.consumed.items():
                    total[child, limit] += round(tokens * MILLI)
        return total

    if shards > 1:
        last = {"PK": attribute(keys.pk_bucket(ns, "org", "api", shards - 1)), "SK": attribute(keys.STATE)}
        assert play.client.get_item(TableName=play.table, Key=last)["Item"]["shard_count"] == attribute(shards)
    with ThreadPoolExecutor(4) as threads:
        consumed = sum(threads.map(work, range(4)), Counter[tuple[str, str]]())
    play.follow_once()
    for window in ("hour", "day", "month"):
        parent = play.used(window, ns, "org")
        for limit in ("rpm", "tokens.per-day"):
            children = [consumed[child, limit] for child in ("ann", "bob")]
            assert [play.used(window, ns, child)[limit] for child in ("ann", "bob")] == children
            own = MILLI if shards > 1 and limit == "rpm" else 0
            assert parent[limit] == sum(children) + own
