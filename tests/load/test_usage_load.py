"""Processes consume, correct and give back all at once while hours turn: the sum is right, to the token."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path
from uuid import uuid4

import pytest

from headgate import SyncRateLimiter

PROCESSES = 3
STEPS = {"sqlite": 60, "redis": 80, "redis cluster": 40, "postgres": 60, "dynamodb": 12}


@pytest.fixture(params=STEPS)
def store(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def url(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if store == "sqlite":
        return f"sqlite:///{tmp_path / 'usage.db'}"
    if store == "dynamodb":
        request.getfixturevalue("aws_credentials")
        url: str = request.getfixturevalue("ministack").url(f"usage-{uuid4().hex}")
        with SyncRateLimiter(url, store_timeout=30) as limiter:
            limiter.setup()
        return url
    server = {"postgres": "postgres_server", "redis": "redis_server", "redis cluster": "redis_cluster"}[store]
    return str(request.getfixturevalue(server).url)


def test_hours_add_up_to_what_was_consumed(store: str, url: str) -> None:
    namespace = uuid4().hex[:12]
    start_ms = time.time_ns() // 10**6
    program = str(Path(__file__).with_name("usage_worker.py"))
    workers = [
        subprocess.Popen(
            [sys.executable, program, url, namespace, str(seed), str(STEPS[store]), str(start_ms)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(PROCESSES)
    ]
    consumed: Counter[str] = Counter()
    for worker in workers:
        out, _ = worker.communicate(timeout=100)
        assert worker.returncode == 0
        consumed.update(json.loads(out))
    start = datetime.fromtimestamp(start_ms / 1000, timezone.utc)
    told: Counter[str] = Counter()
    windows = set()
    with SyncRateLimiter(url, namespace=namespace, store_timeout=30) as limiter:
        for entity_id in ("hot", "a", "b"):
            for window in limiter.get_usage(entity_id, start=start, end=start + timedelta(days=1000)):
                windows.add(window.start)
                told.update({name: int(Fraction(str(amount)) * 1000) for name, amount in window.consumed.items()})
    assert told == consumed
    assert len(windows) > 1, "no hour turned: this proves nothing"
