"""An amount of 0 asks whether a limit is in debt or blocked, takes nothing, and can be corrected afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from ...core.errors import RateLimitExceeded
from ...core.limit import Limit
from ...limiter import Ask
from ..clock import ManualClock
from .fixtures import RPM, TPM, Conformance

SLOTS = Limit.concurrent("slots", 2, ttl=60)
BOTH = [RPM, TPM]


def zero(limiter: Any, *names: str, **how: Any) -> Any:
    return limiter.try_acquire("e", "r", dict.fromkeys(names or ("tpm",), 0), [*BOTH, SLOTS], **how)


class ZeroAmountConformance(Conformance):
    def test_nothing_of_an_empty_bucket_passes(self, limiter: Any) -> None:
        assert zero(limiter)
        limiter.adjust("e", "r", {"tpm": 1500}, BOTH)
        passed = zero(limiter)
        assert passed
        assert passed.lease.consumed == {"tpm": 0}
        assert passed.statuses[0].requested == 0
        assert limiter.available("e", "r", BOTH) == {"rpm": 60, "tpm": 0}
        assert limiter.time_until_available("e", "r", {"tpm": 0}, BOTH) == 0

    def test_nothing_of_a_bucket_in_debt_waits_until_it_is_repaid(self, limiter: Any, clock: ManualClock) -> None:
        limiter.adjust("e", "r", {"tpm": 1500.001}, BOTH)
        refused = zero(limiter, "tpm", "rpm")
        assert not refused
        assert [(one.limit_name, one.exceeded) for one in refused.statuses] == [("tpm", True), ("rpm", False)]
        assert refused.retry_after_seconds == 0.001
        limiter.adjust("e", "r", {"tpm": 99.999}, BOTH)
        assert zero(limiter).retry_after_seconds == limiter.time_until_available("e", "r", {"tpm": 0}, BOTH) == 6
        with pytest.raises(RateLimitExceeded), limiter.acquire("e", "r", {"rpm": 1, "tpm": 0}, BOTH):
            pass
        assert limiter.available("e", "r", BOTH)["rpm"] == 60, "all or nothing"
        clock.advance(5.999)
        assert not zero(limiter)
        clock.advance(0.001)
        assert zero(limiter)

    def test_nothing_of_a_blocked_limit_waits_for_its_end(self, limiter: Any, clock: ManualClock) -> None:
        limiter.penalize("e", "r", seconds=5, limits=[*BOTH, SLOTS])
        for name in ("tpm", "slots"):
            assert zero(limiter, name).retry_after_seconds == 5
        clock.advance(5)
        assert zero(limiter, "tpm", "slots")

    def test_what_was_taken_as_nothing_can_be_corrected(self, limiter: Any) -> None:
        with limiter.acquire("e", "r", {"rpm": 1, "tpm": 0}, BOTH) as lease:
            lease.consume(tpm=0)
            lease.adjust(tpm=700)
            lease.consume(tpm=100)
            lease.release(tpm=50)
            lease.release(tpm=0)
            assert lease.consumed == {"rpm": 1, "tpm": 750}
        assert limiter.available("e", "r", BOTH) == {"rpm": 59, "tpm": 750}
        with pytest.raises(ValueError), limiter.acquire("e", "r", {"tpm": 0}, BOTH) as lease:
            lease.adjust(tpm=700)
            raise ValueError
        assert limiter.available("e", "r", BOTH)["tpm"] == 750

    def test_a_recorded_lease_of_nothing_can_be_corrected_elsewhere(self, limiter: Any) -> None:
        lease_id = zero(limiter, "tpm", record_lease=True, restore_on_expiry=True).lease.detach()
        assert limiter.adjust_lease(lease_id, {"tpm": 700}) == {"tpm": 700}
        assert limiter.release_lease(lease_id, rollback=True) == {"tpm": 0}
        assert limiter.available("e", "r", BOTH)["tpm"] == 1500

    def test_several_dimensions_and_many_asks_may_be_of_nothing(self, limiter: Any) -> None:
        limits = {"v#a": [RPM], "v#b": [TPM]}
        with limiter.acquire_many({"v#a": {"rpm": 1}, "v#b": {"tpm": 0}}, limits=limits) as leases:
            leases["v#b"].adjust(tpm=1600)
        refused = limiter.try_acquire_each([Ask("v", "a", {"rpm": 0}, [RPM]), Ask("v", "b", {"tpm": 0}, [TPM])])
        assert [bool(decision) for decision in refused] == [True, False]
        assert refused[1].retry_after_seconds == 6

    def test_no_slots_are_held_by_a_lease_of_none(self, limiter: Any, clock: ManualClock) -> None:
        held = [limiter.try_acquire("e", "r", {"slots": 1}, [SLOTS]).lease for _ in range(2)]
        none = zero(limiter, "slots").lease
        assert limiter.available("e", "r", [SLOTS]) == {"slots": 0}
        assert none.renew()
        assert not none.lost
        clock.advance(61)
        assert not none.lost, "there was nothing to lose"
        none.consume(slots=2)
        assert not limiter.try_acquire("e", "r", {"slots": 1}, [SLOTS])
        none.release(slots=1)
        none.commit()
        assert limiter.available("e", "r", [SLOTS]) == {"slots": 2}
        for lease in held:
            lease.commit()

    def test_many_of_nothing_at_once_all_pass_or_none(self, limiter: Any) -> None:
        calls = [("try_acquire", ("e", "r", {"tpm": 0}, [TPM]))] * 20
        assert all(limiter.together(calls))
        limiter.adjust("e", "r", {"tpm": 1501}, [TPM])
        assert not any(limiter.together(calls))

    def test_a_reservation_of_nothing_waits_for_a_debt(self, limiter: Any) -> None:
        quick = [Limit.per_second("x", 1000)]
        limiter.adjust("e", "r", {"x": 1005}, quick)
        decision = limiter.try_acquire("e", "r", {"x": 0}, quick, max_wait=1)
        assert decision
        assert decision.lease.consumed == {"x": 0}
