"""`headgate reconcile`."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

pytest.importorskip("click")

from cli_helpers import COMMAND, Cli

from headgate import Limit

COUNTS = ["buckets", "leases", "records", "restored"]


def test_reconcile_lets_go_of_what_the_dead_hold_and_of_what_is_not_needed(inside: Cli) -> None:
    with inside.limiter() as limiter:
        limiter.try_acquire("acme", "llm", {"rpm": 1}, [Limit.custom("rpm", 1, 1, 0.001)])
        limiter.try_acquire("acme", "gpu", {"parallel": 1}, [Limit.concurrent("parallel", 1, ttl=0.001)])
    found = inside.json("reconcile")
    assert sorted(found) == COUNTS
    assert found["leases"] == 1
    assert inside("reconcile").stdout == "swept: leases 0, restored 0, buckets 0, records 0\n"


def test_reconcile_again_and_again_until_interrupted(cli: Cli) -> None:
    process = subprocess.Popen(
        [*COMMAND, "reconcile", "--every", "1", "--json"],
        env=cli.environment | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert [sorted(json.loads(line)) for line in lines] == [COUNTS] * 2
