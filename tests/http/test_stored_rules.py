"""Rules and plans that are kept in the store, and change while a program runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from http_helpers import call

from headgate import RateLimiter, SyncRateLimiter, ValidationError
from headgate.core.records import Put
from headgate.declare import apply, diff, read_limits_file
from headgate.http import Plans, load_rules, rule_set
from headgate.http.asgi import AsgiCall
from headgate.http.engine import AsyncGate, Passed, RuleEngine, SyncGate
from headgate.limiter import keys
from headgate.plan import GetRecords, WriteRecords
from headgate.testing.servers.redis import RedisServer

RULES = """\
rules:
  - {id: search, path: /search, limits: 2/minute}
  - {id: all, path: /**, limits: 10/minute}
plans:
  pro: {search: 5/minute}
"""
EVERYTHING = """\
rules:
  - {id: one, path: "/a/{name}", method: [GET, POST], limits: [5/second, 10/minute burst 20], priority: 3, cost: 2}
  - {id: two, path: /a/**/b, method: DELETE, limits: {rpm: 5/minute, tpm: 1000/minute}, cost: {rpm: 1, tpm: 100}}
  - {id: three, shadow: true, limits: "7/hour; parallel=3 concurrent"}
  - {id: four, path: /four, also: true, per: organisation}
plans:
  free: {"*": 2/minute, two: {rpm: 1/minute, tpm: 500/minute}}
  pro: {one: "second=50/second"}
"""


class Stored:
    """A namespace in a file, and somebody who changes it."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'limits.db'}"
        self.file = folder / "limits.yaml"

    def put(self, text: str, by: SyncRateLimiter | None = None) -> None:
        self.file.write_text(text)
        with SyncRateLimiter(self.url, store_timeout=20) as somebody:
            limiter = by or somebody
            apply(limiter, diff(limiter, read_limits_file(self.file), prune=True))


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [1000.0]
    monkeypatch.setattr(rule_set.time, "monotonic", lambda: now[0])

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    return pass_by


def passing(gate: SyncGate, times: int, path: str, user: str = "ann") -> int:
    return sum(isinstance(gate.check(call(path, user=user)), Passed) for _ in range(times))


def stored_gate(limiter: SyncRateLimiter, **settings: Any) -> SyncGate:
    return SyncGate(RuleEngine(limiter, "stored", **settings))


def test_stored_rules_and_plans_are_obeyed(stored: Stored) -> None:
    stored.put(RULES)
    with SyncRateLimiter(stored.url, store_timeout=20) as limiter:
        gate = stored_gate(limiter)
        limiter.create_entity("user:bob", metadata={"plan": "pro"})
        assert passing(gate, 9, "/search") == 2
        assert passing(gate, 9, "/search", "bob") == 5
        assert passing(gate, 12, "/other") == 10


def test_stored_rules_are_obeyed_by_coroutines(stored: Stored) -> None:
    stored.put(RULES)

    async def main() -> list[bool]:
        async with RateLimiter(stored.url, store_timeout=20) as limiter:
            gate = AsyncGate(RuleEngine(limiter, "stored"))
            scope = {"method": "GET", "path": "/search", "headers": [], "client": ("192.0.2.1", 1)}
            verdicts = await asyncio.gather(*(gate.check(AsgiCall(scope)) for _ in range(4)))
            return sorted(isinstance(verdict, Passed) for verdict in verdicts)

    assert asyncio.run(main()) == [False, False, True, True], "nobody passes before they are read"


def test_they_mean_what_they_mean_in_a_file(stored: Stored) -> None:
    stored.put(EVERYTHING)
    file = load_rules(stored.file)
    with SyncRateLimiter(stored.url, store_timeout=20) as limiter:
        gate = stored_gate(limiter)
        gate.check(call("/"))
        assert list(gate.engine.rules) == list(file.rules)
        assert gate.engine._rule_set.tiers is not None
        assert gate.engine._rule_set.tiers._limits == file.plans


def test_rules_that_were_removed_and_made_anew_hold(stored: Stored, later: Callable[[float], None]) -> None:
    stored.put(RULES)
    with SyncRateLimiter(stored.url, config_cache_ttl=30, store_timeout=20) as limiter:
        gate = stored_gate(limiter)
        assert passing(gate, 9, "/search") == 2
        stored.put("entities: {}")
        stored.put(RULES.replace("2/minute", "7/minute"))
        later(31)
        assert passing(gate, 9, "/search", "bob") == 7


def test_a_change_holds_after_the_time_of_the_cache(stored: Stored, later: Callable[[float], None]) -> None:
    stored.put(RULES)
    with SyncRateLimiter(stored.url, config_cache_ttl=30, store_timeout=20) as limiter:
        gate = stored_gate(limiter)
        assert passing(gate, 3, "/search") == 2
        stored.put(RULES.replace("2/minute", "6/minute"))
        later(29.9)
        assert passing(gate, 1, "/search") == 0
        later(0.1)
        assert passing(gate, 9, "/search") == 4, "what was used is kept"
        stored.put("rules: []")
        later(30)
        assert passing(gate, 99, "/search") == 99


def test_a_change_of_ones_own_holds_at_once(stored: Stored) -> None:
    stored.put(RULES)
    with SyncRateLimiter(stored.url, store_timeout=20) as limiter:
        gate = stored_gate(limiter)
        assert passing(gate, 3, "/search") == 2
        stored.put(RULES.replace("2/minute", "6/minute"), by=limiter)
        assert passing(gate, 9, "/search") == 4


def test_they_are_not_read_for_every_call(stored: Stored, later: Callable[[float], None]) -> None:
    stored.put(RULES.replace("plans:\n  pro: {search: 5/minute}\n", ""))
    with SyncRateLimiter(stored.url, store_timeout=20) as limiter:
        gate = stored_gate(limiter)
        read: list[Any] = []
        store: Any = limiter.engine.store
        get_records = store.get_records
        store.get_records = lambda keys, now_ms: (read.extend(keys), get_records(keys, now_ms))[1]
        for times in (1, 2):
            assert passing(gate, 5, "/other") == 5
            assert read.count(keys.rules_key("default")) == times
            later(60)


def test_who_has_which_plan_may_be_said_by_the_program(stored: Stored) -> None:
    stored.put(RULES)
    with SyncRateLimiter(stored.url, store_timeout=20) as limiter:
        gate = stored_gate(limiter, plans={"user:bob": "pro"})
        assert [passing(gate, 9, "/search", user) for user in ("ann", "bob")] == [2, 5]
        with pytest.raises(ValidationError, match="plans are stored with the rules"):
            stored_gate(limiter, plans=Plans({}, "stored"))

        async def of(_: Any) -> None: ...

        with pytest.raises(ValidationError, match="plans is a coroutine function"):
            stored_gate(limiter, plans=of)


def test_where_there_are_none_everything_passes(stored: Stored, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), SyncRateLimiter(stored.url, store_timeout=20) as limiter:
        assert passing(stored_gate(limiter), 99, "/search") == 99
    assert [record.getMessage() for record in caplog.records] == ["no rules are stored in 'default': everything passes"]


@pytest.mark.parametrize(
    "rules", [[{"id": "search", "path": "/search", "colour": "red"}], [{"id": "search", "limits": "2/fortnight"}]]
)
def test_stored_rules_of_a_newer_format_leave_those_known_before(
    stored: Stored, later: Callable[[float], None], caplog: pytest.LogCaptureFixture, rules: list[Any]
) -> None:
    stored.put(RULES)
    with SyncRateLimiter(stored.url, store_timeout=20) as limiter:
        knowing = stored_gate(limiter)
        assert passing(knowing, 9, "/search") == 2
        (record,) = limiter.engine.perform(GetRecords([keys.rules_key("default")]))
        assert record is not None
        limiter.engine.perform(WriteRecords([Put(record.key, {"rules": rules}, record.version)]))
        later(60)
        assert passing(knowing, 9, "/search") == 0
        assert "the previous rules apply" in caplog.text
        caplog.clear()
        assert passing(stored_gate(limiter), 9, "/search") == 0
        assert passing(stored_gate(limiter, on_unavailable="allow"), 9, "/search") == 9
        assert caplog.text.count("cause='rules'") == 2


@pytest.mark.parametrize(("policy", "status"), [("block", 503), ("allow", 200), ("local", 200)])
def test_a_store_that_is_away_before_they_are_read(policy: Any, status: int) -> None:
    with RedisServer() as server:
        url = server.url
    with SyncRateLimiter(url, on_unavailable=policy, store_timeout=0.5) as limiter:
        assert getattr(stored_gate(limiter).check(call("/")), "status", 200) == status
        assert getattr(stored_gate(limiter, on_unavailable="block").check(call("/")), "status", 200) == 503


@pytest.mark.parametrize(("policy", "status"), [("block", 503), ("allow", 200), ("local", 200)])
def test_a_namespace_that_is_deleted(
    stored: Stored, later: Callable[[float], None], caplog: pytest.LogCaptureFixture, policy: Any, status: int
) -> None:
    stored.put(RULES.replace("/**", "/other"))
    with SyncRateLimiter(stored.url, on_unavailable=policy, store_timeout=20) as limiter:
        gates = [stored_gate(limiter) for _ in range(2)]
        gates[0].check(call("/search"))
        limiter.delete_namespace("default")
        for gate in gates:
            caplog.clear()
            for _ in range(3):
                assert getattr(gate.check(call("/search", user=f"u{_}")), "status", 200) == status
                later(2)
            assert caplog.text.count("rule.misconfigured") == 1
            assert caplog.text.count("the previous rules apply") == (gate is gates[0])
        assert passing(gates[0], 3, "/") == 3, "under no rule"
        limiter.recover_namespace("default")
        later(2)
        assert [isinstance(gate.check(call("/search", user="bob")), Passed) for gate in gates] == [True, True]


def test_a_store_that_is_away_later(tmp_path: Path, later: Callable[[float], None]) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text(RULES)
    with RedisServer() as server:
        limiter = SyncRateLimiter(server.url, on_unavailable="local", store_timeout=5)
        apply(limiter, diff(limiter, read_limits_file(file)))
        gate = stored_gate(limiter, plans={})
        assert passing(gate, 1, "/search") == 1
    later(60)
    assert passing(gate, 9, "/search", "bob") == 2
    limiter.close()
