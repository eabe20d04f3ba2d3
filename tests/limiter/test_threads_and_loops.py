"""Threads that outlive the main thread, and a limiter in more than one event loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headgate import Limit, RateLimiter, ValidationError

LIMITS = [Limit.per_minute("rpm", 100), Limit.concurrent("parallel", 5)]

OUTLIVES = """
import asyncio, sys, threading
from headgate import Limit, RateLimiter, SyncRateLimiter
limits = [Limit.per_minute("rpm", 100), Limit.concurrent("parallel", 5)]
url, kind, main = sys.argv[1], sys.argv[2], threading.main_thread()

async def tasks():
    async with RateLimiter(url) as limiter:
        async with limiter.acquire("e", "r", {"rpm": 1, "parallel": 1}, limits):
            return await limiter.available("e", "r", limits)

def threads():
    with SyncRateLimiter(url) as limiter:
        with limiter.acquire("e", "r", {"rpm": 1, "parallel": 1}, limits):
            return limiter.available("e", "r", limits)

def work():
    main.join()
    print(asyncio.run(tasks()) if kind == "async" else threads(), flush=True)

threading.Thread(target=work).start()
"""


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_thread_that_outlives_the_main_thread_can_acquire(tmp_path: Path, kind: str, scheme: str) -> None:
    url = "memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/t.db"
    run = subprocess.run(
        [sys.executable, "-c", OUTLIVES, url, kind], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.stdout == "{'rpm': 99, 'parallel': 4}\n", run.stderr


def test_second_event_loop_at_the_same_time_is_refused_with_advice(tmp_path: Path) -> None:
    limiter = RateLimiter(f"sqlite:///{tmp_path}/l.db")
    inside, leave = threading.Event(), threading.Event()

    async def first() -> None:
        assert await limiter.try_acquire("e", "r", {"rpm": 1}, LIMITS)
        inside.set()
        await asyncio.to_thread(leave.wait, 60)
        assert await limiter.try_acquire("e", "r", {"rpm": 1}, LIMITS)

    thread = threading.Thread(target=lambda: asyncio.run(first()))
    thread.start()
    assert inside.wait(60)
    for call in (limiter.ping, lambda: limiter.try_acquire("e", "r", {"rpm": 1}, LIMITS)):
        with pytest.raises(ValidationError, match="for each event loop"):
            asyncio.run(call())
    leave.set()
    thread.join()

    async def afterwards() -> dict[str, int]:
        async with limiter:
            return await limiter.available("e", "r", LIMITS)

    assert asyncio.run(afterwards()) == {"rpm": 98, "parallel": 5}
