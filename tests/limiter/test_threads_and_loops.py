"""Threads that outlive the main thread, and a limiter in more than one event loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from headgate import Limit, RateLimiter, SyncRateLimiter, ValidationError

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


@pytest.mark.parametrize("coalesce", [True, False])
def test_limiter_closed_while_cancelled_tasks_give_back_waits_for_them(tmp_path: Path, coalesce: bool) -> None:
    """`gather` ends with the first task that is cancelled, and the `async with` of the limiter with it."""
    url, limits = f"sqlite:///{tmp_path}/limits.db", [Limit.per_day("n", 10)]

    async def main() -> None:
        async with RateLimiter(url, coalesce=coalesce) as limiter:
            in_body = asyncio.Semaphore(0)
            settle, delay = limiter.engine.store.settle, iter(range(1, 100))

            async def slower_each_time(*arguments: Any) -> Any:
                await asyncio.sleep(0.02 * next(delay))
                return await settle(*arguments)

            async def hold() -> None:
                async with limiter.acquire("e", "r", {"n": 1}, limits):
                    in_body.release()
                    await asyncio.sleep(60)

            held = asyncio.gather(*(hold() for _ in range(5)))
            for _ in range(5):
                await in_body.acquire()
            limiter.engine._ask = slower_each_time
            held.cancel()
            with pytest.raises(asyncio.CancelledError):
                await held

    asyncio.run(main())
    with SyncRateLimiter(url) as limiter:
        assert limiter.available("e", "r", limits) == {"n": 10}
