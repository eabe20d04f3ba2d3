"""Four processes bring one quota over its thresholds: each is told of once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from load_helpers import PATIENCE_SECONDS

from headgate import Limit, SyncRateLimiter

TAKES = 10_000
KINDS = ("tasks", "threads", "tasks", "threads")


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'load.db'}"
    if request.param == "redis":
        return str(request.getfixturevalue("own_redis_server").url)
    url = f"{request.getfixturevalue('postgres_server').url}?schema=alerts"
    with SyncRateLimiter(url, store_timeout=30) as limiter:
        limiter.setup()
    return url


def test_each_threshold_is_told_once_by_all_processes_together(url: str) -> None:
    limits = [
        Limit.quota("usd", TAKES, "year", alert_at=(0.25, 0.5, 0.9, 1.0)),
        Limit("n", TAKES, 1, 366 * 86_400, alert_at=(0.1, 1.0)),
    ]
    with SyncRateLimiter(url, store_timeout=30) as limiter:
        limiter.set_limits("hot", limits, "api")
        worker = Path(__file__).with_name("alerts_worker.py")
        arguments = [[sys.executable, worker, url, str(TAKES // len(KINDS)), kind] for kind in KINDS]
        processes = [subprocess.Popen(one, stdout=subprocess.PIPE, text=True) for one in arguments]
        told = [line for process in processes for line in process.communicate(timeout=PATIENCE_SECONDS)[0].splitlines()]
        assert [process.returncode for process in processes] == [0] * len(KINDS)
        assert sorted(told) == ["n 0.1", "n 1.0", "usd 0.25", "usd 0.5", "usd 0.9", "usd 1.0"]
        assert limiter.available("hot", "api") == {"usd": 0, "n": 0}
        assert len(limiter.list_alerts()) == len(told)
