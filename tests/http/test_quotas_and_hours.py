"""Quotas and limits by hours in rules and plans, and what callers are told of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from http_helpers import call, gate

from headgate import Limit, RateLimiter, RateLimitExceeded, Schedule, SyncRateLimiter, ValidationError
from headgate.http import HttpRefusal, Plans, Rule
from headgate.http.answer import Headers, too_many
from headgate.http.asgi import AsgiCall
from headgate.http.engine import AsyncGate, Passed, RuleEngine, SyncGate
from headgate.http.limits import read_rule_limits
from headgate.testing import ManualClock

ALL = ("ratelimit", "x-ratelimit", "retry-after")
DAY_MS = 86_400_000
NOON = 1_793_534_400_000  # Sunday, 1 November 2026, 12:00 UTC
MIDNIGHT_IN_BERLIN = NOON + 11 * 3_600_000
OFFICE = {"otherwise": "2/hour", "tz": "Europe/Berlin", "hours": [{"mon-fri 08:00-18:00": "4/hour"}, {"sat": 0.5}]}
MONDAY_8 = 1_793_602_800_000  # in Berlin


def fields(answer: Any) -> dict[str, str]:
    return dict(answer.headers)


# Headers


def test_headers_of_a_quota_name_its_window_and_its_edge() -> None:
    clock = ManualClock(NOON + 1)
    daily = [Limit.quota("calls", 2, "day", tz="Europe/Berlin", alert_at=(0.5,))]
    with SyncRateLimiter("memory://", clock=clock) as limiter:
        passed = limiter.try_acquire("e", "r", {"calls": 2}, daily)
        assert dict(Headers(ALL).of(passed.statuses, clock)) == {
            "RateLimit-Policy": '"calls";q=2;w=86400',
            "RateLimit": '"calls";r=0;t=39600',
            "X-RateLimit-Limit": "2",
            "X-RateLimit-Remaining": "0",
            "X-RateLimit-Reset": str(MIDNIGHT_IN_BERLIN // 1000),
        }
        refused = RateLimitExceeded(limiter.try_acquire("e", "r", {"calls": 1}, daily).statuses)
        headers = dict(Headers(ALL).of_refusal(refused, clock))
        assert (headers["RateLimit"], headers["Retry-After"]) == ('"calls";r=0;t=39600', "39600")
        assert headers["X-RateLimit-Reset"] == str(MIDNIGHT_IN_BERLIN // 1000)
        detail = json.loads(too_many(refused, []).body)["detail"]
        assert detail == "calls allows 2/day resets Europe/Berlin; retry in 39600 s"
        clock.set(NOON + 1 + 39_600_000)
        assert limiter.try_acquire("e", "r", {"calls": 2}, daily), "when the headers say"


def test_a_window_from_first_use_is_named_and_its_end_where_it_is_known() -> None:
    clock = ManualClock(NOON + 1)
    messages = [Limit.quota("messages", 2, 5 * 3600, from_first_use=True)]
    with SyncRateLimiter("memory://", clock=clock) as limiter:
        passed = limiter.try_acquire("e", "r", {"messages": 2}, messages)
        assert dict(Headers().of(passed.statuses, clock)) == {
            "RateLimit-Policy": '"messages";q=2;w=18000', "RateLimit": '"messages";r=0',
        }  # fmt: skip
        clock.advance(3600)
        refused = RateLimitExceeded(limiter.try_acquire("e", "r", {"messages": 1}, messages).statuses)
        headers = dict(Headers(ALL).of_refusal(refused, clock))
        assert (headers["RateLimit"], headers["Retry-After"]) == ('"messages";r=0;t=14400', "14400")
        assert int(headers["X-RateLimit-Reset"]) == -(-(NOON + 1 + 18_000_000) // 1000)


class TickingClock:
    """Some time passes from one look at it to the next."""

    ms = NOON

    def now_ms(self) -> int:
        self.ms += 7
        return self.ms


def test_the_edge_is_told_as_it_is_although_time_passes_from_the_decision_to_the_header() -> None:
    clock, hourly = TickingClock(), [Limit.quota("calls", 30, "hour", at="00:30")]
    with SyncRateLimiter("memory://", clock=clock) as limiter:
        for _ in range(60):
            decision = limiter.try_acquire("e", "r", {"calls": 1}, hourly)
            reset = dict(Headers(["x-ratelimit"]).of(decision.statuses, clock))["X-RateLimit-Reset"]
            assert reset == str(NOON // 1000 + 1800)
        limiter.penalize("e", "r", seconds=3600, limits=hourly)
        decision = limiter.try_acquire("e", "r", {"calls": 1}, hourly)
        reset = dict(Headers(["x-ratelimit"]).of(decision.statuses, clock))["X-RateLimit-Reset"]
        assert int(reset) > NOON // 1000 + 3600, "a penalty may last longer"


# Rules


def test_a_rule_may_have_quotas_as_text() -> None:
    rule = Rule("search", limits="2/day resets Europe/Berlin alert 50%; 10/minute; 45/5h from first use")
    assert [limit.name for limit in rule.limits or ()] == ["quota-day", "minute", "quota-hour5"]
    with gate(rule) as opened:
        opened.clock.set(NOON)
        assert opened.passing(3) == [True, True, False]
        opened.clock.set(MIDNIGHT_IN_BERLIN - 1)
        assert not opened.passes()
        opened.clock.set(MIDNIGHT_IN_BERLIN)
        assert opened.passing(3) == [True, True, False]


@pytest.mark.parametrize("way", ["rule", "plan", "stored plan"])
def test_a_rule_may_depend_on_the_hour(way: str) -> None:
    settings: dict[str, Any] = {}
    rule = Rule("search", limits=OFFICE if way == "rule" else "9/hour")
    if way != "rule":
        settings["plans"] = Plans({"pro": {"search": OFFICE}}, (lambda _: "pro") if way == "plan" else "stored")
    with gate(rule, **settings) as opened:
        if way == "stored plan":
            opened.limiter.create_entity("address:192.0.2.1", metadata={"plan": "pro"})
        opened.clock.set(MONDAY_8 - 1)
        assert opened.passing(3) == [True, True, False]
        opened.clock.set(MONDAY_8)
        assert opened.passing(3) == [True, True, False], "what was used stays used"
        opened.clock.set(MONDAY_8 + 10 * 3_600_000 - 1)
        assert opened.passing(5) == [True] * 4 + [False]
        opened.clock.advance(0.001)
        opened.clock.advance(2 * 3600)
        assert opened.passing(3) == [True, True, False]


def test_the_wait_of_a_refusal_looks_past_the_edge() -> None:
    with gate(Rule("search", limits=OFFICE)) as opened:
        opened.clock.set(MONDAY_8 - 60_000)
        assert opened.passing(2) == [True, True]
        refused = opened.check()
        assert isinstance(refused, HttpRefusal)
        assert fields(refused)["Retry-After"] == "60", "1,800 s by the limits that hold until then"
        opened.clock.advance(60)
        assert opened.passes()


def test_the_wait_of_several_rules_looks_past_the_edge_too() -> None:
    everyone = Rule("all", limits="100/minute", also=True)
    later = Rule("later", limits={"otherwise": "9/hour", "hours": [{"12:00-13:00": "1/hour"}]}, also=True)
    with gate(Rule("search", limits=OFFICE), everyone, later) as opened:
        opened.clock.set(MONDAY_8 - 60_000)
        assert opened.passing(3) == [True, True, False]
        assert fields(opened.check())["Retry-After"] == "60"
        opened.clock.advance(60)
        assert opened.passes()


def test_the_next_day_has_an_edge_of_its_own() -> None:
    """The same limits again, of a limiter that reads nothing anew."""
    clock = ManualClock(MONDAY_8)
    with SyncRateLimiter("memory://", clock=clock, config_cache_ttl=10**7) as limiter:
        opened = SyncGate(RuleEngine(limiter, [Rule("search", limits=OFFICE)]))
        for day in range(3):
            clock.set(MONDAY_8 + day * DAY_MS - 60_000)
            answers = [opened.check(call()) for _ in range(3)]
            assert [isinstance(answer, Passed) for answer in answers] == [True, True, False]
            assert fields(answers[-1])["Retry-After"] == "60"


def test_tasks_decide_the_same() -> None:
    async def ask() -> list[Any]:
        async with RateLimiter("memory://", clock=ManualClock(MONDAY_8 - 60_000)) as limiter:
            opened = AsyncGate(RuleEngine(limiter, [Rule("search", limits=OFFICE)]))
            scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("192.0.2.1", 1)}
            return [await opened.check(AsgiCall(scope)) for _ in range(3)]

    answers = asyncio.run(ask())
    assert [isinstance(answer, Passed) for answer in answers] == [True, True, False]
    assert fields(answers[-1])["Retry-After"] == "60"


def test_while_the_store_is_away_the_hour_counts_too() -> None:
    clock = ManualClock(MONDAY_8)
    with SyncRateLimiter("redis://127.0.0.1:1", clock=clock, store_timeout=0.1) as limiter:
        opened = SyncGate(RuleEngine(limiter, [Rule("search", limits=OFFICE)], on_unavailable="local"))
        assert [isinstance(opened.check(call()), Passed) for _ in range(5)] == [True] * 4 + [False]


def test_what_is_read_as_a_schedule() -> None:
    read = read_rule_limits(OFFICE)
    assert isinstance(read, Schedule)
    assert read == read_rule_limits(read) == Rule("a", limits=OFFICE).limits
    assert read.otherwise == (Limit.per_hour("hour", 2),)
    assert read_rule_limits({"hours": "10/day", "tz": "1/day"}) == (Limit.per_day("hours", 10), Limit.per_day("tz", 1))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ("1/day resets Mars", "unknown time zone 'Mars': write it like 'Europe/Berlin'"),
        ("1/day resets 06:30:15 UTC", "at must be hours and minutes, like '06:30', not '06:30:15'"),
        ("1/hour resets Europe/Berlin", "an hour begins at the same moment everywhere"),
        ("0/day resets UTC", "must be more than zero, not 0"),
        ("1/week resets fryday UTC", "'fryday UTC' cannot be read"),
        ("1/year resets 02-30 UTC", "on must be a month and a day, like '04-06', not '02-30'"),
        ({"otherwise": "1/day", "hours": {}}, "hours must be a list like"),
        ({"otherwise": "1/day", "hours": []}, "a schedule has from 1 to 50 entries, not 0"),
        ({"otherwise": "1/day", "hours": ["sat"]}, "an entry of hours is one key with limits or a factor, like"),
        ({"otherwise": "1/day", "hours": [{"sat": 1, "sun": 1}]}, "an entry of hours is one key"),
        ({"otherwise": "1/day", "hours": [{"fry": 1}]}, "hours 'fry' cannot be read"),
        ({"otherwise": "1/day", "hours": [{"sat": 0}]}, "the factor of 'sat' must be above 0"),
        ({"otherwise": "1/day", "hours": [{"sat": "5/hour"}]}, "'sat' has a limit 'hour' that otherwise= lacks"),
        ({"otherwise": "1/day", "hours": [{"sat": 2}], "tz": "Mars"}, "unknown time zone 'Mars'"),
        ({"otherwise": "1/day", "hours": [{"sat": 2}], "tz": ["UTC"]}, "tz must be the name of a time zone"),
        ({"otherwise": "1/day", "hours": [{"sat": 2}], "zone": "UTC"}, "unknown key 'zone' in a schedule"),
        ({"hours": [{"sat": 2}]}, "a schedule lacks 'otherwise'"),
    ],
)
def test_bad_limits_name_the_value_and_show_a_right_one(limits: Any, message: str) -> None:
    with pytest.raises(ValidationError) as wrong:
        Rule("search", limits=limits)
    assert message in str(wrong.value)


def test_a_cost_must_fit_at_some_hour() -> None:
    closed_at_night = {"otherwise": "10/hour", "hours": [{"22:00-06:00": "0.001/hour"}]}
    Rule("search", limits=closed_at_night, cost=10)
    for cost in (11, {"day": 1}):
        with pytest.raises(ValidationError, match=r"would refuse every request|would limit nothing"):
            Rule("search", limits=closed_at_night, cost=cost)
