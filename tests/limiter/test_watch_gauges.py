"""How many wait, and how many leases hold something, at the moment."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from limiter_helpers import eventually, in_thread, soon

from headgate import Limit, RateLimiter, SyncRateLimiter
from headgate.testing import ManualClock
from headgate.testing.driver import DRIVERS

RPM = [Limit.per_minute("rpm", 10)]
ONE = [Limit.concurrent("parallel", 1), *RPM]


def test_those_who_wait_for_slots() -> None:
    with SyncRateLimiter("memory://") as limiter:
        lease = limiter.try_acquire("e", "r", {"parallel": 1}, ONE).lease
        assert lease is not None
        assert (limiter.waiters, limiter.leases_held) == (0, 1)

        def wait() -> Any:
            return limiter.try_acquire("e", "r", {"parallel": 1}, ONE, max_wait=60).lease

        with in_thread(wait) as found:
            assert eventually(lambda: limiter.waiters == 1)
            assert limiter.leases_held == 1
            lease.commit()
        (second,) = found
        assert (limiter.waiters, limiter.leases_held) == (0, 1)
        second.commit()
        assert limiter.leases_held == 0


def test_those_who_wait_for_tokens() -> None:
    clock = ManualClock()
    with SyncRateLimiter("memory://", clock=clock) as limiter:
        limiter.adjust("e", "r", {"rpm": 20}, RPM)
        with in_thread(lambda: limiter.try_acquire("e", "r", {"rpm": 1}, RPM, max_wait=3600)) as found:
            assert eventually(lambda: limiter.waiters == 1)
            assert eventually(lambda: clock.advance(600) or found)  # whenever it fell asleep
        assert limiter.waiters == 0


def test_one_who_gave_up_waits_no_more() -> None:
    async def scenario() -> None:
        async with RateLimiter("memory://", clock=ManualClock()) as limiter:
            await limiter.adjust("e", "r", {"rpm": 20}, RPM)
            waiting = asyncio.create_task(limiter.try_acquire("e", "r", {"rpm": 1}, RPM, max_wait=3600))
            assert await soon(lambda: limiter.waiters == 1)
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
            assert limiter.waiters == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_leases_held_counts_slots_and_recorded_leases_only(kind: str) -> None:
    limiter = DRIVERS[kind]("memory://")
    plain = limiter.try_acquire("e", "r", {"rpm": 1}, ONE).lease
    slot = limiter.try_acquire("e", "r", {"parallel": 1}, ONE).lease
    recorded = limiter.try_acquire("e", "r", {"rpm": 1}, ONE, record_lease=True).lease
    assert limiter.leases_held == 2
    slot.commit()
    recorded.rollback()
    plain.commit()
    assert limiter.leases_held == 0
    limiter.shut()
