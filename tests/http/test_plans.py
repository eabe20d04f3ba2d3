"""Plans: what a caller has paid for."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from http_helpers import call, gate

from headgate import SyncRateLimiter, ValidationError
from headgate.http import plans as plans_module
from headgate.http.engine import Engine, Passed, SyncGate
from headgate.http.plans import Plans
from headgate.http.rules import Rule
from headgate.testing.servers.redis import RedisServer

RULES = (Rule("search", "/search", limits="2/minute"), Rule("all", limits="10/minute"))
PLANS = {"pro": {"search": "5/minute"}, "big": "100/minute", "mixed": {"search": "3/minute", "*": "7/minute"}}


class Time:
    """The plans' own sense of time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(plans_module.time, "monotonic", lambda: self.now)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


@pytest.mark.parametrize(
    ("plan", "search", "other"), [(None, 2, 10), ("pro", 5, 10), ("big", 100, 100), ("mixed", 3, 7), ("gone", 2, 10)]
)
@pytest.mark.parametrize("how", ["mapping", "function", "stored"])
def test_a_plan_overrides_the_rule(how: str, plan: str | None, search: int, other: int) -> None:
    of: Any = {"mapping": {"user:ann": plan} if plan else {}, "function": lambda _: plan, "stored": "stored"}[how]
    with gate(*RULES, plans=Plans(PLANS, of)) as opened:
        if how == "stored" and plan:
            opened.limiter.create_entity("user:ann", metadata={"plan": plan})
        assert sum(opened.passing(search + 1, "/search", user="ann")) == search
        assert sum(opened.passing(other + 1, "/other", user="ann")) == other


def test_a_change_of_plan_keeps_what_was_used() -> None:
    plan: dict[str, str] = {}
    with gate(*RULES, plans=Plans(PLANS, plan)) as opened:
        assert opened.passing(3, "/search", user="ann") == [True, True, False]
        plan["user:ann"] = "pro"
        assert opened.passing(4, "/search", user="ann") == [True, True, True, False], "two of the five were used"
        del plan["user:ann"]
        assert not opened.passes("/search", user="ann"), "and all of them are gone"


def test_those_without_a_plan_have_the_default() -> None:
    with gate(*RULES, plans=Plans(PLANS, {}, default="pro")) as opened:
        assert sum(opened.passing(6, "/search")) == 5


def test_an_answer_is_kept_for_its_time(time: Time) -> None:
    asked: list[str | None] = []

    def of(call: Any) -> str:
        asked.append(call.caller)
        return "pro"

    plans = Plans(PLANS, of, ttl=60)
    with gate(*RULES, plans=plans) as opened:
        opened.passing(3, "/search", user="ann")
        opened.passes("/search", user="bob")
        assert asked == ["user:ann", "user:bob"]
        time.now += 59.9
        opened.passes("/search", user="ann")
        assert len(asked) == 2
        time.now += 0.1
        opened.passing(2, "/search", user="ann")
        assert asked[2:] == ["user:ann"]
        plans.forget("user:ann")
        opened.passes("/search", user="ann")
        plans.forget()
        opened.passes("/search", user="bob")
        assert asked[3:] == ["user:ann", "user:bob"]


def test_while_one_asks_anew_the_others_go_on_with_what_was_known(time: Time) -> None:
    plans = Plans(PLANS, lambda _: "pro", ttl=60)
    with gate(*RULES, plans=plans) as opened:
        opened.passes("/search", user="ann")
        nested: list[bool] = []

        def of(call: Any) -> str:
            plans._of = lambda _: pytest.fail("asked twice")
            nested.extend(opened.passing(2, "/search", user="ann"))
            return "pro"

        plans._of = of
        time.now += 60
        assert opened.passes("/search", user="ann")
        assert nested == [True, True], "of the plan they had"


def test_a_plan_that_cannot_be_found_out_is_the_one_that_was(time: Time, caplog: pytest.LogCaptureFixture) -> None:
    fails = False

    def of(call: Any) -> str:
        if fails:
            raise OSError("the database is away")
        return "pro"

    with gate(*RULES, plans=Plans(PLANS, of, ttl=60)) as opened:
        opened.passes("/search", user="ann")
        fails = True
        time.now += 60
        assert opened.passing(5, "/search", user="ann") == [True] * 4 + [False]
        assert opened.passing(3, "/search", user="bob") == [True, True, False], "of bob nothing was known"
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2, "not one for every request"


def test_a_store_that_is_away_is_told_once_for_all_callers(caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer() as server:
        url = server.url
    caplog.set_level(logging.WARNING, "headgate")
    with SyncRateLimiter(url, on_unavailable="allow", store_timeout=0.5) as limiter:
        opened = SyncGate(Engine(limiter, RULES, plans=Plans(PLANS, "stored")))
        for number in range(30):
            assert isinstance(opened.check(call("/search", user=f"u{number}")), Passed)
    told = [record for record in caplog.records if "could not be found out" in record.getMessage()]
    assert len(told) == 1


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans_module, "_CAPACITY", 10)
    plans = Plans(PLANS, lambda call: call.caller)
    with gate(*RULES, plans=plans) as opened:
        for number in range(30):
            opened.passes(user=f"u{number}")
    assert len(plans._known) <= 10
    assert len(plans._told) <= 10


@pytest.mark.parametrize(
    "settings",
    [
        {"plans": {"pro": {"search": "5/fortnight"}}, "of": {}},
        {"plans": PLANS, "of": "database"},
        {"plans": PLANS, "of": {}, "default": "por"},
        {"plans": PLANS, "of": {}, "ttl": -1},
    ],
)
def test_mistakes_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"'pro'|of must be|'por'|ttl"):
        Plans(**settings)


def test_what_a_rule_costs_is_counted_under_what_the_plan_has() -> None:
    rule = Rule("chat", limits={"rpm": "10/minute", "tpm": "100/minute"}, cost={"rpm": 1, "tpm": 5})
    with gate(rule, plans=Plans({"small": {"chat": "rpm=2/minute"}}, lambda _: "small")) as opened:
        assert opened.passing(3) == [True, True, False]


@pytest.mark.parametrize("plan", [{"chat": "2/minute"}, {"*": "2/minute"}, {"chat": "tpm=4/minute"}])
def test_a_plan_under_which_a_rule_makes_no_sense_is_refused_at_start(plan: dict[str, str]) -> None:
    rule = Rule("chat", limits={"rpm": "10/minute", "tpm": "100/minute"}, cost={"rpm": 1, "tpm": 5})
    with pytest.raises(ValidationError, match="plan 'small'"):
        gate(rule, plans=Plans({"small": plan}, {})).__enter__()


def test_plans_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("rules: [{id: search, limits: 2/minute}]\nplans: {pro: {search: 5/minute}}\n")
    with SyncRateLimiter("memory://") as limiter:
        opened = SyncGate(Engine(limiter, file, plans={"user:ann": "pro"}))
        assert sum(isinstance(opened.check(call(user="ann")), Passed) for _ in range(7)) == 5
        assert sum(isinstance(opened.check(call(user="bob")), Passed) for _ in range(7)) == 2
        with pytest.raises(ValidationError, match=r"plans \(pro\)"):
            Engine(limiter, file)
        with pytest.raises(ValidationError, match="in the file and in plans="):
            Engine(limiter, file, plans=Plans(PLANS, {}))
