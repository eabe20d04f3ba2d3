"""A rule whose stored state is corrupt cannot be obeyed: for that caller, and no other rule is affected."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from http_helpers import call

from headgate import RateLimiter, SyncRateLimiter
from headgate.http.answer import HttpRefusal
from headgate.http.asgi import AsgiCall
from headgate.http.engine import AsyncGate, RuleEngine, SyncGate
from headgate.http.rules import Rule
from headgate.testing import ManualClock

STRICT = Rule("strict", limits="5/minute")
WIDE = Rule("wide", limits="100/minute", also=True)
SHADOW = Rule("shadow", limits="5/minute", shadow=True, also=True)


def damaged(path: Path, rule_id: str, peer: str = "192.0.2.1") -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        key = f"default/address:{peer}#{rule_id}"
        assert connection.execute("UPDATE buckets SET period_ms = 0 WHERE key = ?", (key,)).rowcount


def statuses(gate: SyncGate, *peers: str) -> list[int]:
    verdicts = [gate.check(call(peer=peer)) for peer in peers]
    return [verdict.status if isinstance(verdict, HttpRefusal) else 200 for verdict in verdicts]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def opened(path: Path, *rules: Rule, **settings: Any) -> tuple[SyncGate, list[Any]]:
    events: list[Any] = []
    limiter = SyncRateLimiter(f"sqlite:///{path}", clock=ManualClock(), on_event=events.append)
    gate = SyncGate(RuleEngine(limiter, rules, **settings))
    gate.check(call())
    gate.check(call(peer="192.0.2.2"))
    return gate, events


@pytest.mark.parametrize("rules", [[STRICT], [STRICT, WIDE], [STRICT, WIDE, SHADOW]], ids=len)
@pytest.mark.parametrize(("policy", "expected"), [("block", 503), ("allow", 200), ("local", 200)])
def test_corrupt_rule_is_answered_as_one_that_cannot_be_obeyed(
    path: Path, rules: list[Rule], policy: Any, expected: int
) -> None:
    gate, events = opened(path, *rules, on_unavailable=policy)
    damaged(path, "strict")
    assert statuses(gate, "192.0.2.1", "192.0.2.2", "192.0.2.1") == [expected, 200, expected]
    (event,) = [event for event in events if event.name == "rule.misconfigured"]
    assert (event.fields["rule"], event.fields["cause"]) == ("strict", "corrupt")
    assert "headgate doctor --repair" in event.fields["why"]
    assert gate.engine.limiter.breaker_state == "closed"


def test_other_rules_still_refuse_and_are_charged_once(path: Path) -> None:
    gate, _ = opened(path, STRICT, Rule("two", limits="3/minute", also=True), on_unavailable="allow")
    damaged(path, "strict")
    assert statuses(gate, *["192.0.2.1"] * 4) == [200, 200, 429, 429]


def test_corrupt_shadow_changes_nothing_for_the_others(path: Path) -> None:
    gate, events = opened(path, STRICT, SHADOW)
    damaged(path, "shadow")
    assert statuses(gate, *["192.0.2.1"] * 5) == [200, 200, 200, 200, 429]
    assert [event.fields["cause"] for event in events if event.name == "rule.misconfigured"] == ["corrupt"]


def test_tasks_are_answered_alike(path: Path) -> None:
    opened(path, STRICT)
    damaged(path, "strict")

    async def check() -> list[int]:
        async with RateLimiter(f"sqlite:///{path}", clock=ManualClock()) as limiter:
            gate = AsyncGate(RuleEngine(limiter, [STRICT]))
            asked = [
                gate.check(AsgiCall({"type": "http", "method": "GET", "path": "/", "headers": [], "client": (peer, 1)}))
                for peer in ("192.0.2.1", "192.0.2.2", "192.0.2.3")
            ]
            return [one.status if isinstance(one, HttpRefusal) else 200 for one in await asyncio.gather(*asked)]

    assert asyncio.run(check()) == [503, 200, 200]
