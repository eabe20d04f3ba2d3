"""Plans: what a caller has paid for."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from http_helpers import call, gate

from headgate import RateLimiter, SyncRateLimiter, ValidationError
from headgate.http import Plans, tiers
from headgate.http import flights as flights_module
from headgate.http.asgi import AsgiCall
from headgate.http.engine import AsyncGate, Passed, RuleEngine, SyncGate
from headgate.http.rules import Rule
from headgate.testing.servers.process import eventually
from headgate.testing.servers.redis import RedisServer

RULES = (Rule("search", "/search", limits="2/minute"), Rule("all", limits="10/minute"))
PLANS = {"pro": {"search": "5/minute"}, "big": "100/minute", "mixed": {"search": "3/minute", "*": "7/minute"}}


class Time:
    """The plans' own sense of time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(tiers.time, "monotonic", lambda: self.now)


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
        plan["user:ann"] = "pro"
        assert not opened.passes("/search", user="ann"), "for good"


@pytest.mark.parametrize("per", ["address", "everyone"])
def test_two_plans_on_one_bucket_pass_what_the_larger_allows(per: Any) -> None:
    rule = Rule("search", "/search", per=per, limits="10/day")
    with gate(rule, plans=Plans({"pro": {"search": "20/day"}}, {"user:pro": "pro"})) as opened:
        passed = [opened.passes("/search", user=user) for _ in range(500) for user in ("free", "pro")]
        assert sum(passed) == 20
        opened.clock.advance(86_400 / 20)
        assert sum(opened.passing(10, "/search", user="pro")) == 1, "and then what time gives"


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
        assert [record.levelno for record in caplog.records] == [logging.WARNING], "not one for every request"


def test_a_store_that_is_away_is_told_once_for_all_callers(caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer() as server:
        url = server.url
    caplog.set_level(logging.WARNING, "headgate")
    with SyncRateLimiter(url, on_unavailable="allow", store_timeout=0.5) as limiter:
        opened = SyncGate(RuleEngine(limiter, RULES, plans=Plans(PLANS, "stored")))
        for number in range(30):
            assert isinstance(opened.check(call("/search", user=f"u{number}")), Passed)
    told = [record for record in caplog.records if "could not be looked up" in record.getMessage()]
    assert len(told) == 1


def test_remembered_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "_CAPACITY", 10)
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
        {"plans": PLANS, "of": {}, "timeout": 0},
        {"plans": PLANS, "of": {}, "timeout": True},
        {"plans": PLANS, "of": {}, "timeout": float("inf")},
    ],
)
def test_bad_settings_of_plans_are_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"'pro'|of must be|'por'|ttl|timeout"):
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


def test_plans_of_a_file_are_obeyed(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("rules: [{id: search, limits: 2/minute}]\nplans: {pro: {search: 5/minute}}\n")
    with SyncRateLimiter("memory://") as limiter:
        opened = SyncGate(RuleEngine(limiter, file, plans={"user:ann": "pro"}))
        assert sum(isinstance(opened.check(call(user="ann")), Passed) for _ in range(7)) == 5
        assert sum(isinstance(opened.check(call(user="bob")), Passed) for _ in range(7)) == 2
        with pytest.raises(ValidationError, match=r"plans \(pro\)"):
            RuleEngine(limiter, file)
        with pytest.raises(ValidationError, match="the file has plans, and so has plans="):
            RuleEngine(limiter, file, plans=Plans(PLANS, {}))


class Provider:
    """Answers when it is let go, and counts who asks."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []
        self.free = threading.Event()

    def __call__(self, call: Any) -> str:
        self.asked.append(call.caller)
        assert self.free.wait(30)
        return "pro"


class TestProviderThatHangs:
    """Of threads. No request waits longer than `timeout` for it."""

    def test_is_asked_once_for_many_requests_of_a_caller(self) -> None:
        provider = Provider()
        with gate(*RULES, plans=Plans(PLANS, provider, timeout=30)) as opened, ThreadPoolExecutor(50) as threads:
            asking = [threads.submit(opened.passes, "/search", user="ann") for _ in range(50)]
            eventually(lambda: bool(provider.asked), "it is asked")
            provider.free.set()
            assert sum(one.result() for one in asking) == 5, "all under the plan"
            assert provider.asked == ["user:ann"]

    def test_lets_requests_go_on_without_a_plan_and_is_heard_when_it_answers(self, caplog: Any) -> None:
        provider = Provider()
        plans = Plans(PLANS, provider, timeout=0.05)
        with gate(*RULES, plans=plans) as opened, ThreadPoolExecutor(9) as threads:
            passed = list(threads.map(lambda _: opened.passes("/search", user="ann"), range(9)))
            assert sum(passed) == 2, "the limits of the rule"
            assert provider.asked == ["user:ann"]
            provider.free.set()
            eventually(lambda: plans._known["user:ann"][1] == "pro", "the late answer is kept")
            assert sum(opened.passing(9, "/search", user="ann")) == 3, "two of five were used"
            assert provider.asked == ["user:ann"]
        assert caplog.text.count("no answer within 0.05 s") == 1

    def test_leaves_the_default_to_those_of_whom_nothing_is_known(self) -> None:
        provider = Provider()
        with gate(*RULES, plans=Plans(PLANS, provider, default="mixed", timeout=0.01)) as opened:
            assert sum(opened.passing(9, "/search")) == 3
            provider.free.set()

    def test_leaves_the_plan_that_was_known_before(self, time: Time) -> None:
        provider = Provider()
        provider.free.set()
        plans = Plans(PLANS, provider, ttl=60, timeout=0.05)
        with gate(*RULES, plans=plans) as opened:
            assert opened.passes("/search", user="ann")
            eventually(lambda: plans._known["user:ann"][1] == "pro", "it has answered, late or not")
            provider.free.clear()
            time.now += 60
            assert sum(opened.passing(9, "/search", user="ann")) == 4, "of the five of the plan"
            provider.free.set()

    def test_takes_no_more_than_so_many_threads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(flights_module, "_threads", threading.BoundedSemaphore(3))
        provider = Provider()
        with gate(*RULES, plans=Plans(PLANS, provider, timeout=0.01)) as opened:
            for number in range(9):
                assert opened.passes("/search", user=f"u{number}")
            eventually(lambda: len(provider.asked) == 3, "three are asked")
            assert opened.passes("/search", user="one-more")
            assert len(provider.asked) == 3
            provider.free.set()

    def test_is_asked_anew_after_a_while(self, monkeypatch: pytest.MonkeyPatch, time: Time) -> None:
        monkeypatch.setattr(flights_module, "GIVE_UP_SECONDS", 0.0)
        provider = Provider()
        with gate(*RULES, plans=Plans(PLANS, provider, timeout=0.01)) as opened:
            opened.passes("/search", user="ann")
            time.now += 2
            opened.passes("/search", user="ann")
            eventually(lambda: len(provider.asked) == 2, "it is asked again")
            provider.free.set()

    def test_answer_from_before_a_change_is_not_kept(self) -> None:
        provider = Provider()
        plans = Plans(PLANS, provider, timeout=0.01)
        with gate(*RULES, plans=plans) as opened:
            opened.passes("/search", user="ann")
            plans.forget("user:ann")
            provider.free.set()
            eventually(lambda: not plans._flights._running, "it has answered")
            assert plans._known.get("user:ann", (0, None))[1] is None


def test_function_is_called_with_the_context_of_the_request_in_a_thread_of_its_own() -> None:
    variable: ContextVar[str] = ContextVar("variable")
    seen: list[Any] = []

    def of(call: Any) -> str:
        seen.append((variable.get(), threading.current_thread() is threading.main_thread()))
        return "pro"

    variable.set("here")
    for timeout in (1.0, None):
        with gate(*RULES, plans=Plans(PLANS, of, timeout=timeout)) as opened:
            opened.passes("/search")
    with SyncRateLimiter("memory://") as limiter:  # as under Django
        SyncGate(RuleEngine(limiter, RULES, plans=Plans(PLANS, of)), apart=False).check(call("/search"))
    assert seen == [("here", False), ("here", True), ("here", True)]


class TestProviderOfTasks:
    @staticmethod
    def scope(user: bytes = b"ann") -> AsgiCall:
        scope = {"method": "GET", "path": "/search", "headers": [], "client": (user.decode(), 1)}
        return AsgiCall(scope)

    async def check(self, of: Any, release: Callable[[], None], times: int, timeout: float) -> int:
        async with RateLimiter("memory://") as limiter:
            opened = AsyncGate(RuleEngine(limiter, RULES, plans=Plans(PLANS, of, timeout=timeout)))
            tasks = [asyncio.create_task(opened.check(self.scope())) for _ in range(times)]
            if timeout > 1:
                await asyncio.sleep(0.01)
                release()
            passed = sum(isinstance(verdict, Passed) for verdict in await asyncio.gather(*tasks))
            release()
            await asyncio.sleep(0.01)
            return passed

    @pytest.mark.parametrize(("timeout", "passing"), [(30, 5), (0.02, 2)])
    def test_coroutine_function_is_asked_once_and_waited_for_no_longer_than_said(
        self, timeout: float, passing: int
    ) -> None:
        asked: list[str | None] = []

        async def main() -> int:
            free = asyncio.Event()

            async def of(call: Any) -> str:
                asked.append(call.caller)
                await free.wait()
                return "pro"

            return await self.check(of, free.set, 50, timeout)

        assert asyncio.run(main()) == passing
        assert len(asked) == 1

    @pytest.mark.parametrize(("timeout", "passing"), [(30, 5), (0.02, 2)])
    def test_function_that_blocks_does_not_block_the_loop(self, timeout: float, passing: int) -> None:
        provider = Provider()
        assert asyncio.run(self.check(provider, provider.free.set, 50, timeout)) == passing
        assert len(provider.asked) == 1

    def test_request_that_is_cancelled_leaves_the_question_to_the_others(self) -> None:
        async def main() -> bool:
            free = asyncio.Event()
            asked = 0

            async def of(call: Any) -> str:
                nonlocal asked
                asked += 1
                await free.wait()
                return "pro"

            async with RateLimiter("memory://") as limiter:
                opened = AsyncGate(RuleEngine(limiter, RULES, plans=Plans(PLANS, of, timeout=30)))
                first, second = (asyncio.create_task(opened.check(self.scope())) for _ in range(2))
                await asyncio.sleep(0.01)
                first.cancel()
                await asyncio.sleep(0)
                free.set()
                return isinstance(await second, Passed) and first.cancelled() and asked == 1

        assert asyncio.run(main())


def test_stored_plans_are_read_once_for_many_requests_at_once(redis_server: RedisServer) -> None:
    with SyncRateLimiter(redis_server.url, namespace="plans-once") as limiter, ThreadPoolExecutor(20) as threads:
        limiter.create_entity("user:ann", metadata={"plan": "pro"})
        reads: list[str] = []
        get_entity = limiter.get_entity

        def counted(entity_id: str) -> Any:
            reads.append(entity_id)
            return get_entity(entity_id)

        limiter.get_entity = counted  # type: ignore[method-assign]
        opened = SyncGate(RuleEngine(limiter, RULES, plans=Plans(PLANS, "stored", timeout=30)))
        verdicts = list(threads.map(lambda _: opened.check(call("/search", user="ann")), range(20)))
        assert sum(isinstance(verdict, Passed) for verdict in verdicts) == 5
        assert reads == ["user:ann"]
