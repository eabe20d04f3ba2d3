"""From a call to a verdict."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from http_helpers import call, gate
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit, RateLimiter, SyncRateLimiter, ValidationError
from headgate.http import Plans
from headgate.http.answer import HttpRefusal
from headgate.http.asgi import AsgiCall
from headgate.http.engine import AsyncGate, Passed, RuleEngine, SyncGate
from headgate.http.identity import Identity
from headgate.http.rules import Rule
from headgate.testing.servers.redis import RedisServer

LOGIN = Rule("login", "/login", method="POST", limits="2/minute")
ALL = Rule("all", limits="5/minute", also=True)


def test_callers_have_each_their_own() -> None:
    with gate(LOGIN) as opened:
        assert opened.passing(3, "/login", method="POST") == [True, True, False]
        assert opened.passes("/login", method="POST", peer="192.0.2.2")
        assert opened.passes("/login"), "another method"
        assert opened.passes("/"), "no rule"
        opened.clock.advance(30)
        assert opened.passing(2, "/login", method="POST") == [True, False]


def test_per_everyone_is_one_bucket_for_all_callers() -> None:
    with gate(Rule("all", limits="2/minute", per="everyone")) as opened:
        assert [opened.passes(user=user) for user in ("ann", "bob", "cat")] == [True, True, False]


def test_also_is_counted_with_the_rule_that_decides_all_or_nothing() -> None:
    with gate(LOGIN, ALL) as opened:
        assert opened.passing(4, "/login", method="POST") == [True, True, False, False]
        assert opened.limiter.available("address:192.0.2.1", "all", ALL.limits) == {"minute": 3}, "not for refusals"
        assert opened.passing(4) == [True, True, True, False]
        verdict = opened.check("/login", method="POST")
        assert isinstance(verdict, HttpRefusal)
        assert json.loads(verdict.body)["violated-policies"] == ["all:minute", "login:minute"]


@pytest.mark.parametrize("also", [False, True])
def test_a_shadow_counts_and_tells_and_never_refuses(also: bool) -> None:
    shadow = Rule("new", limits="1/minute", shadow=True, also=also, priority=1)
    with gate(Rule("old", limits="3/minute"), shadow) as opened:
        assert opened.passing(4) == [True, True, True, False]
        told = [event for event in opened.events if event.name == "shadow.refused"]
        assert [event.fields["rule"] for event in told] == ["new"] * 3
        assert told[0].fields["entity_id"] == "address:192.0.2.1"
        passed = opened.check(peer="192.0.2.9")
        assert isinstance(passed, Passed)
        assert dict(passed.headers)["RateLimit"] == '"minute";r=2;t=20', "of the rule in force, and not of the shadow"
    with gate(shadow) as alone:
        assert alone.passing(3) == [True] * 3
        assert alone.check() == Passed()


@pytest.mark.parametrize("cost", [3, {"minute": 3}, lambda call: int(call.params["n"]), lambda call: {"minute": 3}])
def test_cost_of_a_rule_is_what_a_request_takes(cost: Any) -> None:
    with gate(Rule("n", "/n/{n}", limits="7/minute", cost=cost)) as opened:
        assert opened.passing(3, "/n/3") == [True, True, False]


def test_a_cost_of_nothing_is_free() -> None:
    with gate(Rule("free", limits="1/minute", cost=lambda _: 0)) as opened:
        assert opened.passing(3) == [True] * 3


def test_a_rule_without_limits_uses_the_stored_ones() -> None:
    rule, dear = Rule("chat", "/chat"), Rule("dear", "/dear", cost=2)
    with gate(rule, dear) as opened:
        assert opened.passing(3, "/chat") == [False] * 3, "there are none"
        opened.limiter.set_system_defaults([Limit.per_minute("rpm", 2), Limit.per_hour("rph", 100)])
        opened.limiter.set_limits("user:ann", [Limit.per_minute("rpm", 4)], "chat")
        assert opened.passing(3, "/chat") == [True, True, False]
        assert opened.passing(5, "/chat", user="ann") == [True] * 4 + [False]
        assert opened.passing(2, "/dear") == [True, False]


def test_exempt_paths_and_callers_are_not_limited() -> None:
    def internal(call: Any) -> bool:
        return bool(call.caller == "user:root")

    with gate(Rule("all", limits="1/minute"), exempt_paths=["/health", "/static/**"], exempt=internal) as opened:
        for path in ("/health", "/static/a/b"):
            assert opened.passing(3, path) == [True] * 3
        assert opened.passing(3, "/x", user="root") == [True] * 3
        assert opened.passing(2, "//health") == [True, False], "an exemption holds for a path as it was sent"
        assert not opened.passes("/health/")


def test_slots_are_held_until_the_answer_is_sent() -> None:
    with gate(Rule("slow", limits="1 concurrent; 10/minute")) as opened:
        first = opened.check()
        assert isinstance(first, Passed)
        assert not opened.passes()
        opened.gate.end(first.leases)
        assert opened.passes()


def test_the_application_may_answer_itself() -> None:
    def teapot(call: Any, refusal: HttpRefusal) -> HttpRefusal:
        assert refusal.refused is not None
        return HttpRefusal(418, [("X-Wait", refusal.refused.retry_after_header or "")], call.path.encode())

    with gate(Rule("all", limits="1/minute"), on_refused=teapot) as opened:
        opened.passes()
        assert opened.check("/tea") == HttpRefusal(418, [("X-Wait", "60")], b"/tea")


@given(st.lists(st.sampled_from(["/a", "/b", "/a/b"]), max_size=12), st.booleans())
def test_the_short_cut_and_the_plan_say_the_same(paths: list[str], also: bool) -> None:
    rules = [Rule("a", "/a", limits="2/minute"), Rule("rest", "/**", limits="3/minute; 4/hour")]
    rules += [Rule("both", "/a/**", limits="4/minute", also=True)] if also else []

    def never(_: Any) -> bool:
        return False

    with gate(*rules) as short, gate(*rules, exempt=never) as long:
        for path in paths:
            assert _shown(short.check(path)) == _shown(long.check(path))


def _shown(verdict: Passed | HttpRefusal) -> Any:
    return verdict.headers if isinstance(verdict, Passed) else (verdict.headers, verdict.body)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class TestOnRedis:
    def test_one_call_to_the_store_whatever_is_counted(self, server: RedisServer) -> None:
        rules = [
            Rule("login", "/login", limits="10/second; 20/minute; 100/hour"),
            Rule("all", limits="50/minute", also=True),
            Rule("new", limits="1/minute", shadow=True, priority=1),
        ]
        with SyncRateLimiter(server.url) as limiter:
            opened = SyncGate(RuleEngine(limiter, rules))
            opened.check(call("/login"))
            before = server.info("commandstats")
            for _ in range(5):
                assert isinstance(opened.check(call("/login")), Passed)
            after = server.info("commandstats")
        calls = {
            name: int(str(row["calls"])) - int(str(before.get(name, {"calls": 0})["calls"]))  # type: ignore[index]
            for name, row in after.items()
        }
        scripts = sum(count for name, count in calls.items() if "eval" in name or "fcall" in name)
        assert scripts == 5

    @pytest.mark.parametrize(("policy", "status"), [("block", 503), ("allow", 200), ("local", 200)])
    def test_a_store_that_is_away(self, policy: Any, status: int) -> None:
        with RedisServer() as server:
            limiter = SyncRateLimiter(server.url, on_unavailable=policy, store_timeout=5)
            rules = [Rule("login", limits="2/minute"), Rule("new", limits="1/minute", shadow=True, priority=1)]
            opened = [SyncGate(RuleEngine(limiter, some)) for some in (rules, rules[:1])]
            for one in opened:
                assert isinstance(one.check(call(peer="192.0.2.9")), Passed)
        for one in opened:
            verdict = one.check(call())
            assert getattr(verdict, "status", 200) == status
            if isinstance(verdict, HttpRefusal):
                assert "temporary-reduced-capacity" in verdict.body.decode()
                assert ("Retry-After", "1") in verdict.headers
        limiter.close()

    @pytest.mark.parametrize(("policy", "status"), [("block", 503), ("allow", 200), ("local", 503)])
    @pytest.mark.parametrize("cost", [1, 2])
    def test_a_store_that_is_away_before_its_limits_are_read(self, policy: Any, status: int, cost: int) -> None:
        with RedisServer() as server:
            url = server.url
        with SyncRateLimiter(url, on_unavailable=policy, store_timeout=0.5) as limiter:
            verdict = SyncGate(RuleEngine(limiter, [Rule("chat", cost=cost)])).check(call())
            assert getattr(verdict, "status", 200) == status


@pytest.mark.parametrize(("policy", "status"), [("block", 503), ("allow", 200), ("local", 200)])
@pytest.mark.parametrize("rules", [[LOGIN, ALL], [ALL], [Rule("chat", cost=2)]], ids=["two", "simple", "stored limits"])
@pytest.mark.parametrize("end", ["deleted", "closed"])
def test_a_limiter_that_nobody_can_use_any_more(
    policy: Any, status: int, rules: Any, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = [status] * 3
    if policy == "local":  # in this process, as far as limits are known
        expected = [503] * 3 if rules[0].limits is None else [200, 200, 429 if len(rules) == 2 else 200]
    with SyncRateLimiter("memory://", on_unavailable=policy) as limiter:
        limiter.set_system_defaults([Limit.per_minute("rpm", 100)])
        opened = SyncGate(RuleEngine(limiter, rules))
        assert isinstance(opened.check(call("/login", "POST")), Passed)
        caplog.clear()
        if end == "deleted":
            limiter.delete_namespace("default")
        else:
            limiter.close()
        assert [getattr(opened.check(call("/login", "POST")), "status", 200) for _ in range(3)] == expected
        (record,) = caplog.records
        assert end in record.getMessage()


def test_tasks_and_functions_that_are_awaited() -> None:
    async def user(call: Any) -> str:
        await asyncio.sleep(0)
        return str(call.header("x-user"))

    async def cost(call: Any) -> int:
        await asyncio.sleep(0)
        return 2

    def scope(name: bytes) -> AsgiCall:
        return AsgiCall({"method": "GET", "path": "/x", "headers": [(b"x-user", name)], "client": ("192.0.2.1", 1)})

    async def main() -> list[bool]:
        async with RateLimiter("memory://") as limiter:
            rules = [Rule("all", limits="4/minute", cost=cost)]
            opened = AsyncGate(RuleEngine(limiter, rules, identity=Identity(user=user)))
            return [isinstance(await opened.check(scope(name)), Passed) for name in (b"ann", b"ann", b"ann", b"bob")]

    assert asyncio.run(main()) == [True, True, False, True]


async def nothing(call: Any) -> Any: ...


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"identity": Identity(address=nothing)}, "identity"),
        ({"plans": Plans({}, nothing)}, "plans"),
        ({"exempt": nothing}, "exempt"),
        ({"rules": [Rule("x", limits="1/minute", cost=nothing)]}, "rule 'x'"),
    ],
)
def test_coroutine_functions_are_refused_for_threads(settings: dict[str, Any], named: str) -> None:
    with SyncRateLimiter("memory://") as limiter, pytest.raises(ValidationError, match=named):
        SyncGate(RuleEngine(limiter, **settings))


def test_each_gate_has_its_limiter() -> None:
    with SyncRateLimiter("memory://") as limiter, pytest.raises(ValidationError, match="RateLimiter here"):
        AsyncGate(RuleEngine(limiter, []))  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="SyncRateLimiter here"):
        SyncGate(RuleEngine(RateLimiter("memory://"), []))  # type: ignore[arg-type]
