"""Concurrent limits: slots that are held by leases, come back with them, and run out with their holders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ...core.errors import LeaseExpired, RateLimitExceeded, ValidationError
from ...core.limit import Limit
from ..clock import ManualClock
from .fixtures import RPM, Conformance

PARALLEL = Limit.concurrent("parallel", 2, ttl=60)
BOTH = [RPM, PARALLEL]


def free(limiter: Any, entity_id: str = "e", limits: list[Limit] | None = None) -> int:
    return int(limiter.available(entity_id, "r", limits or [PARALLEL])["parallel"])


def take(limiter: Any, slots: int = 1, entity_id: str = "e", limits: list[Limit] | None = None, **how: Any) -> Any:
    """A lease that holds slots, or None. Whoever does not end it has died."""
    return limiter.try_acquire(entity_id, "r", {"parallel": slots}, limits or [PARALLEL], **how).lease


class SlotConformance(Conformance):
    def test_a_slot_comes_back_when_the_body_ends_however_it_ends(self, limiter: Any) -> None:
        consume = {"rpm": 10, "parallel": 1}
        with limiter.acquire("e", "r", consume, BOTH) as lease:
            assert limiter.available("e", "r", BOTH) == {"rpm": 50, "parallel": 1}
            assert lease.consumed == consume
            assert not lease.lost
        assert limiter.available("e", "r", BOTH) == {"rpm": 50, "parallel": 2}
        with pytest.raises(ValueError), limiter.acquire("e", "r", consume, BOTH):
            raise ValueError
        assert limiter.available("e", "r", BOTH) == {"rpm": 50, "parallel": 2}
        with pytest.raises(ValueError), limiter.acquire("e", "r", consume, BOTH, on_error="keep"):
            raise ValueError
        assert limiter.available("e", "r", BOTH) == {"rpm": 40, "parallel": 2}, "the call was made, and is over"

    def test_slots_and_tokens_all_or_nothing(self, limiter: Any) -> None:
        with limiter.acquire("e", "r", {"rpm": 20, "parallel": 2}, BOTH):
            refused = limiter.try_acquire("e", "r", {"rpm": 1, "parallel": 1}, BOTH)
            assert [(status.limit_name, status.exceeded) for status in refused.statuses] == [
                ("rpm", False),
                ("parallel", True),
            ]
            assert limiter.available("e", "r", BOTH) == {"rpm": 40, "parallel": 0}
        refused = limiter.try_acquire("e", "r", {"rpm": 41, "parallel": 1}, BOTH)
        assert [status.limit_name for status in refused.statuses if status.exceeded] == ["rpm"]
        assert limiter.available("e", "r", BOTH) == {"rpm": 40, "parallel": 2}

    def test_a_lease_holds_any_number_of_them(self, limiter: Any) -> None:
        limits = [RPM, Limit.concurrent("parallel", 5)]
        with limiter.acquire("e", "r", {"rpm": 1}, limits) as lease:
            lease.consume(parallel=2)
            lease.consume(parallel=1, rpm=1)
            with pytest.raises(RateLimitExceeded):
                lease.consume(parallel=3, rpm=1)
            assert lease.consumed == {"rpm": 2, "parallel": 3}
            lease.release(parallel=1)
            assert limiter.available("e", "r", limits) == {"rpm": 58, "parallel": 3}
            with pytest.raises(ValidationError, match="the lease holds 2"):
                lease.release(parallel=3)
            lease.release(parallel=2)
            assert lease.renew(), "what was given back is not lost"
            lease.consume(parallel=5)
            assert lease.renew()
        assert limiter.available("e", "r", limits) == {"rpm": 58, "parallel": 5}

    def test_slots_are_whole_and_cannot_be_adjusted(self, limiter: Any) -> None:
        with limiter.acquire("e", "r", {"rpm": 1, "parallel": 1}, BOTH) as lease:
            calls: list[Callable[[], Any]] = [
                lambda: take(limiter, slots=0.5),  # type: ignore[arg-type]
                lambda: lease.consume(parallel=0.5),
                lambda: lease.adjust(rpm=1, parallel=1),
                lambda: lease.adjust(parallel=-1),
                lambda: limiter.adjust("e", "r", {"rpm": 1, "parallel": -1}, BOTH),
            ]
            for call in calls:
                with pytest.raises(ValidationError, match=r"'parallel'.*slots"):
                    call()
            assert limiter.available("e", "r", BOTH) == {"rpm": 59, "parallel": 1}

    def test_a_refusal_says_when_the_first_would_run_out(self, limiter: Any, clock: ManualClock) -> None:
        _first = take(limiter)
        clock.advance(10)
        _second = take(limiter)
        with pytest.raises(RateLimitExceeded, match=r"free when a lease ends, or in 50\.000 s") as caught:
            limiter.acquire("e", "r", {"parallel": 1}, [PARALLEL]).__enter__()
        (status,) = caught.value.statuses
        assert (status.available, status.requested, status.limit) == (0, 1, PARALLEL)
        assert caught.value.retry_after_seconds == 50.0
        assert take(limiter, 2) is None
        assert limiter.time_until_available("e", "r", {"parallel": 2}, [PARALLEL]) == 60.0
        assert limiter.time_until_available("e", "r", {"parallel": 3}, [PARALLEL]) is None
        with pytest.raises(RateLimitExceeded, match="never"):
            limiter.acquire("e", "r", {"parallel": 3}, [PARALLEL], max_wait=60).__enter__()

    def test_the_slots_of_the_dead_are_free_at_their_ttl_and_not_before(self, limiter: Any, clock: ManualClock) -> None:
        _dead = take(limiter, 2)
        clock.advance(59.999)
        assert take(limiter) is None
        assert free(limiter) == 0
        clock.advance(0.001)
        assert free(limiter) == 2
        assert take(limiter, 2) is not None, "nobody had to clear up first"
        assert take(limiter) is None

    def test_who_renews_keeps_its_slot(self, limiter: Any, clock: ManualClock) -> None:
        alive, _dead = take(limiter), take(limiter)
        clock.advance(59.999)
        assert alive.renew()
        clock.advance(59.999)
        assert free(limiter) == 1
        assert alive.renew()
        clock.advance(59.999)
        assert free(limiter) == 1
        clock.advance(0.001)
        assert free(limiter) == 2

    def test_a_lease_that_expired_reports_once_that_it_is_lost(self, limiter: Any, clock: ManualClock) -> None:
        lost: list[str] = []
        late = take(limiter, on_lost=lambda lease: lost.append(lease.id))
        clock.advance(60)
        assert take(limiter, 2) is not None
        assert not late.lost, "it has not been renewed yet"
        assert not late.renew()
        assert not late.renew()
        assert late.lost
        assert lost == [late.id]

    def test_a_lease_that_expired_frees_no_slot_of_the_next_holder(self, limiter: Any, clock: ManualClock) -> None:
        one = [Limit.concurrent("parallel", 1)]
        late = take(limiter, limits=one)
        clock.advance(60)
        new = take(limiter, limits=one)
        assert new is not None
        late.commit()
        assert free(limiter, limits=one) == 0, "it is the new holder's"
        assert new.renew()
        assert not new.lost
        new.commit()
        assert free(limiter, limits=one) == 1

    def test_a_lease_ends_once(self, limiter: Any) -> None:
        for end in ("commit", "rollback"):
            lease, other = take(limiter), take(limiter)
            getattr(lease, end)()
            assert free(limiter) == 1
            for again in ("commit", "rollback", "renew"):
                with pytest.raises(LeaseExpired):
                    getattr(lease, again)()
            assert free(limiter) == 1, "the other's was not given back"
            other.commit()
            assert free(limiter) == 2

    def test_a_cascade_holds_and_renews_slots_of_ancestors_too(self, limiter: Any, clock: ManualClock) -> None:
        limiter.create_entity("team")
        limiter.set_limits("team", [Limit.concurrent("parallel", 3)])
        for member in ("ann", "bob"):
            limiter.create_entity(member, parent_id="team", cascade=True)
            limiter.set_limits(member, [PARALLEL])
        with limiter.acquire("ann", "r", {"parallel": 2}) as lease:
            refused = limiter.try_acquire("bob", "r", {"parallel": 2})
            assert [(status.entity_id, status.exceeded) for status in refused.statuses] == [
                ("bob", False),
                ("team", True),
            ]
            clock.advance(59)
            assert lease.renew()
            clock.advance(59)
            assert limiter.available("bob", "r") == {"parallel": 1}
            assert limiter.available("team", "r") == {"parallel": 1}
        assert limiter.available("team", "r") == {"parallel": 3}

    def test_a_stored_limit_is_what_it_was(self, limiter: Any) -> None:
        limits = [Limit.concurrent("parallel", 2, ttl=0.5), RPM]
        limiter.set_system_defaults(limits)
        limiter.set_resource_defaults("r", limits)
        limiter.set_limits("e", limits, "r")
        assert limiter.get_system_defaults() == limiter.get_resource_defaults("r") == limiter.get_limits("e", "r")
        assert limiter.resolve_limits("e", "r") == (limits, "entity")
        with limiter.acquire("e", "r", {"parallel": 2}):
            assert not limiter.try_acquire("e", "r", {"parallel": 1})
        for resource in ("r", "elsewhere"):
            with limiter.acquire("f", resource, {"parallel": 1, "rpm": 1}):
                assert limiter.available("f", resource) == {"parallel": 1, "rpm": 59}

    def test_fewer_slots_than_are_held(self, limiter: Any) -> None:
        limiter.set_system_defaults([Limit.concurrent("parallel", 3)])
        leases = [limiter.try_acquire("e", "r", {"parallel": 1}).lease for _ in range(3)]
        limiter.set_system_defaults([Limit.concurrent("parallel", 1)])
        assert limiter.available("e", "r") == {"parallel": -2}
        for lease in leases:
            assert lease.renew(), "nobody is thrown out"
            assert not limiter.try_acquire("e", "r", {"parallel": 1})
            lease.commit()
        assert limiter.available("e", "r") == {"parallel": 1}

    def test_a_limit_that_becomes_one_of_the_other_kind_starts_anew(self, limiter: Any) -> None:
        limiter.adjust("e", "r", {"parallel": 5}, [Limit.per_minute("parallel", 2)])
        lease = take(limiter, 2)
        assert lease is not None
        assert limiter.available("e", "r", [Limit.per_minute("parallel", 2)]) == {"parallel": 2}
        lease.commit()

    def test_it_starts_anew_even_if_it_refuses(self, limiter: Any) -> None:
        tokens = [Limit.per_minute("parallel", 2)]
        limiter.adjust("e", "r", {"parallel": 5}, tokens)
        assert take(limiter, 3) is None
        assert limiter.available("e", "r", tokens) == {"parallel": 2}

    def test_reset_frees_them_and_their_holder_has_lost_them(self, limiter: Any) -> None:
        lease = take(limiter, 2)
        limiter.reset("e", "r")
        assert free(limiter) == 2
        new = take(limiter)
        assert not lease.renew()
        lease.commit()
        assert free(limiter) == 1
        new.commit()

    def test_a_penalty_lets_nobody_in(self, limiter: Any, clock: ManualClock) -> None:
        inside = take(limiter)
        limiter.penalize("e", "r", seconds=30, limits=[PARALLEL])
        assert free(limiter) == 0
        refused = limiter.try_acquire("e", "r", {"parallel": 1}, [PARALLEL])
        assert refused.retry_after_seconds == 30.0
        assert inside.renew(), "who is in stays in"
        clock.advance(29.999)
        assert take(limiter) is None
        clock.advance(0.001)
        assert take(limiter) is not None

    def test_held_slots_show_in_buckets_and_resource_capacity(self, limiter: Any, clock: ManualClock) -> None:
        limiter.set_limits("e", [PARALLEL], "r")
        limiter.set_limits("idle", [Limit.concurrent("parallel", 7)], "r")
        limiter.invalidate_config_cache()
        _held = limiter.try_acquire("e", "r", {"parallel": 1}, record_lease=True).lease
        clock.advance(15)
        (status,) = limiter.get_buckets("e")
        assert (status.limit, status.available, status.full_in_seconds) == (PARALLEL, 1, 45.0)
        capacity = limiter.get_resource_capacity("r", "parallel")
        assert [(entity.entity_id, entity.capacity, entity.available) for entity in capacity.entities] == [
            ("e", 2, 1),
            ("idle", 7, 7),
        ]
        clock.advance(45)
        assert [bucket.available for bucket in limiter.get_buckets("e")] in ([], [2])

    def test_limiters_on_one_store_share_slots(self, open_limiter: Callable[..., Any]) -> None:
        one, other = open_limiter(), open_limiter()
        mine, theirs = take(one), take(other)
        assert mine.id != theirs.id
        assert take(one) is None
        mine.commit()
        assert free(other) == 1
        theirs.rollback()
        assert free(one) == 2

    def test_the_last_slot_goes_to_one(self, limiter: Any) -> None:
        limits = [Limit.concurrent("parallel", 3)]
        for _ in range(2):
            answers = limiter.together([("try_acquire", ("e", "r", {"parallel": 1}, limits))] * 16)
            leases = [answer.lease for answer in answers if answer]
            assert len({lease.id for lease in leases}) == 3
            assert free(limiter, limits=limits) == 0
            for lease in leases:
                lease.commit()
            assert free(limiter, limits=limits) == 3

    def test_reconciling_lets_go_of_the_dead_and_of_nobody_else(self, limiter: Any, clock: ManualClock) -> None:
        _dead = [take(limiter), take(limiter, entity_id="f")]
        clock.advance(30)
        alive = take(limiter)
        assert limiter.reconcile().leases == 0
        clock.advance(30)
        assert limiter.reconcile().leases == 2
        assert limiter.reconcile().leases == 0
        assert [free(limiter), free(limiter, "f")] == [1, 2]
        assert alive.renew()
        alive.commit()
