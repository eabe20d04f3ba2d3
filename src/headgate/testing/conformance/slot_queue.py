"""Waiting for slots, which cannot be reserved: in line, woken by whoever gives back, gone without a trace."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ...core.errors import RateLimitExceeded
from ...core.limit import Limit
from ...limiter import RateLimiter, SyncRateLimiter
from ..clock import ManualClock
from .fixtures import RPM, Conformance
from .waiting import InterruptedClock, NotingClock, drive

ONE = [Limit.concurrent("parallel", 1)]
BOTH = [RPM, *ONE]
WISH: Any = ("e", "r", {"parallel": 1}, ONE)
DEADLINE = 30.0


def in_line(limiter: Any) -> int:
    return int(limiter.waiters)


class SlotQueueConformance(Conformance):
    def test_in_time_or_not_at_all(self, open_limiter: Callable[..., Any]) -> None:
        limiter = open_limiter(clock=None)
        with limiter.acquire(*WISH):
            with pytest.raises(RateLimitExceeded, match="parallel"), limiter.acquire(*WISH, max_wait=0.05):
                pytest.fail("the body ran")
            assert not limiter.try_acquire(*WISH, max_wait=0.01)
        assert limiter.available("e", "r", ONE) == {"parallel": 1}
        with limiter.acquire(*WISH, max_wait=0.01):
            pass

    def test_threads_get_it_in_the_order_in_which_they_came(self, url: str) -> None:
        limiter = SyncRateLimiter(url, **self.settings)
        order: list[int] = []

        def wait(number: int) -> None:
            with limiter.acquire(*WISH, max_wait=DEADLINE):
                order.append(number)

        threads = [threading.Thread(target=wait, args=(number,)) for number in range(3)]
        with limiter.acquire(*WISH):
            for number, thread in enumerate(threads, 1):
                thread.start()
                until = time.monotonic() + DEADLINE
                while in_line(limiter) < number and time.monotonic() < until:
                    time.sleep(0.001)
        for thread in threads:
            thread.join()
        assert order == [0, 1, 2]
        assert in_line(limiter) == 0
        assert limiter.available("e", "r", ONE) == {"parallel": 1}
        limiter.close()

    def test_tasks_get_it_in_the_order_in_which_they_came(self, url: str) -> None:
        order: list[int] = []

        async def wait(limiter: RateLimiter, number: int) -> None:
            async with limiter.acquire(*WISH, max_wait=DEADLINE):
                order.append(number)

        async def scenario(limiter: RateLimiter) -> None:
            tasks = []
            async with limiter.acquire(*WISH):
                for number in range(3):
                    tasks.append(asyncio.create_task(wait(limiter, number)))
                    await _until(lambda: in_line(limiter) == len(tasks))
            await asyncio.gather(*tasks)
            assert order == [0, 1, 2]
            assert await limiter.available("e", "r", ONE) == {"parallel": 1}

        drive(url, None, scenario, **self.settings)

    def test_who_leaves_the_line_holds_up_nobody(self, url: str) -> None:
        async def scenario(limiter: RateLimiter) -> None:
            async with limiter.acquire(*WISH):
                tasks = []
                for number in range(1, 4):
                    tasks.append(asyncio.create_task(limiter.try_acquire(*WISH, max_wait=DEADLINE)))
                    await _until(lambda number=number: in_line(limiter) == number)  # type: ignore[misc]
                first, second, third = tasks
                first.cancel()
                second.cancel()
                await asyncio.wait([first, second])
                assert in_line(limiter) == 1
            decision = await third
            assert decision.lease is not None
            assert await limiter.available("e", "r", ONE) == {"parallel": 0}, "the cancelled have none"
            await decision.lease.commit()

        drive(url, None, scenario, **self.settings)

    def test_cancelled_at_any_moment_no_slot_stays_taken(self, url: str, clock: ManualClock) -> None:
        async def hold(limiter: RateLimiter) -> None:
            async with limiter.acquire("e", "r", {"rpm": 1, "parallel": 1}, BOTH, max_wait=3600):
                await asyncio.sleep(3600)

        async def scenario(limiter: RateLimiter) -> None:
            await limiter.available("e", "r", BOTH)
            for steps in range(24):
                tasks = [asyncio.create_task(hold(limiter)) for _ in range(3)]
                for _ in range(steps):
                    await asyncio.sleep(0.0005 if steps % 4 == 3 else 0)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                assert await limiter.available("e", "r", BOTH) == {"rpm": 60, "parallel": 1}, steps
            assert in_line(limiter) == 0

        drive(url, clock, scenario, **self.settings)

    def test_cancelled_while_it_is_called(self, url: str) -> None:
        async def scenario(limiter: RateLimiter) -> None:
            for steps in range(12):
                async with limiter.acquire(*WISH):
                    task = asyncio.create_task(limiter.try_acquire(*WISH, max_wait=DEADLINE))
                    await _until(lambda: in_line(limiter) == 1)
                    await asyncio.sleep(0.005)
                for _ in range(steps):
                    await asyncio.sleep(0)
                if task.cancel():
                    await asyncio.wait([task])
                    assert task.cancelled(), steps
                else:
                    lease = task.result().lease
                    assert lease is not None
                    await lease.commit()
                assert await limiter.available("e", "r", ONE) == {"parallel": 1}, steps

        drive(url, None, scenario, **self.settings)

    def test_tokens_from_the_future_and_a_slot_of_today(self, open_limiter: Callable[..., Any]) -> None:
        waits: list[float] = []
        limiter = open_limiter(clock=NotingClock(waits))
        limiter.adjust("e", "r", {"rpm": 60}, BOTH)
        with limiter.acquire("e", "r", {"rpm": 10, "parallel": 1}, BOTH, max_wait=60):
            assert waits == [10.0]
            assert limiter.available("e", "r", BOTH) == {"rpm": -10, "parallel": 0}
        assert limiter.available("e", "r", BOTH) == {"rpm": -10, "parallel": 1}
        assert not limiter.try_acquire("e", "r", {"rpm": 60, "parallel": 1}, BOTH, max_wait=60)

    def test_interrupted_while_waiting_for_the_tokens(self, open_limiter: Callable[..., Any]) -> None:
        limiter = open_limiter(clock=InterruptedClock())
        limiter.adjust("e", "r", {"rpm": 50}, BOTH)
        for record in (False, True):
            how: Any = {"max_wait": 60, "record_lease": record, "restore_on_expiry": record}
            with pytest.raises(KeyboardInterrupt), limiter.acquire("e", "r", {"rpm": 30, "parallel": 1}, BOTH, **how):
                pytest.fail("the body ran")
            assert limiter.available("e", "r", BOTH) == {"rpm": 10, "parallel": 1}


async def _until(there: Callable[[], bool]) -> None:
    for _ in range(30_000):
        if there():
            return
        await asyncio.sleep(0.001)
    pytest.fail("they did not get in line")
