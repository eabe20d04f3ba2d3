"""Histories: processes take and give back at random while processes, networks and stores fail at random.

Whatever happens, in every window of the history what was granted net is at most capacity + rate x time. How that is
checked, and what the bounds of each grant are, is in history_check.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from history_check import NS_PER_MS, Move, worst_window
from history_faults import Crowd, Stage, dynamodb_stage, postgres_stage, prepare, redis_stage, sqlite_stage
from history_worker import CHILDREN, PARENT, RATE

STRESS = os.environ.get("HEADGATE_STRESS") == "1"
ROUNDS = 6 if STRESS else 1
CALM_SECONDS = 1.0  # before the first fault nothing is in doubt, and one token too much is found
# A call that nobody has an answer to is done by then, or never: the longest pause of a server, and much more.
DOUBT_NS = 8_000 * NS_PER_MS
Record = Callable[[str, object], None]


@pytest.fixture(params=["sqlite", "redis", "postgres", "dynamodb"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        if request.param == "sqlite":
            stage = stack.enter_context(sqlite_stage(tmp_path))
        elif request.param == "dynamodb":
            request.getfixturevalue("aws_credentials")
            stage = stack.enter_context(dynamodb_stage(request.getfixturevalue("ministack")))
        else:
            request.getfixturevalue(f"{request.param}_installed")
            stage = stack.enter_context({"redis": redis_stage, "postgres": postgres_stage}[request.param]())
        prepare(stage)
        yield stage


@pytest.mark.timeout(600 if STRESS else 120)
@pytest.mark.parametrize("seed", [1, 2] if STRESS else [1])
def test_no_window_of_any_history_has_more_than_the_limit_allows(
    stage: Stage, seed: int, tmp_path: Path, record_property: Record, request: pytest.FixtureRequest
) -> None:
    chance, begun = random.Random(seed), time.monotonic()
    folder = tmp_path / "journals"
    folder.mkdir()
    with Crowd(stage, folder, chance) as crowd:
        crowd.wait_until_busy()
        time.sleep(CALM_SECONDS)
        for _ in range(ROUNDS):
            for name in chance.sample(sorted(crowd.faults), len(crowd.faults)):
                crowd.suffer(name)
                time.sleep(chance.uniform(0.05, 0.3 if not STRESS else 1.5))
        crowd.wait_until_busy()
        crowd.stop()
    history = read(folder)
    assert history.granted > RATE.capacity, "hardly anything was granted: this proves nothing"
    found = {entity: worst_window(of, RATE, spread_ms=stage.spread_ms) for entity, of in history.moves.items()}
    worst = max(window.tokens for window in found.values() if window)
    row = (
        f"history {request.node.callspec.id}",
        f"{time.monotonic() - begun:.1f}",
        f"{crowd.suffered.total()}",
        f"{history.operations:,}",
        f"{history.unanswered:,}",
        f"{history.granted:,}",
        f"{float(-worst):.2f} less",
    )
    record_property("load", row)
    assert worst <= 0, (found, crowd.suffered)


class History:
    """What was granted and given back of each entity. `granted`: whole tokens, of all entities."""

    def __init__(self) -> None:
        self.moves: dict[str, list[Move]] = {entity: [] for entity in (PARENT, *CHILDREN)}
        self.operations = self.unanswered = self.granted = 0

    def add(self, begun: Mapping[str, Any], ended: Mapping[str, Any]) -> None:
        outcome = ended.get("outcome")
        self.operations += 1
        self.unanswered += outcome in (None, "lost")
        self.granted += begun["amount"] * (begun["kind"] == "take" and outcome == "done")
        for entity in dict.fromkeys((begun["entity"], PARENT)):
            self.moves[entity] += _moves(begun, ended)


def read(folder: Path) -> History:
    history = History()
    for path in folder.glob("*.jsonl"):
        begun: dict[int, Any] = {}
        ended: dict[int, Any] = {}
        for line in path.read_bytes().split(b"\n")[:-1]:  # a last one without its end was cut short by kill -9
            entry = json.loads(line)
            (ended if "outcome" in entry else begun)[entry["id"]] = entry
        for number, entry in begun.items():
            history.add(entry, ended.get(number, {}))
    return history


def _moves(begun: Mapping[str, Any], ended: Mapping[str, Any]) -> list[Move]:
    amount, from_ns, outcome = begun["amount"] * 1000, begun["at_ns"], ended.get("outcome")
    to_ns = ended["at_ns"] if ended else from_ns + DOUBT_NS
    granted, given_back = Move(amount, from_ns, to_ns), Move(-amount, from_ns, to_ns)
    if begun["kind"] == "back":
        return [] if outcome == "kept" else [given_back]
    if outcome == "done":
        return [granted]
    # Cancelled, interrupted or killed, it may have been taken in one window and given back in the next. Within a window
    # it comes to nothing.
    return [granted, given_back] if outcome in ("given back", None) else []
