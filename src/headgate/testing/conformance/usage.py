"""Usage: what was consumed, by the hour, to the token."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from typing import Any, ClassVar

import pytest

from ...core.errors import RateLimitExceeded, ValidationError
from ...core.limit import Limit
from ..clock import ManualClock
from .fixtures import RPM, START_MS, TPM, Conformance

LIMITS = [RPM, TPM]
START = datetime.fromtimestamp(START_MS / 1000, timezone.utc)
LONG = {"start": START - timedelta(days=1), "end": START + timedelta(days=30)}
HOUR = 3600.0


def consumed(limiter: Any, entity_id: str | None = "e", **asked: Any) -> dict[str, Any]:
    """Of everything there is, by limit."""
    total: dict[str, Fraction] = {}
    cursor = None
    while True:
        page = limiter.get_usage(entity_id, **(LONG | asked), cursor=cursor)
        for window in page:
            for name, amount in window.consumed.items():
                total[name] = total.get(name, Fraction(0)) + Fraction(str(amount))
        cursor = page.cursor
        if cursor is None:
            return total


def by_hour(windows: Any) -> dict[tuple[str, int], Fraction]:
    """What was used, by the limit and the hour since 1970; without zeros."""
    return {
        (name, int(window.start.timestamp()) // 3600): Fraction(str(amount))
        for window in windows
        for name, amount in window.consumed.items()
        if amount
    }


class UsageConformance(Conformance):
    usage_steps: ClassVar[int] = 150

    @pytest.fixture(params=[60, 10**6], ids=["read again", "from the cache"])
    def used(self, open_limiter: Callable[..., Any], clock: ManualClock, request: pytest.FixtureRequest) -> Any:
        """From 22:13 on, half an hour apart: 22, 22, 23, 23, 0, 0."""
        limiter = open_limiter(config_cache_ttl=request.param)
        for amount in range(1, 7):
            assert limiter.try_acquire("e", "api", {"rpm": amount}, LIMITS)
            clock.advance(HOUR / 2)
        return limiter

    def test_usage_by_the_hour_and_the_day_is_what_was_taken_then(self, used: Any) -> None:
        hours = used.get_usage("e", **LONG)
        assert [(each.start.hour, each.consumed) for each in hours] == [
            (22, {"rpm": 3}),
            (23, {"rpm": 7}),
            (0, {"rpm": 11}),
        ]
        assert all(each.end - each.start == timedelta(hours=1) for each in hours)
        days = used.get_usage("e", window="day", **LONG)
        assert [(each.start.day, each.start.hour, each.consumed) for each in days] == [
            (14, 0, {"rpm": 10}),
            (15, 0, {"rpm": 11}),
        ]
        assert used.get_usage("e")[-1] == hours[-1]
        assert used.get_usage("nobody", **LONG) == []

    def test_usage_by_the_month_is_the_sum_of_a_whole_month(self, used: Any) -> None:
        (month,) = used.get_usage("e", window="month", **LONG)
        assert (month.entity_id, month.resource, month.consumed) == ("e", "api", {"rpm": 21})
        assert (month.start.isoformat(), month.end.isoformat()) == (
            "2023-11-01T00:00:00+00:00",
            "2023-12-01T00:00:00+00:00",
        )
        assert used.get_usage("e", window="month")[0] == month

    def test_a_range_is_of_whole_windows(self, limiter: Any, clock: ManualClock) -> None:
        for _ in range(4):
            limiter.adjust("e", "api", {"rpm": 1}, LIMITS)
            clock.advance(HOUR)
        start = START.replace(minute=0, second=0)
        asked: list[tuple[Any, Any, int]] = [
            (start, start + timedelta(hours=2), 2),
            (start + timedelta(minutes=59), start + timedelta(hours=1, minutes=1), 2),
            (start + timedelta(hours=1), start + timedelta(hours=2), 1),
        ]
        for first, last, count in asked:
            assert len(limiter.get_usage("e", start=first, end=last)) == count
        with pytest.raises(ValidationError, match="before end"):
            limiter.get_usage("e", start=start, end=start)
        with pytest.raises(ValidationError, match="time zone"):
            limiter.get_usage("e", start=datetime(2026, 1, 1))
        with pytest.raises(ValidationError, match="'week'"):
            limiter.get_usage("e", window="week")

    def test_a_lease_counts_what_it_consumed(self, limiter: Any, clock: ManualClock) -> None:
        with limiter.acquire("e", "api", {"rpm": 1, "tpm": 500}, LIMITS) as lease:
            lease.consume(tpm=100)
            clock.advance(HOUR)
            lease.adjust(tpm=250)
            lease.release(tpm=50)
            took = dict(lease.consumed)
        assert consumed(limiter) == took == {"rpm": 1, "tpm": 800}
        with pytest.raises(KeyError), limiter.acquire("e", "api", {"rpm": 5, "tpm": 7}, LIMITS):
            clock.advance(HOUR)  # what comes back, comes back in another hour
            raise KeyError
        assert consumed(limiter) == took
        hours = limiter.get_usage("e", **LONG)
        assert [each.consumed["rpm"] for each in hours if "rpm" in each.consumed] == [1, 5, -5]
        with pytest.raises(RateLimitExceeded), limiter.acquire("e", "api", {"rpm": 1, "tpm": 1501}, LIMITS):
            pass
        assert consumed(limiter) == took

    def test_only_what_was_consumed_counts(self, limiter: Any) -> None:
        limiter.adjust("e", "api", {"rpm": 2}, LIMITS)
        limiter.adjust("e", "api", {"rpm": -50}, LIMITS)  # above capacity: the tokens are lost, and were not used
        limiter.penalize("e", "api", factor=0, limits=LIMITS)
        limiter.available("e", "api", LIMITS)
        limiter.try_acquire("e", "api", {"rpm": 1, "parallel": 1}, [RPM, Limit.concurrent("parallel", 1)])
        assert consumed(limiter) == {"rpm": -48}

    def test_what_is_forgotten_was_used_all_the_same(self, limiter: Any, clock: ManualClock) -> None:
        limiter.adjust("e", "api", {"rpm": 3}, LIMITS)
        limiter.reset("e", "api")
        assert consumed(limiter) == {"rpm": 3}
        limiter.adjust("e", "api", {"rpm": 4}, LIMITS)
        assert consumed(limiter) == {"rpm": 7}
        clock.advance(2 * HOUR)
        limiter.reconcile()
        assert consumed(limiter) == {"rpm": 7}
        limiter.adjust("e", "api", {"rpm": 5}, LIMITS)
        assert consumed(limiter) == {"rpm": 12}
        limiter.try_acquire("e", "api", {"rpm": 1}, [Limit.concurrent("rpm", 5)])
        assert consumed(limiter) == {"rpm": 12}

    def test_usage_of_an_ancestor_includes_its_descendants(self, limiter: Any) -> None:
        limiter.create_entity("org")
        limiter.create_entity("e", parent_id="org", cascade=True)
        limiter.set_system_defaults(LIMITS)
        for entity_id, amount in (("e", 3), ("org", 4)):
            assert limiter.try_acquire(entity_id, "api", {"rpm": amount})
        assert consumed(limiter, "e") == {"rpm": 3}
        assert consumed(limiter, "org") == {"rpm": 7}

    def test_usage_of_all_entities_is_the_sum_and_filters_by_resource(self, limiter: Any, clock: ManualClock) -> None:
        for number in range(12):
            limiter.adjust(f"e{number % 4}", f"r{number % 3}", {"rpm": number + 1}, LIMITS)
            if number == 6:
                clock.advance(HOUR)
        assert consumed(limiter, None) == {"rpm": 78}
        assert consumed(limiter, None, resource="r1") == {"rpm": 2 + 5 + 8 + 11}
        assert consumed(limiter, "e1", resource="r2") == {"rpm": 6}
        assert consumed(limiter, "e1") == {"rpm": 2 + 6 + 10}

    def test_summary_has_total_average_and_peak_of_the_range(self, limiter: Any, clock: ManualClock) -> None:
        for entity_id, amount in (("e", 6), ("f", 10), ("e", 2)):
            limiter.adjust(entity_id, "api", {"rpm": amount}, LIMITS)
            if entity_id == "f":
                clock.advance(HOUR)
        start = START.replace(minute=0, second=0)
        asked = {"start": start, "end": start + timedelta(hours=4)}
        summary = limiter.get_usage_summary("e", **asked)["rpm"]
        assert (summary.total, summary.average, summary.peak, summary.peak_start) == (8, 2.0, 6, start)
        summary = limiter.get_usage_summary(resource="api", **asked)["rpm"]
        assert (summary.total, summary.average, summary.peak, summary.peak_start) == (18, 4.5, 16, start)
        assert limiter.get_usage_summary("nobody", **asked) == {}

    def test_none_is_counted_if_none_is_wanted(self, open_limiter: Callable[..., Any], clock: ManualClock) -> None:
        limiter = open_limiter(usage_days=0)
        for _ in range(3):
            limiter.adjust("e", "api", {"rpm": 1}, LIMITS)
            clock.advance(HOUR)
        assert consumed(limiter) == {}

    def test_usage_of_any_history_equals_what_was_taken_hour_by_hour(
        self, open_limiter: Callable[..., Any], clock: ManualClock
    ) -> None:
        chance, limiter = random.Random(7), open_limiter()
        spend = Limit("usd", 10, 10, 0.5)
        expected: dict[tuple[str, int], Fraction] = {}

        def count(amounts: Mapping[str, float]) -> None:
            for name, amount in amounts.items():
                place = name, clock.now_ms() // 3_600_000
                expected[place] = expected.get(place, Fraction(0)) + Fraction(str(amount))

        for _ in range(self.usage_steps):
            step = chance.random()
            if step < 0.4:
                amounts = {"rpm": chance.randint(1, 30), "usd": chance.randint(1, 9000) / 1000}
                if limiter.try_acquire("e", "api", amounts, [RPM, spend]):
                    count(amounts)
            elif step < 0.6:
                amounts = {"usd": chance.randint(-9000, 9000) / 1000}
                limiter.adjust("e", "api", amounts, [RPM, spend])
                count(amounts)
            elif step < 0.65:
                limiter.reset("e", "api")
            elif step < 0.7:
                limiter.reconcile()
            else:
                clock.advance(chance.choice([0.5, 60, HOUR / 3, HOUR, 30 * HOUR]))
        windows = limiter.get_usage("e", start=START - timedelta(days=1), end=START + timedelta(days=365))
        assert by_hour(windows) == {place: amount for place, amount in expected.items() if amount}
