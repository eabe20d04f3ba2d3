"""Processes that share slots and are killed, and what their journals prove: how many held one at the same time."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from load_helpers import NS_PER_MS, PATIENCE_SECONDS, most_allowed, wait_for
from slots_worker import RATE, SLOTS

PROCESSES = 4
WORKERS = 10  # of each process
KINDS = ("sync", "async")
# Clocks are read in whole milliseconds, on both ends, and the store's is not the one of the journals.
ROUNDING_NS = 5 * NS_PER_MS


@dataclass(frozen=True)
class Held:
    """A slot as its worker saw it: asked for, held from, held until."""

    asked_ns: int
    begin_ns: int
    end_ns: int
    end: str  # left, lost, killed


@dataclass(frozen=True)
class Findings:
    held: Sequence[Held]
    asked: int
    refused: int
    begin_ns: int
    end_ns: int

    def count(self, end: str) -> int:
        return sum(one.end == end for one in self.held)

    def granted(self, begin_ns: int, end_ns: int) -> int:
        """Those who asked and held between two moments."""
        return sum(begin_ns <= one.asked_ns and one.begin_ns <= end_ns for one in self.held)

    def most_at_once(self) -> int:
        """Holders that were alive at the same moment, at the worst moment."""
        return most_at_once((one.begin_ns, one.end_ns) for one in self.held)

    def most_taken(self) -> int:
        """The same, with the slots of the dead: nobody gets them before their time is over."""
        ttl_ns = SLOTS.period_ms * NS_PER_MS - ROUNDING_NS
        return most_at_once(
            (one.begin_ns, max(one.end_ns, one.asked_ns + ttl_ns) if one.end == "killed" else one.end_ns)
            for one in self.held
        )

    def most_allowed(self) -> Fraction:
        return most_allowed(RATE, self.begin_ns, self.end_ns)

    def check(self, *, tokens_came_back: bool = False) -> None:
        """`tokens_came_back`: of those who were cancelled while they waited. Then a part of the run may have more."""
        assert self.most_at_once() <= SLOTS.capacity
        assert self.most_taken() <= SLOTS.capacity
        moments = [*range(self.begin_ns, self.end_ns, 500 * NS_PER_MS), self.end_ns]
        windows = [(self.begin_ns, moment) for moment in moments]
        for window in windows if tokens_came_back else (*windows, *pairwise(moments)):
            assert self.granted(*window) <= most_allowed(RATE, *window), f"within {window}"

    def row(self, name: str, faults: int) -> tuple[str, ...]:
        """Of the table after the tests."""
        granted, allowed = len(self.held), self.most_allowed()
        seconds = (self.end_ns - self.begin_ns) / 1e9
        row = (f"slots, {name}", f"{seconds:.1f}", f"{faults}", f"{self.asked:,}", f"{self.count('killed')}")
        used = f"{float(granted / allowed):.1%}"
        return (*row, f"{granted:,}", f"{int(allowed):,}", used, f"{self.most_at_once()} of {SLOTS.capacity}")


def most_at_once(intervals: Iterable[tuple[int, int]]) -> int:
    """How many of them overlap at most. Where one ends when another begins, they do not."""
    changes = sorted(change for begin, end in intervals if begin < end for change in ((begin, 1), (end, -1)))
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def read(journals: dict[Path, int | None]) -> Findings:
    """What the journals say; with each, when its process was about to be killed."""
    lines = {path: _slot_queues(path) for path in journals}
    held = [one for path, killed_ns in journals.items() for one in _held(lines[path], killed_ns)]
    everything = [line for of_one in lines.values() for line in of_one]
    counts = {what: sum(line["what"] == what for line in everything) for what in ("asking", "refused")}
    times = [line["at_ns"] for line in everything]
    return Findings(held, counts["asking"], counts["refused"], min(times), max(times))


def _slot_queues(path: Path) -> list[dict[str, Any]]:
    # A last line without its end was being written at the moment of death: it does not count.
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def _held(lines: list[dict[str, Any]], killed_ns: int | None) -> Iterator[Held]:
    asked: dict[int, int] = {}
    holding: dict[int, int] = {}
    for line in lines:
        worker, what, at_ns = line["worker"], line["what"], line["at_ns"]
        if what == "asking":
            asked[worker] = at_ns
        elif what == "holding":
            holding[worker] = at_ns
        elif what == "leaving":
            end_ns = min(at_ns, line["promised_ns"]) if line["lost"] else at_ns
            yield Held(asked[worker], holding.pop(worker), end_ns, "lost" if line["lost"] else "left")
    for worker, begin_ns in holding.items():
        assert killed_ns is not None, "it ended by itself, and never left"
        yield Held(asked[worker], begin_ns, max(begin_ns, killed_ns), "killed")


class Crowd:
    """The processes of a load. Use with `with`: none outlives it."""

    def __init__(self, url: str, namespace: str, folder: Path, chance: random.Random) -> None:
        self._arguments = (url, namespace)
        self._folder = folder
        self._chance = chance
        self._alive: dict[Path, subprocess.Popen[bytes]] = {}
        self.journals: dict[Path, int | None] = {}
        self.killed = 0
        for _ in range(PROCESSES):
            self._start()

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._alive.values():
            process.kill()
            process.communicate()

    def _start(self) -> None:
        number = len(self.journals) + 1
        journal = self._folder / f"worker-{number}.jsonl"
        program = str(Path(__file__).with_name("slots_worker.py"))
        more = [str(journal), str(self._chance.getrandbits(32)), str(WORKERS), KINDS[number % len(KINDS)]]
        self._alive[journal] = subprocess.Popen(
            [sys.executable, program, *self._arguments, *more], stdin=subprocess.PIPE
        )
        self.journals[journal] = None

    def wait_until_busy(self) -> None:
        wait_for(lambda: len(self._doing("asking")) == PROCESSES, "every process to ask for a slot")

    def _doing(self, what: str) -> list[Path]:
        """Those that were seen doing it."""
        for journal, process in self._alive.items():
            assert process.poll() is None, f"{journal.stem} has failed"
        return [path for path in self._alive if path.exists() and f'"{what}"'.encode() in path.read_bytes()]

    def kill_one(self) -> None:
        """Kill -9 one that has held slots, and start another in its place."""
        holders = self._doing("holding")
        if holders:
            journal = self._chance.choice(holders)
            process = self._alive.pop(journal)
            self.journals[journal] = time.monotonic_ns()
            process.send_signal(signal.SIGKILL)
            process.communicate()
            assert process.returncode == -signal.SIGKILL, f"{journal.stem} had ended by itself: {process.returncode}"
            self.killed += 1
            self._start()

    def stop(self) -> None:
        for process in self._alive.values():
            assert process.stdin is not None
            process.stdin.close()
        for journal, process in self._alive.items():
            assert process.wait(PATIENCE_SECONDS) == 0, f"{journal.stem} failed"
        self._alive.clear()

    def findings(self) -> Findings:
        return read({path: killed_ns for path, killed_ns in self.journals.items() if path.exists()})
