"""Limits by hours of the day."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.limit import Limit
from ...core.schedule import Schedule
from ..clock import ManualClock
from .fixtures import Conformance

MONDAY_MS = 1_717_372_800_000  # 3 June 2024, midnight UTC
HOUR_MS = 3_600_000
BY_NIGHT, BY_DAY = Limit.per_hour("rph", 10), Limit.per_hour("rph", 100)
OFFICE = Schedule([("mon-fri 08:00-18:00", [BY_DAY]), ("sat,sun", 0.5)], otherwise=[BY_NIGHT])


class ScheduleConformance(Conformance):
    def test_the_limits_of_the_hour_hold_on_every_level(
        self, open_limiter: Callable[..., Any], clock: ManualClock
    ) -> None:
        clock.set(MONDAY_MS)
        limiter = open_limiter(namespace="by-the-hour")
        limiter.set_limits("own", OFFICE, resource="r")
        limiter.set_limits("any", OFFICE)
        limiter.set_resource_defaults("shared", OFFICE)
        places = [("own", "r"), ("any", "r"), ("nobody", "shared")]
        for hour, capacity in ((0, 10), (8, 100), (17, 100), (18, 10), (24 * 5, 5), (24 * 7 + 8, 100)):
            clock.set(MONDAY_MS + hour * HOUR_MS)
            assert [limiter.resolve_limits(*place)[0][0].capacity for place in places] == [capacity] * 3, hour

    def test_what_was_used_stays_used_at_the_edge(self, limiter: Any, clock: ManualClock) -> None:
        clock.set(MONDAY_MS + 8 * HOUR_MS - 1)
        limiter.set_limits("e", OFFICE, resource="r")
        assert limiter.try_acquire("e", "r", {"rph": 10})
        clock.advance(0.001)
        assert limiter.available("e", "r") == {"rph": 90}
        assert limiter.try_acquire("e", "r", {"rph": 90})
        clock.set(MONDAY_MS + 18 * HOUR_MS)
        assert limiter.available("e", "r") == {"rph": 10}

    def test_clocks_that_disagree_at_the_edge_give_nothing_twice(self, open_limiter: Callable[..., Any]) -> None:
        clocks = [ManualClock(MONDAY_MS + 8 * HOUR_MS + ms) for ms in (-500, 500)]
        early, late = (open_limiter(clock=clock) for clock in clocks)
        early.set_limits("e", OFFICE, resource="r")
        passed = 0
        for _ in range(60):
            for limiter in (early, late):
                passed += bool(limiter.try_acquire("e", "r", {"rph": 2}))
        assert passed == 50

    def test_a_wait_looks_past_the_next_edge(self, limiter: Any, clock: ManualClock) -> None:
        clock.set(MONDAY_MS + 8 * HOUR_MS - 60_000)
        limiter.set_limits("e", OFFICE, resource="r")
        assert limiter.try_acquire("e", "r", {"rph": 10})
        refused = limiter.try_acquire("e", "r", {"rph": 5})
        assert refused.retry_after_ms == 60_000
        assert [status.retry_after_ms for status in refused.statuses] == [60_000]
        clock.advance(59.999)
        assert not limiter.try_acquire("e", "r", {"rph": 5})
        clock.advance(0.001)
        assert limiter.try_acquire("e", "r", {"rph": 5})

    def test_more_than_the_hour_allows_passes_in_the_next(self, limiter: Any, clock: ManualClock) -> None:
        clock.set(MONDAY_MS + 7 * HOUR_MS)
        limiter.set_limits("e", OFFICE, resource="r")
        assert limiter.try_acquire("e", "r", {"rph": 50}).retry_after_ms == HOUR_MS

    def test_a_schedule_is_read_back(self, limiter: Any) -> None:
        limiter.set_limits("e", OFFICE, resource="r")
        stored = limiter.get_limits("e", "r")
        assert list(stored) == [BY_NIGHT]
        assert stored.schedule == OFFICE
        limiter.set_limits("e", [BY_NIGHT], resource="r")
        assert limiter.get_limits("e", "r").schedule is None
