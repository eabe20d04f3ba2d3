"""Three processes that prefetch on one key, one of them killed: the promise of prefetch, on every store."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest
from load_helpers import PATIENCE_SECONDS, without_refill
from prefetch_worker import LONG_ENOUGH, PREFETCH

from headgate import Limit, SyncRateLimiter

KINDS = ("tasks", "threads", "tasks")
RATE = Limit.custom("rate", 200, 701, 1)
POOL = without_refill("rate", 600)
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


def hammer(url: str, folder: Path, limit: Limit) -> list[tuple[int, int, str]]:
    """What all processes did, in the order in which it began."""
    with SyncRateLimiter(url, store_timeout=LONG_ENOUGH) as limiter:
        limiter.set_limits("hot", [limit], "api")
    worker = Path(__file__).with_name("prefetch_worker.py")
    journals = [folder / f"{number}.journal" for number in range(len(KINDS))]
    processes = [
        subprocess.Popen([sys.executable, worker, url, journal, kind], stdin=subprocess.PIPE)
        for journal, kind in zip(journals, KINDS)
    ]
    try:
        until = time.monotonic() + PATIENCE_SECONDS
        while not all(journal.exists() and journal.stat().st_size for journal in journals):
            assert time.monotonic() < until, "not all of them have begun"
            time.sleep(0.02)
        time.sleep(0.4)
        processes[0].send_signal(signal.SIGKILL)
        time.sleep(0.4)
        for process in processes[1:]:
            assert process.stdin is not None
            process.stdin.close()
        assert [process.wait(PATIENCE_SECONDS) for process in processes[1:]] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    lines = [line.split() for journal in journals for line in journal.read_text().splitlines()]
    return sorted((int(began), int(ended), outcome) for began, ended, outcome in lines)


def test_no_interval_has_more_than_is_promised(url: str, tmp_path: Path) -> None:
    asked = hammer(url, tmp_path, RATE)
    passed = [(began, ended) for began, ended, outcome in asked if outcome != "refused"]
    assert any(outcome == "local" for _, _, outcome in asked)
    for start, (since, _) in enumerate(passed):
        for count, until in enumerate(sorted(ended for _, ended in passed[start:]), 1):
            ms = (until - since) / 1e6 + PREFETCH * 1000 + SLACK_MS
            assert count * 1000 <= RATE.capacity_milli + RATE.refill_milli * ms / RATE.period_ms


def test_what_passed_was_counted_once_and_what_is_left_over_comes_back(url: str, tmp_path: Path) -> None:
    asked = hammer(url, tmp_path, POOL)
    passed = sum(outcome != "refused" for _, _, outcome in asked)
    assert any(outcome == "local" for _, _, outcome in asked)
    with SyncRateLimiter(url, store_timeout=LONG_ENOUGH) as limiter:
        left = limiter.available("hot", "api")["rate"]
    # One was killed: what it had taken ahead is lost, and what it was about to write down.
    assert passed + left <= POOL.capacity
