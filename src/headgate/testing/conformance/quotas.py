"""Quotas: all vectors, and everything that a bucket can do too."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest

from ...core.calendar import Calendar
from ...core.limit import Limit
from ..clock import ManualClock
from .fixtures import RPM, START_MS, Conformance
from .vectors import answer

DAILY = Limit.quota("daily", 10, "day", tz="Europe/Berlin", at="06:30")
FIRST_USE = Limit.quota("messages", 45, 5 * 3600, from_first_use=True)
SLOTS = Limit.concurrent("slots", 2)


def _edge_ms(limit: Limit, now_ms: int) -> int:
    assert limit.calendar is not None
    return limit.calendar.window(now_ms).ends_ms


def quota_scenarios() -> list[dict[str, Any]]:
    text = files("headgate.testing").joinpath("vectors/quota.json").read_text()
    return json.loads(text)["scenarios"]  # type: ignore[no-any-return]


def quota_of(scenario: dict[str, Any]) -> Limit:
    if scenario.get("from_first_use"):
        return Limit.quota("x", scenario["capacity"], scenario["seconds"], from_first_use=True)
    where = {name: scenario[name] for name in ("tz", "at", "on")}
    return Limit.quota("x", scenario["capacity"], scenario["per"], **where)


class QuotaConformance(Conformance):
    quota_scenarios_every = 1  # of how many scenarios one is played

    def test_every_scenario_of_the_quota_vectors_has_its_exact_answers(self, limiter: Any, clock: ManualClock) -> None:
        for scenario in quota_scenarios()[:: self.quota_scenarios_every]:
            limit = quota_of(scenario)
            clock.set(scenario["start_ms"])
            limiter.available(scenario["id"], "vectors", [limit])  # the quota is born here
            for number, step in enumerate(scenario["steps"]):
                clock.set(scenario["start_ms"] + step["at_ms"])
                expected = {key: step[key] for key in ("allowed", "retry_after_ms", "available") if key in step}
                said = answer(limiter, scenario["id"], limit, step, looks=number % self.looks_every == 0)
                assert said == expected, (scenario["id"], step)

    def test_a_quota_a_bucket_and_slots_pass_or_fail_together(self, limiter: Any, clock: ManualClock) -> None:
        limits = [DAILY, RPM, SLOTS]
        with limiter.acquire("e", "r", {"daily": 7, "rpm": 1, "slots": 1}, limits):
            refused = limiter.try_acquire("e", "r", {"daily": 4, "rpm": 1, "slots": 1}, limits)
            assert not refused
            assert refused.retry_after_ms == _edge_ms(DAILY, clock.now_ms()) - clock.now_ms()
            assert [status.limit_name for status in refused.statuses if status.exceeded] == ["daily"]
            assert limiter.available("e", "r", limits) == {"daily": 3, "rpm": 59, "slots": 1}
            assert not limiter.try_acquire("e", "r", {"daily": 1, "slots": 2}, limits)
            assert limiter.available("e", "r", limits) == {"daily": 3, "rpm": 59, "slots": 1}
        assert limiter.available("e", "r", limits) == {"daily": 3, "rpm": 59, "slots": 2}

    def test_a_status_says_when_the_quota_resets(self, limiter: Any, clock: ManualClock) -> None:
        (status,) = limiter.try_acquire("e", "r", {"daily": 1}, [DAILY]).statuses
        assert status.resets_at_ms == _edge_ms(DAILY, clock.now_ms())
        (status,) = limiter.try_acquire("e", "r", {"messages": 46}, [FIRST_USE]).statuses
        assert status.never

    def test_a_list_of_buckets_shows_what_is_used_and_when_it_resets(self, limiter: Any, clock: ManualClock) -> None:
        daily = Limit.quota("daily", 10, "day", tz="Europe/Berlin", at="06:30", alert_at=(0.9,))
        limiter.set_system_defaults([daily, FIRST_USE])
        limiter.set_limits("own", [Limit.quota("daily", 7, "month")])
        limiter.acquire("e", "r", {"daily": 3.5, "messages": 2}).__enter__()
        limiter.acquire("own", "r", {"daily": 2}).__enter__()
        edge_ms, over_ms = _edge_ms(daily, clock.now_ms()), clock.now_ms() + 5 * 3_600_000
        clock.advance(1)
        listed, cursor = list[Any](), None
        while True:
            page = limiter.list_buckets("r", cursor=cursor)
            listed, cursor = [*listed, *page], page.cursor
            if cursor is None:
                break
        found = {(one.entity_id, one.limit.name): one for one in listed}
        month_ms = Calendar.every("month").window(clock.now_ms()).ends_ms
        shown = {place: (one.used, one.available, one.resets_at_ms, one.limit.spelled) for place, one in found.items()}
        assert shown == {
            ("e", "daily"): (3.5, 6, edge_ms, "10/day resets 06:30 Europe/Berlin"),
            ("e", "messages"): (2, 43, over_ms, "45/5h from first use"),
            ("own", "daily"): (2, 5, month_ms, "7/month resets UTC"),
        }
        for one in found.values():
            assert one.full_in_seconds == (one.resets_at_ms - clock.now_ms()) / 1000
            assert one.as_dict()["used"] == one.used
        assert limiter.get_buckets("e") == [found["e", "daily"], found["e", "messages"]]

    def test_a_body_that_raises_gives_the_quota_back(self, limiter: Any) -> None:
        with (
            pytest.raises(KeyError),
            limiter.acquire("e", "r", {"daily": 4, "messages": 4}, [DAILY, FIRST_USE]) as lease,
        ):
            lease.consume(daily=2)
            lease.adjust(messages=1)
            assert limiter.available("e", "r", [DAILY, FIRST_USE]) == {"daily": 4, "messages": 40}
            raise KeyError
        assert limiter.available("e", "r", [DAILY, FIRST_USE]) == {"daily": 10, "messages": 45}

    def test_a_window_from_first_use_given_back_to_full_is_over(self, limiter: Any, clock: ManualClock) -> None:
        lease = limiter.try_acquire("e", "r", {"messages": 45}, [FIRST_USE]).lease
        clock.advance(3600)
        lease.rollback()
        clock.advance(3600)
        assert limiter.try_acquire("e", "r", {"messages": 45}, [FIRST_USE])
        assert limiter.time_until_available("e", "r", {"messages": 1}, [FIRST_USE]) == 5 * 3600

    def test_debt_ends_at_the_edge(self, limiter: Any, clock: ManualClock) -> None:
        limiter.adjust("e", "r", {"daily": 25}, [DAILY])
        assert limiter.available("e", "r", [DAILY]) == {"daily": -15}
        assert not limiter.try_acquire("e", "r", {"daily": 0}, [DAILY])
        clock.set(_edge_ms(DAILY, clock.now_ms()))
        assert limiter.available("e", "r", [DAILY]) == {"daily": 10}

    def test_a_penalty_outlives_the_edge_and_a_factor_does_not(self, limiter: Any, clock: ManualClock) -> None:
        edge_ms = _edge_ms(DAILY, clock.now_ms())
        clock.set(edge_ms - 1000)
        limiter.penalize("e", "r", seconds=30, factor=0.5, limits=[DAILY])
        assert limiter.time_until_available("e", "r", {"daily": 1}, [DAILY]) == 30
        clock.set(edge_ms)
        assert limiter.time_until_available("e", "r", {"daily": 10}, [DAILY]) == 29
        clock.set(edge_ms + 29_000)
        assert limiter.try_acquire("e", "r", {"daily": 10}, [DAILY])

    def test_what_was_used_stays_used_when_the_amount_changes(self, limiter: Any) -> None:
        smaller, larger = (Limit.quota("daily", amount, "day", tz="Europe/Berlin", at="06:30") for amount in (3, 20))
        assert limiter.try_acquire("e", "r", {"daily": 6}, [DAILY])
        assert limiter.available("e", "r", [larger]) == {"daily": 14}
        assert limiter.try_acquire("e", "r", {"daily": 1}, [larger])
        assert limiter.available("e", "r", [smaller]) == {"daily": -4}

    def test_another_calendar_keeps_the_tokens_and_has_its_own_edge(self, limiter: Any, clock: ManualClock) -> None:
        monthly = Limit.quota("daily", 10, "month")
        assert limiter.try_acquire("e", "r", {"daily": 6}, [DAILY])
        assert limiter.try_acquire("e", "r", {"daily": 1}, [monthly])
        clock.set(_edge_ms(DAILY, clock.now_ms()))
        assert limiter.available("e", "r", [monthly]) == {"daily": 3}
        wait_ms = _edge_ms(monthly, clock.now_ms()) - clock.now_ms()
        assert limiter.try_acquire("e", "r", {"daily": 4}, [monthly]).retry_after_ms == wait_ms

    def test_an_older_revision_does_not_bring_its_calendar_back(self, open_limiter: Callable[..., Any]) -> None:
        older, newer = open_limiter(), open_limiter()
        older.set_limits("e", [DAILY], resource="r")
        assert older.try_acquire("e", "r", {"daily": 2})
        newer.set_limits("e", [Limit.quota("daily", 10, "month")], resource="r")
        assert newer.try_acquire("e", "r", {"daily": 8})
        assert not older.try_acquire("e", "r", {"daily": 1})
        refused = newer.try_acquire("e", "r", {"daily": 1})
        assert refused.statuses[0].limit.calendar == Calendar.every("month")

    def test_a_limit_that_changes_its_kind_starts_anew(self, limiter: Any) -> None:
        kinds = [Limit.per_minute("x", 10), Limit.quota("x", 10, "day"), Limit.concurrent("x", 10)]
        for limit in [*kinds, *reversed(kinds), *kinds]:
            decision = limiter.try_acquire("e", "r", {"x": 10}, [limit])
            assert decision
            if limit.is_concurrent:
                decision.lease.commit()
            else:
                assert not limiter.try_acquire("e", "r", {"x": 1}, [limit])
                limiter.reset("e", "r")

    def test_parent_and_child_share_a_quota(self, limiter: Any) -> None:
        limiter.create_entity("team")
        for member in ("ann", "bob"):
            limiter.create_entity(member, parent_id="team", cascade=True)
        limiter.set_limits("team", [Limit.quota("usd", 10, "month", tz="Europe/Berlin")])
        limiter.set_system_defaults([Limit.quota("usd", 6, "day", tz="Europe/Berlin")])
        assert limiter.try_acquire("ann", "r", {"usd": 6})
        assert not limiter.try_acquire("ann", "r", {"usd": 0.5})
        assert not limiter.try_acquire("bob", "r", {"usd": 4.001})
        assert limiter.try_acquire("bob", "r", {"usd": 4})
        assert limiter.available("team", "r") == {"usd": 0}

    def test_a_waiter_passes_at_the_edge(self, open_limiter: Callable[..., Any]) -> None:
        quick = Limit.quota("x", 2, 0.4, from_first_use=True)
        limiter = open_limiter(clock=None)
        assert limiter.try_acquire("e", "r", {"x": 2}, [quick])
        assert limiter.try_acquire("e", "r", {"x": 2}, [quick], max_wait=30)
        assert limiter.available("e", "r", [quick])["x"] in (0, 2), "all of one window, and nothing of the next"

    def test_a_quota_whose_edge_is_too_far_away_is_refused_at_once(self, limiter: Any, clock: ManualClock) -> None:
        assert limiter.try_acquire("e", "r", {"daily": 10}, [DAILY])
        wait_ms = _edge_ms(DAILY, clock.now_ms()) - clock.now_ms()
        refused = limiter.try_acquire("e", "r", {"daily": 1}, [DAILY], max_wait=(wait_ms - 1) / 1000)
        assert not refused
        assert refused.retry_after_ms == wait_ms
        assert limiter.available("e", "r", [DAILY]) == {"daily": 0}

    def test_usage_of_a_quota_is_counted(self, limiter: Any, clock: ManualClock) -> None:
        limiter.try_acquire("e", "r", {"daily": 4}, [DAILY])
        clock.set(_edge_ms(DAILY, clock.now_ms()))
        limiter.try_acquire("e", "r", {"daily": 3}, [DAILY])
        assert sum(window.consumed["daily"] for window in limiter.get_usage("e", "r", window="hour")) == 7

    def test_a_quota_that_is_full_again_is_swept(self, limiter: Any, clock: ManualClock) -> None:
        limiter.set_limits("e", [DAILY], resource="r")
        limiter.try_acquire("e", "r", {"daily": 4})
        clock.set(_edge_ms(DAILY, START_MS) + 3_600_000)
        limiter.reconcile()
        assert limiter.available("e", "r") == {"daily": 10}
        assert limiter.try_acquire("e", "r", {"daily": 10})
        assert not limiter.try_acquire("e", "r", {"daily": 1})

    def test_what_was_taken_in_another_window_does_not_come_back_in_this_one(
        self, limiter: Any, clock: ManualClock
    ) -> None:
        limits = [DAILY, FIRST_USE, RPM]
        lease = limiter.try_acquire("e", "r", {"daily": 4, "messages": 4, "rpm": 4}, limits).lease
        clock.set(_edge_ms(DAILY, clock.now_ms()))
        clock.advance(5 * 3600)
        limiter.adjust("e", "r", {"daily": 10, "messages": 45, "rpm": 60}, limits)
        lease.rollback()
        assert limiter.available("e", "r", limits) == {"daily": 0, "messages": 0, "rpm": 4}

    def test_calls_at_once_on_the_last_dollar_admit_not_a_cent_more(self, limiter: Any) -> None:
        limiter.create_entity("team")
        limiter.create_entity("ann", parent_id="team", cascade=True)
        limiter.set_limits("team", [Limit.quota("usd", 500, "month", tz="Europe/Berlin")])
        limiter.set_limits("ann", [Limit.quota("usd", 40, "day", tz="Europe/Berlin")])
        limiter.adjust("team", "llm", {"usd": 499})
        decisions = limiter.together([("try_acquire", ("ann", "llm", {"usd": 0.03}))] * 64)
        assert sum(decision.allowed for decision in decisions) == 33
        assert limiter.available("team", "llm") == {"usd": 0}
        assert not limiter.try_acquire("ann", "llm", {"usd": 0.011})
        assert limiter.try_acquire("ann", "llm", {"usd": 0.01})
