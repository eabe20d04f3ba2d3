"""Recorded leases: what a caller took who died is found, and given back once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ...core.errors import LeaseExpired, ValidationError
from ...core.limit import Limit
from ...limiter import RateLimiter
from ..clock import ManualClock
from .fixtures import Conformance
from .waiting import drive

SPEND = Limit.per_day("spend", 1000)
PARALLEL = Limit.concurrent("parallel", 2)
LIMITS = [SPEND, PARALLEL]


def take(limiter: Any, amount: int = 100, *, restore: bool = True, **consume: int) -> Any:
    """A lease of which nothing is heard for a minute after its holder has died."""
    return limiter.try_acquire(
        "e", "r", {"spend": amount, **consume}, LIMITS, record_lease=True, restore_on_expiry=restore
    ).lease


def left(limiter: Any) -> int:
    return int(limiter.available("e", "r", LIMITS)["spend"])


def used(limiter: Any) -> int:
    summary = limiter.get_usage_summary("e", "r").get("quick")
    return summary.total if summary else 0


class RecordedLeaseConformance(Conformance):
    @pytest.fixture
    def half_spent(self, limiter: Any) -> Any:
        """What is given back too often shows."""
        limiter.adjust("e", "r", {"spend": 500}, LIMITS)
        return limiter

    @pytest.mark.parametrize("restore", [True, False])
    def test_what_the_dead_took_comes_back_once_if_it_is_to(
        self, half_spent: Any, clock: ManualClock, restore: bool
    ) -> None:
        _dead = take(half_spent, restore=restore)
        assert left(half_spent) == 400
        clock.advance(59.999)
        assert half_spent.reconcile().leases == 0, "it may still live"
        clock.advance(0.001)
        found = half_spent.reconcile()
        assert (found.leases, found.restored) == (1, int(restore))
        assert left(half_spent) == (500 if restore else 400)
        again = half_spent.reconcile()
        assert (again.leases, again.restored) == (0, 0)
        assert left(half_spent) == (500 if restore else 400)

    @pytest.mark.parametrize("forgotten", [True, False])
    def test_what_comes_back_was_not_used_though_the_bucket_is_full_again(
        self, limiter: Any, clock: ManualClock, forgotten: bool
    ) -> None:
        limiter.set_system_defaults([Limit.per_second("quick", 10)])
        given = [Limit.per_second("quick", 20)]
        how = {"record_lease": True, "restore_on_expiry": True}
        stored, other = (limiter.try_acquire("e", "r", {"quick": 5}, limits, **how).lease for limits in (None, given))
        if forgotten:
            limiter.reset("e", "r")
        clock.advance(60)
        assert limiter.reconcile().restored == 2
        assert used(limiter) == 0
        for lease in (stored, other):
            lease.commit()
        assert used(limiter) == 10, "thought dead, they ended all the same"

    def test_reconcile_never_fills_a_bucket_above_capacity(self, half_spent: Any, clock: ManualClock) -> None:
        _dead = take(half_spent, 300)
        clock.advance(86_400 * 0.75)
        assert half_spent.reconcile().restored == 1
        assert left(half_spent) == 1000

    def test_the_living_are_left_alone(self, half_spent: Any, clock: ManualClock) -> None:
        lease = take(half_spent)
        for _ in range(3):
            clock.advance(59)
            assert lease.renew()
            assert half_spent.reconcile().restored == 0
        assert left(half_spent) == 402, "refilled meanwhile, and no more"
        lease.commit()
        clock.advance(60)
        assert half_spent.reconcile().leases == 0
        assert left(half_spent) == 402

    @pytest.mark.parametrize(("end", "now"), [("commit", 400), ("rollback", 500)])
    def test_who_was_thought_dead_and_ends_all_the_same(
        self, half_spent: Any, clock: ManualClock, end: str, now: int
    ) -> None:
        """What it keeps is charged again; what it gives back was given back already."""
        lease = take(half_spent, parallel=1)
        clock.advance(60)
        assert half_spent.reconcile().restored == 1
        assert left(half_spent) == 500
        getattr(lease, end)()
        assert half_spent.available("e", "r", LIMITS) == {"spend": now, "parallel": 2}
        assert half_spent.reconcile().restored == 0
        assert left(half_spent) == now

    @pytest.mark.parametrize(
        ("method", "amounts"),
        [("adjust", {"spend": -40}), ("adjust", {"spend": 40}), ("release", {"spend": 100}), ("consume", {"spend": 7})],
    )
    def test_restored_lease_raises_lease_expired_and_moves_nothing(
        self, half_spent: Any, clock: ManualClock, method: str, amounts: dict[str, int]
    ) -> None:
        lease = take(half_spent, parallel=1)
        clock.advance(60)
        assert half_spent.reconcile().restored == 1
        for _ in range(2):
            with pytest.raises(LeaseExpired, match="reconcile"):
                getattr(lease, method)(**amounts)
            assert half_spent.available("e", "r", LIMITS) == {"spend": 500, "parallel": 2}
        assert lease.lost
        assert lease.consumed == {"spend": 0, "parallel": 0}
        with pytest.raises(LeaseExpired, match="reconcile"):
            lease.commit()
        assert half_spent.reconcile().restored == 0
        assert left(half_spent) == 500

    @pytest.mark.parametrize("amount", [-40, 40])
    def test_restored_detached_lease_raises_lease_expired_and_moves_nothing(
        self, half_spent: Any, clock: ManualClock, amount: int
    ) -> None:
        lease_id = take(half_spent).detach()
        clock.advance(60)
        assert half_spent.reconcile().restored == 1
        with pytest.raises(LeaseExpired):
            half_spent.adjust_lease(lease_id, {"spend": amount})
        assert left(half_spent) == 500

    @pytest.mark.parametrize(
        ("corrections", "now"), [([-40], 500), ([40], 500), ([40, -60], 500), ([-100], 500), ([-40, -30, 20], 500)]
    )
    def test_corrected_then_dead_lease_is_restored_exactly(
        self, half_spent: Any, clock: ManualClock, corrections: list[int], now: int
    ) -> None:
        """Late but not yet restored, it may still correct itself: what the record says then is what comes back."""
        lease = take(half_spent)
        clock.advance(60)
        for amount in corrections:
            lease.adjust(spend=amount)
        assert left(half_spent) == 400 - sum(corrections)
        half_spent.reconcile()
        assert left(half_spent) == now

    def test_late_but_before_anybody_looked(self, half_spent: Any, clock: ManualClock) -> None:
        kept, dropped = take(half_spent), take(half_spent)
        clock.advance(60)
        kept.commit()
        dropped.rollback()
        assert half_spent.reconcile().restored == 0
        assert left(half_spent) == 400

    def test_as_much_as_it_had_in_the_end_on_every_level(self, half_spent: Any, clock: ManualClock) -> None:
        half_spent.set_system_defaults(LIMITS)
        half_spent.create_entity("top")
        half_spent.create_entity("below", parent_id="top", cascade=True)
        how: dict[str, Any] = {"record_lease": True, "restore_on_expiry": True}
        lease = half_spent.try_acquire("below", "r", {"spend": 100, "parallel": 1}, **how).lease
        lease.consume(spend=300)
        lease.adjust(spend=50)
        lease.release(spend=250)
        half_spent.adjust("below", "r", {"spend": 500})
        assert half_spent.available("top", "r") == {"spend": 300, "parallel": 1}
        clock.advance(60)
        found = half_spent.reconcile()
        assert (found.leases >= 1, found.restored) == (True, 1)
        for entity_id in ("below", "top"):
            assert half_spent.available(entity_id, "r") == {"spend": 500, "parallel": 2}

    def test_many_who_look_restore_it_once(self, half_spent: Any, clock: ManualClock) -> None:
        _dead = [take(half_spent, 10) for _ in range(5)]
        assert left(half_spent) == 450
        clock.advance(60)
        found = half_spent.together([("reconcile", ())] * 4)
        assert sum(each.restored for each in found) == 5
        assert left(half_spent) == 500

    def test_only_what_is_recorded_can_be_restored(self, half_spent: Any) -> None:
        with pytest.raises(ValidationError, match="record_lease"):
            half_spent.try_acquire("e", "r", {"spend": 1}, LIMITS, restore_on_expiry=True)
        with pytest.raises(ValidationError, match="lease_ttl"):
            half_spent.try_acquire("e", "r", {"spend": 1}, LIMITS, record_lease=True, lease_ttl=0)
        refused = half_spent.try_acquire("e", "r", {"spend": 501}, LIMITS, record_lease=True)
        assert [status.limit_name for status in refused.statuses] == ["spend"]
        assert left(half_spent) == 500

    @pytest.mark.parametrize("pause", [0, 0.0005])
    def test_recorded_acquire_cancelled_at_any_moment_leaves_nothing(self, url: str, pause: float) -> None:
        """All of it comes back at once, and nobody is thought dead."""

        async def work(limiter: RateLimiter) -> None:
            how: dict[str, Any] = {"record_lease": True, "restore_on_expiry": True}
            async with limiter.acquire("e", "r", {"spend": 100, "parallel": 1}, LIMITS, **how) as lease:
                await lease.consume(spend=50)
                raise KeyError

        async def scenario(limiter: RateLimiter) -> None:
            for steps in range(16):
                task = asyncio.create_task(work(limiter))
                for _ in range(steps):
                    await asyncio.sleep(pause)
                cancelled = task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() == cancelled
                assert await limiter.available("e", "r", LIMITS) == {"spend": 1000, "parallel": 2}, steps
                assert (await limiter.reconcile()).leases == 0

        drive(url, None, scenario, **self.settings)
