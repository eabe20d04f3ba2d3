"""Detached leases: whoever knows the id may renew, correct and end them, from anywhere, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ...core.errors import LeaseExpired, ValidationError
from ...core.limit import Limit
from ..clock import ManualClock
from .fixtures import Conformance

LIMITS = [Limit.per_day("spend", 1000), Limit.concurrent("parallel", 2, ttl=30)]


def detached(limiter: Any, *, restore: bool = False, limits: Any = LIMITS) -> str:
    consume = {"spend": 100, "parallel": 1}
    decision = limiter.try_acquire("e", "r", consume, limits, record_lease=True, restore_on_expiry=restore)
    return str(decision.lease.detach())


def left(limiter: Any) -> tuple[int, int]:
    available = limiter.available("e", "r", LIMITS)
    return available["spend"], available["parallel"]


class DetachedLeaseConformance(Conformance):
    @pytest.fixture(params=[False, b"a key"], ids=["plain", "hashed"])
    def near(self, open_limiter: Callable[..., Any], request: pytest.FixtureRequest) -> Any:
        limiter = open_limiter(hash_entity_ids=request.param)
        limiter.adjust("e", "r", {"spend": 500}, LIMITS)
        return limiter

    @pytest.fixture
    def afar(self, near: Any, open_limiter: Callable[..., Any], request: pytest.FixtureRequest) -> Any:
        """Another limiter, which has never heard of the entity."""
        return open_limiter(hash_entity_ids=request.node.callspec.params["near"])

    def test_any_limiter_can_adjust_and_release_a_detached_lease(self, near: Any, afar: Any) -> None:
        lease_id = detached(near)
        assert left(near) == (400, 1)
        assert afar.adjust_lease(lease_id, {"spend": 50}) == {"spend": 150, "parallel": 1}
        assert afar.adjust_lease(lease_id, {"spend": -20}) == {"spend": 130, "parallel": 1}
        assert left(near) == (370, 1)
        assert afar.release_lease(lease_id, {"spend": 30}) == {"spend": 100, "parallel": 1}
        assert left(near) == (400, 1)
        assert afar.release_lease(lease_id) == {"spend": 100, "parallel": 0}
        assert left(near) == (400, 2)

    def test_detached_lease_ends_once_and_then_every_call_raises(self, near: Any, afar: Any) -> None:
        lease_id = detached(near)
        assert afar.release_lease(lease_id, rollback=True) == {"spend": 0, "parallel": 0}
        for method, *arguments in (
            ("release_lease",),
            ("release_lease", {"spend": 1}),
            ("adjust_lease", {"spend": 1}),
            ("renew_lease",),
        ):
            with pytest.raises(LeaseExpired, match=lease_id):
                getattr(near, str(method))(lease_id, *arguments)
        assert left(near) == (500, 2)

    def test_detached_lease_lives_as_long_as_it_is_renewed(self, near: Any, afar: Any, clock: ManualClock) -> None:
        lease_id = detached(near, restore=True)
        for _ in range(3):
            clock.advance(29)
            assert afar.renew_lease(lease_id) == 30
            assert near.reconcile().leases == 0
        clock.advance(30)
        with pytest.raises(LeaseExpired):
            afar.renew_lease(lease_id)
        clock.advance(60)  # what is recorded of it lives for a minute from when its holder was last heard of
        assert near.reconcile().restored == 1
        with pytest.raises(LeaseExpired):
            afar.release_lease(lease_id, rollback=True)
        assert left(near) == (502, 2), "refilled meanwhile, and given back once"

    def test_reconcile_gives_back_what_a_detached_lease_had_in_the_end(
        self, near: Any, afar: Any, clock: ManualClock
    ) -> None:
        lease_id = detached(near, restore=True)
        afar.adjust_lease(lease_id, {"spend": 60})
        afar.release_lease(lease_id, {"spend": 10})
        assert left(near) == (350, 1)
        clock.advance(60)
        assert near.reconcile().restored == 1
        assert left(near) == (500, 2)

    def test_detached_lease_under_stored_limits_uses_their_current_values(self, near: Any, afar: Any) -> None:
        near.set_limits("e", LIMITS, "r")
        lease_id = detached(near, limits=None)
        near.set_limits("e", [Limit.per_day("spend", 2000), LIMITS[1]], "r")
        afar.invalidate_config_cache()
        afar.release_lease(lease_id, rollback=True)
        assert near.available("e", "r") == {"spend": 1500, "parallel": 2}

    def test_invalid_calls_on_a_detached_lease_are_refused_and_change_nothing(self, near: Any, afar: Any) -> None:
        lease_id = detached(near)
        wrong: list[tuple[str, Any]] = [
            ("adjust_lease", [lease_id, {"parallel": 1}]),
            ("adjust_lease", [lease_id, {"other": 1}]),
            ("adjust_lease", [lease_id, {}]),
            ("release_lease", [lease_id, {"spend": 101}]),
            ("release_lease", [lease_id, {"spend": -1}]),
            ("release_lease", ["e#r"]),
            ("renew_lease", [None]),
        ]
        for method, arguments in wrong:
            with pytest.raises(ValidationError):
                getattr(afar, method)(*arguments)
        with pytest.raises(ValidationError, match="record_lease"):
            near.try_acquire("e", "r", {"spend": 1}, LIMITS).lease.detach()
        assert left(near) == (399, 1), "of which one is of the lease that could not be detached"
        lease = near.try_acquire("e", "r", {"spend": 1}, LIMITS, record_lease=True).lease
        lease.detach()
        with pytest.raises(LeaseExpired, match="detached"):
            lease.commit()
