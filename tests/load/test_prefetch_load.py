"""Three processes that prefetch, on two entities below one: the promise of prefetch, on every store."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from bisect import bisect_left
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest
from load_helpers import PATIENCE_SECONDS, missing, without_refill
from prefetch_worker import CHILDREN, CONSUME, LONG_ENOUGH, PARENT, PREFETCH

from headgate import Limit, SyncRateLimiter

KINDS = ("tasks", "threads", "tasks")
RATE = Limit.custom("rate", 200, 701, 1)
POOL = without_refill("rate", 600)
PLENTY, LEDGER = without_refill("rate", 10**9), without_refill("ledger", 10**9)
SLACK_MS = 2  # a store counts in milliseconds


@pytest.fixture(params=["sqlite", "redis", "postgres", "dynamodb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'load.db'}"
    if request.param == "redis":
        return str(request.getfixturevalue("own_redis_server").url)
    if request.param == "postgres":
        url = f"{request.getfixturevalue('postgres_server').url}?schema=load_{uuid4().hex[:12]}"
    else:
        request.getfixturevalue("aws_credentials")
        url = request.getfixturevalue("ministack").url(f"prefetch-{uuid4().hex}")
    with SyncRateLimiter(url, store_timeout=30) as limiter:
        limiter.setup()
    return url


class Asked(NamedTuple):
    began: int
    ended: int
    outcome: str
    process: int


def hammer(url: str, folder: Path, limit: Limit, *, kill: bool) -> list[Asked]:
    """What all processes did, in the order in which it began."""
    with SyncRateLimiter(url, store_timeout=LONG_ENOUGH) as limiter:
        limiter.set_resource_defaults("api", [PLENTY, LEDGER])
        limiter.create_entity(PARENT)
        limiter.set_limits(PARENT, [limit, LEDGER], "api")
        for child in CHILDREN:
            limiter.create_entity(child, parent_id=PARENT, cascade=True)
    worker = Path(__file__).with_name("prefetch_worker.py")
    journals = [folder / f"{number}.journal" for number in range(len(KINDS))]
    processes = [
        subprocess.Popen([sys.executable, worker, url, journal, kind], stdin=subprocess.PIPE)
        for journal, kind in zip(journals, KINDS)
    ]
    try:
        until = time.monotonic() + PATIENCE_SECONDS
        while not all(journal.exists() for journal in journals):
            assert time.monotonic() < until, "not all of them have started"
            time.sleep(0.02)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        while not all(journal.stat().st_size for journal in journals):
            assert time.monotonic() < until, "not all of them have begun"
            time.sleep(0.02)
        time.sleep(0.4)
        if kill:
            processes[0].send_signal(signal.SIGKILL)
        time.sleep(0.4)
        for process in processes[kill:]:
            assert process.stdin is not None
            process.stdin.close()
        assert not any(process.wait(PATIENCE_SECONDS) for process in processes[kill:])
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    lines = [(*line.split(), number) for number, one in enumerate(journals) for line in one.read_text().splitlines()]
    return sorted(Asked(int(began), int(ended), str(outcome), number) for began, ended, outcome, number in lines)


def test_no_interval_has_more_than_is_promised(url: str, tmp_path: Path) -> None:
    asked = hammer(url, tmp_path, RATE, kill=True)
    passed = [one for one in asked if one.outcome != "refused"]
    for start, first in enumerate(passed):
        for count, until in enumerate(sorted(one.ended for one in passed[start:]), 1):
            ms = (until - first.began) / 1e6 + PREFETCH * 1000 + SLACK_MS
            assert count * 1000 <= RATE.capacity_milli + RATE.refill_milli * ms / RATE.period_ms
    check_refusals(asked)


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "closed"])
def test_what_passed_was_counted_once_and_what_is_left_over_comes_back(url: str, tmp_path: Path, kill: bool) -> None:
    asked = hammer(url, tmp_path, POOL, kill=kill)
    passed = sum(one.outcome != "refused" for one in asked)
    with SyncRateLimiter(url, store_timeout=LONG_ENOUGH) as limiter:
        rate = missing(limiter, PARENT, POOL)
        above, *below = (missing(limiter, entity, LEDGER) for entity in (PARENT, *CHILDREN))
    counted = [rate, above / CONSUME["ledger"], sum(below) / CONSUME["ledger"]]
    if kill:
        # What it had taken ahead is lost, and what it was about to write down.
        assert passed <= min(counted)
        assert max(counted) - min(counted) <= 1
    else:
        # What comes back late is less by a millitoken, which is a whole token to `missing`.
        assert all(passed <= one <= passed + 1 for one in counted)
    check_refusals(asked)


def check_refusals(asked: list[Asked]) -> None:
    """A process that was refused held nothing: what it decides itself after that, it has taken after that."""
    assert any(one.outcome == "local" for one in asked)
    for process in range(len(KINDS)):
        mine = [one for one in asked if one.process == process]
        taken = sorted(one.ended for one in mine if one.outcome == "store")
        refused = sorted((one for one in mine if one.outcome == "refused"), key=lambda one: one.ended)
        ends = [one.ended for one in refused]
        for one in mine:
            if one.outcome == "local" and (before := bisect_left(ends, one.began)):
                refusal = refused[before - 1]
                took = bisect_left(taken, refusal.began)
                assert any(ended <= one.ended for ended in taken[took : took + 1]), (refusal, one)
