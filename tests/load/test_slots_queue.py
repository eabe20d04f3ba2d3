"""Waiters of several processes for a few slots: how often they ask, and in which order they are served."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from load_helpers import PATIENCE_SECONDS, wait_for
from queue_worker import SLOTS
from slots_helpers import most_at_once

from headgate import SyncRateLimiter

KINDS = ("sync", "async", "sync")
WORKERS = 4  # of each process
TURNS = 400  # together
MOST_ASKS = 3


class Turn(NamedTuple):
    process: int
    joined: tuple[int, int]  # the first take: sent, answered
    granted: tuple[int, int]  # the one that passed
    asks: int
    left_ns: int


@pytest.fixture(params=["redis", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_server").url
    with SyncRateLimiter(url, store_timeout=20) as limiter:
        limiter.setup()
    return url


def turns_of(journals: Sequence[Path]) -> list[Turn]:
    return [
        Turn(number, tuple(turn["joined"]), tuple(turn["granted"]), turn["asks"], turn["left_ns"])
        for number, journal in enumerate(journals)
        if journal.exists()
        for turn in map(json.loads, journal.read_bytes().split(b"\n")[:-1])
    ]


def load(url: str, folder: Path) -> list[Turn]:
    """Every turn, of at least so many, after all processes had one."""
    program, namespace = str(Path(__file__).with_name("queue_worker.py")), uuid4().hex[:12]
    journals = [folder / f"worker-{number}.jsonl" for number in range(len(KINDS))]
    processes = [
        subprocess.Popen(
            [sys.executable, program, url, namespace, str(journal), str(WORKERS), kind], stdin=subprocess.PIPE
        )
        for journal, kind in zip(journals, KINDS)
    ]

    def counted() -> list[Turn]:
        turns = turns_of(journals)
        if len({turn.process for turn in turns}) < len(KINDS):
            return []
        begin_ns = max(min(turn.left_ns for turn in turns if turn.process == one) for one in range(len(KINDS)))
        return [turn for turn in turns if turn.joined[0] > begin_ns]

    try:
        wait_for(lambda: len(counted()) >= TURNS, f"{TURNS} turns")
    finally:
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
    assert [process.wait(PATIENCE_SECONDS) for process in processes] == [0] * len(processes)
    return sorted(counted(), key=lambda turn: turn.granted)


def overtook(turn: Turn, turns: Sequence[Turn]) -> int:
    """How many had joined for certain before it, and were served for certain after it."""
    return sum(
        other.joined[1] < turn.joined[0] and other.granted[0] > turn.granted[1] for other in turns if other is not turn
    )


def test_waiters_of_all_processes_are_served_in_order_with_few_calls(
    url: str, tmp_path: Path, record_property: Any
) -> None:
    turns = load(url, tmp_path)
    of_each = [sum(turn.process == number for turn in turns) for number in range(len(KINDS))]
    asks, seconds = sum(turn.asks for turn in turns), (turns[-1].granted[1] - turns[0].granted[1]) / 1e9
    together = most_at_once((turn.granted[1], turn.left_ns) for turn in turns)
    row = (f"{asks:,}", "0", f"{len(turns)}", "", "", f"{together} of {SLOTS}")
    record_property("load", (f"queue for slots, {url.partition(':')[0]}", f"{seconds:.1f}", "0", *row))
    assert together <= SLOTS
    assert max(turn.asks for turn in turns) <= MOST_ASKS
    # With two slots free two are called at once, and the second may be faster.
    assert max(overtook(turn, turns) for turn in turns) < SLOTS
    assert all(of_each), "of every process"
