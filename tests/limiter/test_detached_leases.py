"""Detached leases that many would end at once. What they took comes back once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate import LeaseExpired, Limit, RateLimiter, SyncRateLimiter
from headgate.limiter.leases.detached import adjust_lease_plan, release_lease_plan
from headgate.plan import GetRecords, Settle, WriteRecords, run
from headgate.testing import ManualClock

LIMITS = [Limit.per_day("spend", 1000), Limit.concurrent("parallel", 2)]


@pytest.fixture(params=["memory://", "sqlite:///{}/limits.db"], ids=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


async def detached(limiter: RateLimiter) -> str:
    wish = {"spend": 100, "parallel": 1}
    decision = await limiter.try_acquire("e", "r", wish, LIMITS, record_lease=True, restore_on_expiry=True)
    assert decision.lease is not None
    return decision.lease.detach()


def test_many_end_it_at_once(url: str) -> None:
    async def main() -> None:
        async with RateLimiter(url, clock=ManualClock()) as limiter:
            await limiter.adjust("e", "r", {"spend": 500}, LIMITS)
            for ends in ({"rollback": True}, {"amounts": {"spend": 100}}):
                lease_id = await detached(limiter)
                tries = [limiter.release_lease(lease_id, **ends) for _ in range(5)]  # type: ignore[arg-type]
                ended = await asyncio.gather(*tries, return_exceptions=True)
                assert sum(isinstance(each, dict) for each in ended) == 1
                assert (await limiter.available("e", "r", LIMITS))["spend"] == 500

    asyncio.run(main())


def test_many_correct_it_at_once(url: str) -> None:
    async def main() -> None:
        async with RateLimiter(url, clock=ManualClock()) as limiter:
            await limiter.adjust("e", "r", {"spend": 500}, LIMITS)
            lease_id = await detached(limiter)
            amounts = [7, -3, 11, -5, 20]
            await asyncio.gather(*[limiter.adjust_lease(lease_id, {"spend": amount}) for amount in amounts])
            assert (await limiter.available("e", "r", LIMITS))["spend"] == 400 - sum(amounts)
            assert await limiter.release_lease(lease_id, {"parallel": 1}) == {"spend": 130, "parallel": 0}
            await limiter.release_lease(lease_id, rollback=True)
            assert await limiter.available("e", "r", LIMITS) == {"spend": 500, "parallel": 2}

    asyncio.run(main())


class Dying:
    """Performs a plan's calls, and dies before the one that it is told."""

    def __init__(self, limiter: Any, dies_at: Callable[[Any], bool]) -> None:
        self._limiter = limiter
        self._dies_at = dies_at

    def perform(self, call: Any) -> Any:
        if self._dies_at(call):
            raise KeyboardInterrupt
        return self._limiter.engine.perform(call)


@pytest.mark.parametrize("dies_at", [GetRecords, WriteRecords, Settle], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("what", ["more", "less", "part", "all"])
def test_whoever_dies_on_the_way_leaves_no_more_than_there_was(what: str, dies_at: type) -> None:
    """Nothing comes back twice: at worst it is gone until it is refilled."""
    clock = ManualClock()
    with SyncRateLimiter("memory://", clock=clock) as limiter:
        limiter.adjust("e", "r", {"spend": 500}, LIMITS)
        decision = limiter.try_acquire("e", "r", {"spend": 100}, LIMITS, record_lease=True, restore_on_expiry=True)
        assert decision.lease is not None
        lease_id = decision.lease.detach()
        plan = {
            "more": lambda: adjust_lease_plan(limiter.engine, lease_id, {"spend": 50}),
            "less": lambda: adjust_lease_plan(limiter.engine, lease_id, {"spend": -50}),
            "part": lambda: release_lease_plan(limiter.engine, lease_id, {"spend": 50}),
            "all": lambda: release_lease_plan(limiter.engine, lease_id, rollback=True),
        }[what]()
        try:
            run(plan, Dying(limiter, lambda call: isinstance(call, dies_at)).perform)
        except KeyboardInterrupt:
            pass
        clock.advance(60)
        limiter.reconcile()
        assert limiter.available("e", "r", LIMITS)["spend"] <= 500
        with pytest.raises(LeaseExpired):
            limiter.release_lease(lease_id, rollback=True)
        assert limiter.available("e", "r", LIMITS)["spend"] <= 500
