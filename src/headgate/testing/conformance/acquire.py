"""Acquire, refusal, waits, penalties, reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ...core.errors import RateLimitExceeded
from ...core.limit import Limit
from ..clock import ManualClock
from .fixtures import RPM, TPM, Conformance


class AcquireConformance(Conformance):
    def test_all_or_nothing_over_the_limits(self, limiter: Any) -> None:
        assert limiter.try_acquire("e", "r", {"rpm": 1, "tpm": 1400}, [RPM, TPM])
        refused = limiter.try_acquire("e", "r", {"rpm": 1, "tpm": 101}, [RPM, TPM])
        assert not refused
        assert refused.lease is None
        assert limiter.available("e", "r", [RPM, TPM]) == {"rpm": 59, "tpm": 100}

    def test_only_named_limits_are_charged(self, limiter: Any) -> None:
        assert limiter.try_acquire("e", "r", {"rpm": 1}, [RPM, TPM])
        assert limiter.available("e", "r", [RPM, TPM]) == {"rpm": 59, "tpm": 1500}

    def test_entities_resources_and_namespaces_are_apart(self, open_limiter: Callable[..., Any]) -> None:
        one, other = open_limiter(namespace="one"), open_limiter(namespace="other")
        assert one.try_acquire("e", "r", {"rpm": 60}, [RPM])
        for limiter, entity_id, resource in [(one, "f", "r"), (one, "e", "s"), (other, "e", "r")]:
            assert limiter.available(entity_id, resource, [RPM]) == {"rpm": 60}
        assert one.available("e", "r", [RPM]) == {"rpm": 0}

    def test_a_write_is_visible_to_all_before_the_body_runs(self, open_limiter: Callable[..., Any]) -> None:
        one, other = open_limiter(), open_limiter()
        with one.acquire("e", "r", {"rpm": 10}, [RPM]):
            assert other.available("e", "r", [RPM]) == {"rpm": 50}

    def test_retry_after_is_exact(self, limiter: Any, clock: ManualClock) -> None:
        limit = Limit.custom("x", 10, 7, 3)
        assert limiter.try_acquire("e", "r", {"x": 10}, [limit])
        refused = limiter.try_acquire("e", "r", {"x": 5}, [limit])
        assert refused.retry_after_seconds == 2.143  # 5 tokens at 7 in 3 seconds: 2142.86 ms
        assert limiter.time_until_available("e", "r", {"x": 5}, [limit]) == 2.143
        clock.advance(2.142)
        assert not limiter.try_acquire("e", "r", {"x": 5}, [limit])
        clock.advance(0.001)
        assert limiter.time_until_available("e", "r", {"x": 5}, [limit]) == 0.0
        assert limiter.try_acquire("e", "r", {"x": 5}, [limit])

    def test_more_than_the_capacity_never_fits(self, limiter: Any) -> None:
        decision = limiter.try_acquire("e", "r", {"rpm": 61}, [RPM])
        assert not decision
        assert decision.retry_after_seconds is None
        assert limiter.time_until_available("e", "r", {"rpm": 61}, [RPM]) is None
        with pytest.raises(RateLimitExceeded, match="never") as caught, limiter.acquire("e", "r", {"rpm": 61}, [RPM]):
            pass
        assert caught.value.retry_after_seconds is None
        assert caught.value.retry_after_header is None
        assert limiter.available("e", "r", [RPM]) == {"rpm": 60}

    @pytest.fixture
    def refusal(self, limiter: Any) -> RateLimitExceeded:
        """Two limits of three are used up."""
        limiter.adjust("e", "r", {"rpm": 60, "tpm": 1500}, [RPM, TPM])
        spend = Limit.per_day("spend", 5)
        with pytest.raises(RateLimitExceeded) as caught:
            limiter.acquire("e", "r", {"rpm": 1, "tpm": 100, "spend": 0.25}, [RPM, TPM, spend]).__enter__()
        return caught.value

    def test_refusal_names_violated_and_passed_limits_and_the_longest_wait(self, refusal: RateLimitExceeded) -> None:
        assert [status.limit_name for status in refusal.violations] == ["rpm", "tpm"]
        assert [status.limit_name for status in refusal.passed] == ["spend"]
        assert refusal.primary_violation.limit_name == "tpm"
        assert refusal.retry_after_seconds == 6.0
        assert refusal.retry_after_header == "6"
        for word in ("'e'", "'r'", "tpm", "6.000 s"):
            assert word in str(refusal)

    def test_refusal_as_dict_has_every_limit_with_its_numbers(self, refusal: RateLimitExceeded) -> None:
        body = refusal.as_dict()
        assert body["error"] == "rate_limit_exceeded"
        assert body["retry_after_ms"] == 6000
        assert body["limits"][0] == {
            "entity_id": "e",
            "resource": "r",
            "limit_name": "rpm",
            "capacity": 60,
            "refill_amount": 60,
            "refill_period_seconds": 60,
            "available": 0,
            "requested": 1,
            "exceeded": True,
            "retry_after_seconds": 1.0,
        }
        assert body["limits"][2]["requested"] == 0.25

    def test_the_header_rounds_up(self, limiter: Any) -> None:
        limit = Limit.custom("x", 1, 1, 1.001)
        limiter.adjust("e", "r", {"x": 1}, [limit])
        with pytest.raises(RateLimitExceeded) as caught, limiter.acquire("e", "r", {"x": 1}, [limit]):
            pass
        assert caught.value.retry_after_header == "2"

    def test_a_changed_limit_is_obeyed_on_a_live_bucket(self, limiter: Any, clock: ManualClock) -> None:
        def shown(amount: int, **other: Any) -> int:
            return int(limiter.available("e", "r", [Limit.per_minute("x", amount, **other)])["x"])

        assert limiter.try_acquire("e", "r", {"x": 30}, [Limit.per_minute("x", 60)])
        clock.advance(10)
        assert shown(60) == 40
        assert shown(100) == 80, "a larger capacity adds the difference"
        assert shown(25) == 5, "a smaller one takes it away"
        assert shown(15) == -5, "and may leave a debt"
        assert shown(60) == 40, "looking under another limit changes nothing"
        assert limiter.try_acquire("e", "r", {"x": 1}, [Limit.per_minute("x", 25)])
        assert shown(25) == 4
        clock.advance(12)
        assert shown(25) == 9, "refill goes on at the new rate"

    def test_a_lowered_limit_holds_even_if_its_first_acquire_is_refused(self, limiter: Any, clock: ManualClock) -> None:
        fast, slow = Limit.per_minute("x", 60_000, burst=60), Limit.per_minute("x", 60)
        assert limiter.try_acquire("e", "r", {"x": 60}, [fast])
        assert not limiter.try_acquire("e", "r", {"x": 1}, [slow])
        clock.advance(0.5)
        assert not limiter.try_acquire("e", "r", {"x": 1}, [slow])
        clock.advance(0.5)
        assert limiter.try_acquire("e", "r", {"x": 1}, [slow])

    def test_a_slow_limit_beside_a_fast_one_does_not_starve(self, limiter: Any, clock: ManualClock) -> None:
        fast, slow = Limit.per_second("fast", 1000), Limit.per_day("slow", 24)
        limiter.adjust("e", "r", {"fast": 1000, "slow": 24}, [fast, slow])
        for _ in range(600):
            clock.advance(6)
            limiter.try_acquire("e", "r", {"fast": 1000}, [fast, slow])
        assert limiter.available("e", "r", [fast, slow])["slow"] == 1

    def test_adjust_without_a_lease_takes_and_gives_back(self, limiter: Any) -> None:
        limiter.adjust("e", "r", {"tpm": 2000}, [RPM, TPM])
        assert limiter.available("e", "r", [RPM, TPM]) == {"rpm": 60, "tpm": -500}
        limiter.adjust("e", "r", {"tpm": -10_000, "rpm": 0}, [RPM, TPM])
        assert limiter.available("e", "r", [RPM, TPM]) == {"rpm": 60, "tpm": 1500}

    def test_debt_is_repaid_by_refill(self, limiter: Any, clock: ManualClock) -> None:
        limiter.adjust("e", "r", {"rpm": 90}, [RPM])
        assert limiter.time_until_available("e", "r", {"rpm": 1}, [RPM]) == 31.0
        clock.advance(31)
        assert limiter.try_acquire("e", "r", {"rpm": 1}, [RPM])

    def test_fractions_of_a_token_are_exact(self, limiter: Any) -> None:
        spend = Limit.per_day("spend", 1)
        for _ in range(1000):
            assert limiter.try_acquire("e", "r", {"spend": 0.001}, [spend])
        assert not limiter.try_acquire("e", "r", {"spend": 0.001}, [spend])

    def test_a_penalty_blocks_for_exactly_so_long(self, limiter: Any, clock: ManualClock) -> None:
        limiter.penalize("e", "r", seconds=20, limits=[RPM])
        assert limiter.available("e", "r", [RPM]) == {"rpm": 0}
        refused = limiter.try_acquire("e", "r", {"rpm": 1}, [RPM])
        assert refused.retry_after_seconds == 20.0
        limiter.adjust("e", "r", {"rpm": -50}, [RPM])
        clock.advance(19.999)
        assert not limiter.try_acquire("e", "r", {"rpm": 0.001}, [RPM]), "tokens that come back do not lift it"
        clock.advance(0.001)
        assert limiter.try_acquire("e", "r", {"rpm": 1}, [RPM])

    def test_a_shorter_penalty_does_not_shorten_a_longer_one(self, limiter: Any) -> None:
        limiter.penalize("e", "r", seconds=20, limits=[RPM])
        limiter.penalize("e", "r", seconds=5, limits=[RPM])
        assert limiter.time_until_available("e", "r", {"rpm": 1}, [RPM]) == 20.0

    def test_a_penalty_by_factor_keeps_that_share_and_forgives_no_debt(self, limiter: Any) -> None:
        limiter.penalize("e", "r", factor=0.5, limits=[RPM, TPM])
        assert limiter.available("e", "r", [RPM, TPM]) == {"rpm": 30, "tpm": 750}
        limiter.penalize("e", "r", factor=0, limits=[RPM])
        assert limiter.available("e", "r", [RPM, TPM]) == {"rpm": 0, "tpm": 750}
        limiter.adjust("e", "r", {"rpm": 10}, [RPM])
        limiter.penalize("e", "r", factor=0.5, limits=[RPM])
        assert limiter.available("e", "r", [RPM]) == {"rpm": -10}, "a debt is not forgiven"

    def test_reset_fills_the_bucket_of_one_resource_and_ends_its_penalty(self, limiter: Any) -> None:
        limiter.adjust("e", "r", {"rpm": 100}, [RPM])
        limiter.adjust("e", "s", {"rpm": 10}, [RPM])
        limiter.penalize("e", "r", seconds=60, limits=[RPM])
        limiter.reset("e", "r")
        assert limiter.available("e", "r", [RPM]) == {"rpm": 60}
        assert limiter.available("e", "s", [RPM]) == {"rpm": 50}
        limiter.reset("nobody", "r")

    def test_reset_forgets_the_time_too(self, limiter: Any, clock: ManualClock) -> None:
        assert limiter.available("e", "r", [RPM]) == {"rpm": 60}
        limiter.reset("e", "r")
        clock.advance(-1)
        limiter.adjust("e", "r", {"rpm": 60}, [RPM])
        clock.advance(1)
        assert limiter.available("e", "r", [RPM]) == {"rpm": 1}

    def test_a_clock_that_jumps_earns_nothing_twice(self, limiter: Any, clock: ManualClock) -> None:
        limiter.adjust("e", "r", {"rpm": 60}, [RPM])
        clock.advance(-3600)
        assert not limiter.try_acquire("e", "r", {"rpm": 1}, [RPM])
        clock.advance(3600)
        assert not limiter.try_acquire("e", "r", {"rpm": 1}, [RPM]), "an hour back and forth is no hour"
        clock.advance(1)
        assert limiter.try_acquire("e", "r", {"rpm": 1}, [RPM])
        clock.advance(365 * 86_400)
        assert limiter.available("e", "r", [RPM]) == {"rpm": 60}
        assert limiter.try_acquire("e", "r", {"rpm": 60}, [RPM])

    def test_the_decision_says_what_is_left(self, limiter: Any) -> None:
        decision = limiter.try_acquire("e", "r", {"rpm": 10, "tpm": 1}, [RPM, TPM])
        assert decision.retry_after_seconds == 0.0
        assert not decision.degraded
        left = [(status.limit_name, status.available, status.exceeded) for status in decision.statuses]
        assert left == [("rpm", 50, False), ("tpm", 1499, False)]
