"""Leases: commit, rollback, consume, adjust, release, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ...core.errors import LeaseExpired, RateLimitExceeded, ValidationError
from ...core.limit import Limit
from ..clock import ManualClock
from .fixtures import RPM, TPM, Conformance

BOTH = [RPM, TPM]


class LeaseConformance(Conformance):
    def test_leaving_the_body_commits(self, limiter: Any) -> None:
        with limiter.acquire("e", "r", {"rpm": 1, "tpm": 500}, BOTH) as lease:
            assert lease.consumed == {"rpm": 1, "tpm": 500}
            assert not lease.degraded
            assert lease.id == lease.id != ""
        assert limiter.available("e", "r", BOTH) == {"rpm": 59, "tpm": 1000}

    @pytest.mark.parametrize(
        "error", [ValueError, KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit]
    )
    def test_any_exception_gives_back_exactly_what_was_taken(
        self, limiter: Any, clock: ManualClock, error: type[BaseException]
    ) -> None:
        limiter.adjust("e", "r", {"rpm": 30, "tpm": 900}, BOTH)
        with pytest.raises(error), limiter.acquire("e", "r", {"rpm": 10, "tpm": 100}, BOTH) as lease:
            lease.consume(tpm=50)
            lease.adjust(tpm=700)
            lease.release(tpm=20)
            raise error
        assert limiter.available("e", "r", BOTH) == {"rpm": 30, "tpm": 600}

    def test_rollback_never_goes_above_capacity(self, limiter: Any, clock: ManualClock) -> None:
        with pytest.raises(ValueError), limiter.acquire("e", "r", {"rpm": 60}, [RPM]):
            clock.advance(30)
            raise ValueError
        assert limiter.available("e", "r", [RPM]) == {"rpm": 60}
        assert not limiter.try_acquire("e", "r", {"rpm": 61}, [RPM])

    def test_on_error_keep_keeps_what_a_failed_body_took(self, limiter: Any) -> None:
        with pytest.raises(ValueError), limiter.acquire("e", "r", {"rpm": 10}, [RPM], on_error="keep"):
            raise ValueError
        assert limiter.available("e", "r", [RPM]) == {"rpm": 50}

    def test_consume_is_checked_in_the_store(self, open_limiter: Callable[..., Any]) -> None:
        one, other = open_limiter(), open_limiter()
        with one.acquire("e", "r", {"rpm": 29}, [RPM]) as mine, other.acquire("e", "r", {"rpm": 30}, [RPM]) as theirs:
            mine.consume(rpm=1)
            with pytest.raises(RateLimitExceeded) as caught:
                theirs.consume(rpm=1)
            assert caught.value.retry_after_seconds == 1.0
            assert mine.consumed == theirs.consumed == {"rpm": 30}
        assert one.available("e", "r", [RPM]) == {"rpm": 0}

    def test_consume_may_name_another_limit(self, limiter: Any) -> None:
        with limiter.acquire("e", "r", {"rpm": 1}, BOTH) as lease:
            lease.consume(tpm=100)
            assert lease.consumed == {"rpm": 1, "tpm": 100}
        assert limiter.available("e", "r", BOTH) == {"rpm": 59, "tpm": 1400}

    def test_consume_is_all_or_nothing(self, limiter: Any) -> None:
        with limiter.acquire("e", "r", {"rpm": 1}, BOTH) as lease:
            with pytest.raises(RateLimitExceeded):
                lease.consume(rpm=1, tpm=1501)
            assert lease.consumed == {"rpm": 1}
        assert limiter.available("e", "r", BOTH) == {"rpm": 59, "tpm": 1500}

    def test_adjust_never_refuses_and_may_leave_a_debt(self, limiter: Any) -> None:
        with limiter.acquire("e", "r", {"tpm": 500}, BOTH) as lease:
            lease.adjust(tpm=3000)
            assert limiter.available("e", "r", BOTH)["tpm"] == -2000, "in the store when the call returns"
            assert lease.consumed == {"tpm": 3500}
            lease.adjust(tpm=-3400)
            lease.adjust(tpm=0)
            assert lease.consumed == {"tpm": 100}
        assert limiter.available("e", "r", BOTH)["tpm"] == 1400

    def test_release_gives_back_no_more_than_was_consumed(self, limiter: Any) -> None:
        with limiter.acquire("e", "r", {"tpm": 500}, BOTH) as lease:
            lease.release(tpm=200)
            assert limiter.available("e", "r", BOTH)["tpm"] == 1200
            assert lease.consumed == {"tpm": 300}
            with pytest.raises(ValidationError, match="300"):
                lease.release(tpm=301)
            with pytest.raises(ValidationError):
                lease.release(tpm=-1)
        assert limiter.available("e", "r", BOTH)["tpm"] == 1200

    @pytest.mark.parametrize("verb", ["consume", "adjust", "release"])
    @pytest.mark.parametrize("fails", [False, True])
    def test_a_lease_used_after_its_end(self, limiter: Any, verb: str, fails: bool) -> None:
        try:
            with limiter.acquire("e", "r", {"rpm": 1}, [RPM]) as lease:
                if fails:
                    raise ValueError
        except ValueError:
            pass
        before = limiter.available("e", "r", [RPM])
        with pytest.raises(LeaseExpired, match="acquire"):
            getattr(lease, verb)(rpm=1)
        assert limiter.available("e", "r", [RPM]) == before

    def test_bad_amounts_change_nothing(self, limiter: Any) -> None:
        with limiter.acquire("e", "r", {"rpm": 1}, [RPM]) as lease:
            cases: list[tuple[str, dict[str, Any]]] = [
                ("consume", {"rpm": -1}),
                ("consume", {"rpm": False}),
                ("consume", {"nope": 1}),
                ("consume", {}),
                ("adjust", {"nope": 1}),
                ("adjust", {"rpm": 0.0001}),
                ("adjust", {"rpm": float("nan")}),
                ("adjust", {"rpm": 10**15}),
                ("release", {"nope": 1}),
            ]
            for verb, amounts in cases:
                with pytest.raises(ValidationError):
                    getattr(lease, verb)(**amounts)
            assert lease.consumed == {"rpm": 1}
        assert limiter.available("e", "r", [RPM]) == {"rpm": 59}

    def test_the_lease_of_a_decision(self, limiter: Any) -> None:
        kept, dropped = (limiter.try_acquire("e", "r", {"rpm": 10}, [RPM]).lease for _ in range(2))
        kept.commit()
        dropped.rollback()
        assert limiter.available("e", "r", [RPM]) == {"rpm": 50}
        for ended in (kept, dropped):
            with pytest.raises(LeaseExpired):
                ended.rollback()
        with pytest.raises(ValueError), limiter.try_acquire("e", "r", {"rpm": 10}, [RPM]).lease:
            raise ValueError
        assert limiter.available("e", "r", [RPM]) == {"rpm": 50}

    def test_a_rollback_after_the_limit_changed(self, limiter: Any) -> None:
        with pytest.raises(ValueError), limiter.acquire("e", "r", {"x": 50}, [Limit.per_minute("x", 100)]):
            assert not limiter.try_acquire("e", "r", {"x": 1}, [Limit.per_minute("x", 50)])
            assert limiter.try_acquire("e", "r", {"x": 5}, [Limit.per_minute("x", 55)])
            raise ValueError
        assert limiter.available("e", "r", [Limit.per_minute("x", 20)])["x"] == 15

    def test_reconciling_takes_nothing_that_counts(self, limiter: Any, clock: ManualClock) -> None:
        limiter.adjust("e", "r", {"rpm": 30}, [RPM])
        for _ in range(2):
            assert set(limiter.reconcile().as_dict()) >= {"buckets", "records"}
            assert limiter.available("e", "r", [RPM]) == {"rpm": 30}
        clock.advance(1000)
        limiter.reconcile()
        assert limiter.available("e", "r", [RPM]) == {"rpm": 60}
