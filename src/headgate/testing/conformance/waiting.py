"""`max_wait`: reservations, first come, first served, cancelled without a trace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ...core.errors import RateLimitExceeded, ValidationError
from ...core.limit import Limit
from ...limiter import RateLimiter
from ..clock import ManualClock
from ..driver import AsyncDriver
from .fixtures import RPM, Conformance

QUICK = Limit.custom("x", 10, 1000, 1)


class WaitingConformance(Conformance):
    def test_it_waits_its_turn_in_real_time(self, limiter: Any) -> None:
        assert limiter.try_acquire("e", "r", {"x": 10}, [QUICK])
        with limiter.acquire("e", "r", {"x": 5}, [QUICK], max_wait=1) as lease:
            assert lease.consumed == {"x": 5}

    def test_if_and_only_if_it_matures_in_time(self, open_limiter: Callable[..., Any]) -> None:
        waits: list[float] = []
        limiter = open_limiter(clock=NotingClock(waits))
        limiter.adjust("e", "r", {"rpm": 60}, [RPM])
        refused = limiter.try_acquire("e", "r", {"rpm": 60}, [RPM], max_wait=59.999)
        assert not refused
        assert refused.retry_after_seconds == 60.0
        assert limiter.available("e", "r", [RPM]) == {"rpm": 0}
        assert limiter.try_acquire("e", "r", {"rpm": 60}, [RPM], max_wait=60)
        assert waits == [60.0]
        assert limiter.available("e", "r", [RPM]) == {"rpm": -60}

    def test_never_is_refused_at_once(self, limiter: Any) -> None:
        with pytest.raises(RateLimitExceeded), limiter.acquire("e", "r", {"rpm": 61}, [RPM], max_wait=86_400):
            pass

    def test_a_bad_max_wait_is_refused_and_takes_nothing(self, limiter: Any) -> None:
        for wait in (-1, float("nan"), float("inf"), "1", None, 10**12):
            with pytest.raises(ValidationError, match="max_wait"):
                limiter.try_acquire("e", "r", {"rpm": 1}, [RPM], max_wait=wait)
        assert limiter.available("e", "r", [RPM]) == {"rpm": 60}

    def test_an_interrupted_wait_gives_back_what_it_reserved(self, open_limiter: Callable[..., Any]) -> None:
        limiter = open_limiter(clock=InterruptedClock())
        limiter.adjust("e", "r", {"rpm": 50}, [RPM])
        with pytest.raises(KeyboardInterrupt), limiter.acquire("e", "r", {"rpm": 30}, [RPM], max_wait=60):
            pytest.fail("the body ran")
        assert limiter.available("e", "r", [RPM]) == {"rpm": 10}

    def test_whoever_reserved_first_is_served_first(self, open_limiter: Callable[..., Any]) -> None:
        waits: list[float] = []
        limiters = [open_limiter(clock=NotingClock(waits)) for _ in range(3)]
        limiters[0].adjust("e", "r", {"rpm": 60}, [RPM])
        for limiter in limiters:
            assert limiter.try_acquire("e", "r", {"rpm": 10}, [RPM], max_wait=60)
        assert waits == [10.0, 20.0, 30.0]
        assert not limiters[0].try_acquire("e", "r", {"rpm": 1}, [RPM]), "nobody overtakes"
        assert limiters[0].available("e", "r", [RPM]) == {"rpm": -30}

    def test_a_cancelled_task_leaves_no_trace(self, url: str, clock: ManualClock) -> None:
        async def scenario(limiter: RateLimiter) -> None:
            await limiter.adjust("e", "r", {"rpm": 50}, [RPM])
            first = asyncio.create_task(limiter.try_acquire("e", "r", {"rpm": 20}, [RPM], max_wait=60))
            second = asyncio.create_task(limiter.try_acquire("e", "r", {"rpm": 20}, [RPM], max_wait=60))
            await _reserved(limiter, -30)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert await limiter.available("e", "r", [RPM]) == {"rpm": -10}
            clock.advance(30)
            assert await second
            assert await limiter.available("e", "r", [RPM]) == {"rpm": 20}

        drive(url, clock, scenario, **self.settings)

    def test_a_timeout_around_a_wait(self, url: str, clock: ManualClock) -> None:
        async def scenario(limiter: RateLimiter) -> None:
            await limiter.adjust("e", "r", {"rpm": 60}, [RPM])
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(limiter.try_acquire("e", "r", {"rpm": 30}, [RPM], max_wait=60), 0.05)
            assert await limiter.available("e", "r", [RPM]) == {"rpm": 0}

        drive(url, clock, scenario, **self.settings)


class InterruptedClock(ManualClock):
    def sleep(self, seconds: float) -> None:
        raise KeyboardInterrupt

    async def asleep(self, seconds: float) -> None:
        raise KeyboardInterrupt


class NotingClock(ManualClock):
    """Does not wait, but remembers for how long it should have."""

    def __init__(self, waits: list[float]) -> None:
        super().__init__()
        self._waits = waits

    def sleep(self, seconds: float) -> None:
        self._waits.append(seconds)

    async def asleep(self, seconds: float) -> None:
        self._waits.append(seconds)


async def _reserved(limiter: RateLimiter, at_most: int) -> None:
    for _ in range(1000):
        await asyncio.sleep(0)
        if (await limiter.available("e", "r", [RPM]))["rpm"] <= at_most:
            return
    pytest.fail("the reservations did not arrive")


def drive(
    url: str, clock: ManualClock | None, scenario: Callable[[RateLimiter], Coroutine[Any, Any, None]], **settings: Any
) -> None:
    """What only tasks can do: be cancelled, start in order."""
    driver = AsyncDriver(url, clock=clock, **settings)
    try:
        driver.run(scenario)
    finally:
        driver.shut()
