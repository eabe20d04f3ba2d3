"""A rule that cannot be obeyed lets nothing pass, and takes no other rule with it."""

from __future__ import annotations

import asyncio
import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from http_helpers import Gate, call, gate
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit, RateLimiter, SyncRateLimiter, ValidationError, register_store
from headgate.core.decide import TAKE
from headgate.http import failures as failures_module
from headgate.http.answer import HttpRefusal
from headgate.http.asgi import AsgiCall
from headgate.http.engine import AsyncGate, Passed, RuleEngine, SyncGate
from headgate.http.rules import Rule
from headgate.stores.memory.store import MemoryStore
from headgate.testing.servers.redis import RedisServer

BAD = [
    -1,
    -0.001,
    0.0001,
    math.nan,
    math.inf,
    -math.inf,
    True,
    10**13,
    10**5000,
    1e300,
    Decimal("NaN"),
    Decimal("sNaN"),
    Decimal("1e999999999"),
    Decimal("1e-999999999"),
    Fraction(1, 3),
    "1",
    "sk-a-secret",
    None,
    [],
    {},
    {"minute": -1},
    {"minute": True},
    {"minute": None},
    {7: 1},
]


def batch_size(call: Any) -> int:
    """The cost function of docs/rules.md."""
    return int(call.header("x-batch-size") or 1)


def statuses(opened: Gate, times: int, path: str = "/", **of_call: Any) -> list[int]:
    return [status(opened.check(path, **of_call)) for _ in range(times)]


def status(verdict: Passed | HttpRefusal) -> int:
    return verdict.status if isinstance(verdict, HttpRefusal) else 200


def misconfigured(opened: Gate) -> list[tuple[str, str]]:
    found = [event for event in opened.events if event.name == "rule.misconfigured"]
    return [(event.fields["rule"], event.fields["cause"]) for event in found]


class TestBadCosts:
    @pytest.mark.parametrize("sent", ["-1", "-1000", "many", "1e3", "10" * 20, ""])
    def test_header_that_is_no_cost_is_the_fault_of_the_request(self, sent: str) -> None:
        with gate(Rule("batch", limits="1000/minute", cost=batch_size)) as opened:
            verdict = opened.check(x_batch_size=sent)
            assert status(verdict) == (400 if sent else 200)
            assert statuses(opened, 3, x_batch_size="500") == [200] * (2 - (not sent)) + [429] * (1 + (not sent))

    @pytest.mark.parametrize("cost", BAD, ids=lambda cost: type(cost).__name__)
    def test_cost_that_does_not_validate_is_rejected_with_rule_and_reason(self, cost: Any) -> None:
        with gate(Rule("batch", limits="10/minute", cost=lambda _: cost)) as opened:
            verdict = opened.check()
            assert isinstance(verdict, HttpRefusal)
            assert verdict.status == 400
            assert dict(verdict.headers)["Content-Type"] == "application/problem+json"
            problem = json.loads(verdict.body)
            assert problem["rule"] == "batch"
            assert "cost" in problem["detail"]
            assert "secret" not in verdict.body.decode()
            assert len(verdict.body) < 1000
            assert opened.limiter.available("address:192.0.2.1", "batch", [Limit.per_minute("minute", 10)]) == {
                "minute": 10
            }

    def test_cost_function_that_raises_is_a_bad_cost_and_its_words_stay_here(self) -> None:
        def cost(call: Any) -> int:
            raise ConnectionError("postgresql://me:secret@db is away")

        with gate(Rule("batch", limits="10/minute", cost=cost)) as opened:
            verdict = opened.check()
            assert isinstance(verdict, HttpRefusal)
            assert verdict.status == 400
            assert b"secret" not in verdict.body
            (event,) = [event for event in opened.events if event.name == "rule.bad_cost"]
            assert event.fields["cause"] == "cost_raised"
            assert "ConnectionError" in event.fields["why"]

    @pytest.mark.parametrize(("bad_cost", "passing"), [(1, 10), (5, 2), (0, 12), ({"minute": 4}, 2)])
    def test_rule_may_charge_something_else_instead(self, bad_cost: Any, passing: int) -> None:
        with gate(Rule("batch", limits="10/minute", cost=batch_size, bad_cost=bad_cost)) as opened:
            assert sum(opened.passing(12, x_batch_size="-1")) == passing

    def test_other_rules_are_obeyed_and_charged(self) -> None:
        rules = [Rule("batch", limits="99/minute", cost=batch_size), Rule("all", limits="2/minute", also=True)]
        with gate(*rules) as opened:
            assert statuses(opened, 3, x_batch_size="-1") == [400, 400, 429]

    def test_shadow_with_a_bad_cost_blocks_nothing_and_is_reported(self) -> None:
        shadow = Rule("new", limits="99/minute", cost=batch_size, shadow=True, priority=1)
        with gate(shadow, Rule("old", limits="2/minute")) as opened:
            assert statuses(opened, 3, x_batch_size="-1") == [200, 200, 429]
            assert [event.fields["rule"] for event in opened.events if event.name == "rule.bad_cost"] == ["new"]

    @pytest.mark.parametrize("cost", [0, 0.0, Decimal(0), {"minute": 0}])
    def test_cost_of_zero_passes_unless_the_limit_is_in_debt(self, cost: Any) -> None:
        limits = [Limit.per_minute("minute", 1)]
        with gate(Rule("free", limits="1/minute", cost=lambda _: cost)) as opened:
            assert statuses(opened, 3) == [200] * 3
            opened.limiter.adjust("address:192.0.2.1", "free", {"minute": 2}, limits)
            assert statuses(opened, 2) == [429] * 2
        with gate(Rule("free", limits="1/minute", cost=0)) as opened:
            assert statuses(opened, 3) == [200] * 3

    @pytest.mark.parametrize("stored", [False, True])
    def test_part_of_a_slot_is_a_bad_cost(self, stored: bool) -> None:
        with gate(Rule("slow", limits=None if stored else "3 concurrent", cost=lambda _: 1.5)) as opened:
            opened.limiter.set_system_defaults([Limit.concurrent("concurrent", 3)])
            assert statuses(opened, 2) == [400, 400]

    @given(st.one_of(st.floats(), st.integers(), st.booleans(), st.none(), st.text(max_size=3), st.decimals()))
    def test_no_cost_passes_uncounted(self, cost: Any) -> None:
        with gate(Rule("batch", limits="100/minute", cost=lambda _: cost)) as opened:
            verdict = opened.check()
            left = opened.limiter.available("address:192.0.2.1", "batch", [Limit.per_minute("minute", 100)])["minute"]
            if isinstance(verdict, Passed):
                assert not isinstance(cost, bool)
                assert left == math.floor(100 - cost)
            else:
                assert left == 100

    def test_cost_by_a_coroutine_function_is_awaited_and_checked(self) -> None:
        async def cost(call: Any) -> int:
            return int(call.header("x-batch-size") or 1)

        def scope(size: bytes) -> AsgiCall:
            headers = [(b"x-batch-size", size)]
            return AsgiCall({"method": "GET", "path": "/x", "headers": headers, "client": ("192.0.2.1", 1)})

        async def main() -> list[int]:
            async with RateLimiter("memory://") as limiter:
                opened = AsyncGate(RuleEngine(limiter, [Rule("batch", limits="4/minute", cost=cost)]))
                return [status(await opened.check(scope(size))) for size in (b"-1", b"x", b"4", b"1")]

        assert asyncio.run(main()) == [400, 400, 200, 429]


CHAT = Rule("chat", cost={"rpm": 1, "tpm": 5})


class TestMisconfiguredRules:
    """Each answers as the outage policy says, for itself alone."""

    @pytest.mark.parametrize(("policy", "expected"), [("block", [503] * 3), ("allow", [200] * 3), ("local", [503] * 3)])
    @pytest.mark.parametrize("cost", [1, 2, lambda _: 2, {"rpm": 1}])
    def test_rule_without_stored_limits_follows_the_outage_policy(
        self, policy: Any, expected: list[int], cost: Any
    ) -> None:
        with gate(Rule("chat", cost=cost), on_unavailable=policy) as opened:
            assert statuses(opened, 3) == expected
            assert misconfigured(opened) == [("chat", "no_limits")]

    def test_limits_of_an_entity_that_lack_one_of_the_cost_let_no_more_pass(self) -> None:
        with gate(CHAT) as opened:
            opened.limiter.set_resource_defaults("chat", [Limit.per_minute("rpm", 2), Limit.per_minute("tpm", 1000)])
            assert sum(opened.passing(40, user="bob")) == 2
            opened.limiter.set_limits("user:ann", [Limit.per_minute("rpm", 2)], "chat")
            assert sum(opened.passing(40, user="ann")) <= 2, "it has no tpm, or that of everyone"

    @pytest.mark.parametrize("policy", ["block", "allow", "local"])
    def test_cost_of_a_limit_that_is_not_there(self, policy: Any) -> None:
        with gate(CHAT, Rule("all", limits="3/minute", also=True), on_unavailable=policy) as opened:
            opened.limiter.set_resource_defaults("chat", [Limit.per_minute("rpm", 2)])
            expected = [200 if policy == "allow" else 503] * 3 + [429]
            assert statuses(opened, 4) == expected, "the other rule goes on"
            assert misconfigured(opened) == [("chat", "unknown_limit")]

    @pytest.mark.parametrize(
        ("also", "policy", "first"), [(True, "block", 503), (True, "allow", 200), (False, "block", 200)]
    )
    def test_shadow_or_also_rule_without_stored_limits_takes_no_other_with_it(
        self, also: bool, policy: Any, first: int
    ) -> None:
        broken = Rule("broken", also=also, shadow=not also, priority=1)
        with gate(broken, Rule("login", limits="2/minute"), on_unavailable=policy) as opened:
            assert statuses(opened, 4) == [first, first, 429, 429]
            assert misconfigured(opened) == [("broken", "no_limits")]

    @pytest.mark.parametrize("policy", ["block", "allow"])
    def test_what_others_took_is_taken_once(self, policy: Any) -> None:
        rules = [Rule("a", also=True), Rule("b", limits="9/minute", also=True), Rule("c", limits="9/minute")]
        rules += [Rule("d", limits="9/minute", shadow=True, priority=1)]
        with gate(*rules, on_unavailable=policy) as opened:
            statuses(opened, 2)
            for id in "bcd":
                left = opened.limiter.available("address:192.0.2.1", id, [Limit.per_minute("minute", 9)])
                assert left == {"minute": 7}, id

    def test_slots_are_given_back_when_another_rule_answers_503(self) -> None:
        with gate(Rule("broken", also=True), Rule("slow", limits="1 concurrent")) as opened:
            assert statuses(opened, 3) == [503] * 3

    def test_function_that_names_only_unknown_limits(self) -> None:
        with gate(Rule("chat", limits="5/minute", cost=lambda _: {"hour": 1})) as opened:
            assert statuses(opened, 2) == [503] * 2
            assert misconfigured(opened) == [("chat", "unknown_limit")]

    def test_rule_with_a_missing_parent_fails_and_others_still_count(self) -> None:
        with gate(Rule("chat", limits="9/minute"), Rule("all", limits="1/minute", per="everyone", also=True)) as opened:
            opened.limiter.create_entity("team")
            opened.limiter.create_entity("user:ann", parent_id="team", cascade=True)
            _forget_entity(opened.limiter, "team")
            assert statuses(opened, 2, user="ann") == [503, 429]
            assert misconfigured(opened) == [("chat", "entity")]

    @pytest.mark.parametrize("end", ["deleted", "closed"])
    def test_under_local_the_process_decides_alone(self, end: str) -> None:
        rules = [Rule("login", "/login", limits="2/minute"), Rule("stored", "/stored")]
        with gate(*rules, on_unavailable="local") as opened:
            opened.limiter.set_system_defaults([Limit.per_minute("rpm", 9)])
            assert statuses(opened, 1, "/login") == statuses(opened, 1, "/stored") == [200]
            if end == "deleted":
                opened.limiter.delete_namespace("default")
            else:
                opened.limiter.close()
            assert statuses(opened, 3, "/login") == [200, 200, 429], "on its share, which begins full"
            assert statuses(opened, 2, "/stored") == [503, 503], "there is no limit to share"

    def test_each_cause_is_reported_every_minute_with_how_often_it_was(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        now = 1000.0
        monkeypatch.setattr(failures_module, "monotonic", lambda: now)
        with gate(Rule("chat", "/chat"), Rule("cost", "/cost", limits="9/minute", cost=batch_size)) as opened:
            for _ in range(3):
                statuses(opened, 5, "/chat")
                statuses(opened, 5, "/cost", x_batch_size="-1")
                now += 61
            told = [(event.fields["rule"], event.fields["times"]) for event in opened.events if "rule." in event.name]
            assert told == [("chat", 1), ("cost", 1)] + [("chat", 5), ("cost", 5)] * 2
        lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(lines) == 3
        assert all("chat" in line and "no limits are configured" in line for line in lines)

    def test_mended_configuration_is_obeyed_at_once_where_the_cache_allows(self) -> None:
        with gate(Rule("chat")) as opened:
            assert statuses(opened, 1) == [503]
            opened.limiter.set_system_defaults([Limit.per_minute("rpm", 2)])
            assert statuses(opened, 3) == [200, 200, 429]


def _forget_entity(limiter: SyncRateLimiter, entity_id: str) -> None:
    """As if another program had removed the parent: delete_entity would not."""
    from headgate.core.names import StoredId
    from headgate.core.records import Delete
    from headgate.limiter import keys
    from headgate.plan import WriteRecords

    limiter.engine.perform(WriteRecords([Delete(keys.entity_key(limiter.namespace, StoredId(entity_id)))]))
    limiter.invalidate_config_cache()


KINDS: dict[str, dict[str, Any]] = {
    "sound": {"limits": "1000/day"},
    "no limits": {},
    "unknown limit": {"cost": {"tpm": 1}},
    "unknown name": {"limits": "1000/day", "cost": lambda _: {"tpm": 1}},
    "bad cost": {"limits": "1000/day", "cost": lambda _: -1},
    "raises": {"limits": "1000/day", "cost": lambda _: 1 // 0},
    "charged otherwise": {"limits": "1000/day", "cost": lambda _: -1, "bad_cost": 1},
}


@given(
    st.lists(st.tuples(st.sampled_from([*KINDS, "sound"]), st.booleans()), min_size=1, max_size=6),
    st.sampled_from(["block", "allow", "local"]),
    st.integers(1, 3),
)
def test_every_sound_rule_is_charged_once_for_each_request(kinds: Any, policy: Any, times: int) -> None:
    rules = [Rule(f"r{at}", also=True, shadow=off, **KINDS[kind]) for at, (kind, off) in enumerate(kinds)]
    felt = {kind for kind, shadow in kinds if not shadow}
    expected = 503 if felt & {"no limits", "unknown limit", "unknown name"} and policy != "allow" else 200
    expected = 400 if felt & {"bad cost", "raises"} else expected
    with gate(*rules, on_unavailable=policy) as opened:
        if kinds[0][0] == "unknown limit":
            opened.limiter.set_resource_defaults("r0", [Limit.per_day("rpm", 5)])
        assert statuses(opened, times) == [expected] * times
        for rule, (kind, _) in zip(rules, kinds):
            if rule.limits is not None:
                left = opened.limiter.available("address:192.0.2.1", rule.id, rule.limits)["day"]
                assert left == 1000 - times * (kind in ("sound", "charged otherwise")), rule.id


class HalfDone(MemoryStore):
    """Takes, and then says that it may not. Looking is allowed."""

    in_process = False
    denies = False

    def settle(self, batch: Any, now_ms: int | None) -> list[Any]:
        answers = super().settle(batch, now_ms)
        if self.denies and any(request.mode is TAKE for request in batch):
            raise ValidationError("the table may not be written any more")
        return answers


@pytest.mark.parametrize("policy", ["block", "allow"])
def test_error_after_something_was_taken_does_not_take_it_twice(policy: Any) -> None:
    store = HalfDone()
    register_store("half", lambda url, timeout: store)
    rules = [Rule("a", limits="9/day", also=True), Rule("b", limits="9/day"), Rule("c", limits="9/day", shadow=True)]
    with SyncRateLimiter("half://x", on_unavailable=policy) as limiter:
        opened = SyncGate(RuleEngine(limiter, rules))
        assert status(opened.check(call())) == 200
        store.denies = True
        assert status(opened.check(call())) == (503 if policy == "block" else 200)
        store.denies = False
        for id in "ab":
            assert limiter.available("address:192.0.2.1", id, rules[0].limits) == {"day": 7}


LOGIN = Rule("login", limits="2/minute")
WITHOUT_SETUP: dict[str, Any] = {"one": [LOGIN], "several": [LOGIN, Rule("all", limits="9/day", also=True)]}
WITHOUT_SETUP["stored"] = "stored"


class TestStoreThatWasNeverSetUp:
    """A missing table is no outage, and no free pass."""

    @pytest.fixture
    def url(self, request: pytest.FixtureRequest) -> str:
        if request.param == "postgres":
            return f"{request.getfixturevalue('postgres_server').url}?schema=never_set_up"
        return str(request.getfixturevalue("ministack").url("never-set-up"))

    @pytest.mark.usefixtures("aws_credentials")
    @pytest.mark.parametrize("url", ["postgres", "dynamodb"], indirect=True)
    @pytest.mark.parametrize("policy", ["block", "allow", "local"])
    @pytest.mark.parametrize("rules", WITHOUT_SETUP)
    def test_answers_as_the_outage_policy_says(self, url: str, policy: Any, rules: str) -> None:
        expected = {"block": [503] * 3, "allow": [200] * 3, "local": [200, 200, 429]}[policy]
        if rules == "stored" and policy == "local":
            expected = [200] * 3  # as in an outage: there are no rules to go by
        events: list[Any] = []
        with SyncRateLimiter(url, store_timeout=5, on_event=events.append) as limiter:
            opened = SyncGate(RuleEngine(limiter, WITHOUT_SETUP[rules], on_unavailable=policy))
            assert [status(opened.check(call())) for _ in range(3)] == expected
        assert {event.fields["cause"] for event in events if event.name == "rule.misconfigured"} == {"store"}


@pytest.mark.parametrize("policy", ["block", "allow", "local"])
@pytest.mark.parametrize("rules", WITHOUT_SETUP)
def test_store_that_rejects_headgate_lets_nothing_pass(redis_server: RedisServer, policy: Any, rules: str) -> None:
    """Not even under "allow": a wrong password or database is no outage, and does not end by itself."""
    url = redis_server.url.replace("/0", "/16")
    events: list[Any] = []
    with SyncRateLimiter(url, store_timeout=5, on_event=events.append) as limiter:
        opened = SyncGate(RuleEngine(limiter, WITHOUT_SETUP[rules], on_unavailable=policy))
        assert [status(opened.check(call())) for _ in range(3)] == [503] * 3
    (told,) = [event.fields for event in events if event.name == "rule.misconfigured"]
    assert (told["cause"], told["effect"]) == ("store", "requests are answered 503")


@pytest.mark.parametrize("bad", [-1, "reject it", True, None, {}, {"minute": -1}, math.nan, 11, lambda _: 1])
def test_bad_cost_of_a_rule_is_checked(bad: Any) -> None:
    with pytest.raises(ValidationError, match=r"bad_cost|cost"):
        Rule("batch", limits="10/minute", cost=batch_size, bad_cost=bad)
