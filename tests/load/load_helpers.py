"""Starting and killing workers, and the arithmetic of what their journals say."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from pathlib import Path

from worker import COMPANY, TEAMS

from headgate import Limit, SyncRateLimiter

PROCESSES = THREADS = 4
PATIENCE_SECONDS = 60.0
NS_PER_MS = 1_000_000


def without_refill(name: str, capacity: int) -> Limit:
    """A thousandth of a token a year: in a test it gains nothing, so that every token can be accounted for."""
    return Limit.custom(name, capacity, 0.001, 366 * 86_400)


# About 300 and 700 a second, and no millisecond earns a whole number of anything.
TEAM_RATE = Limit.custom("rate", 30, 2101, 7)
COMPANY_RATE = Limit.custom("rate", 50, 4903, 7)
LEDGER = without_refill("ledger", 10**9)
POOL = without_refill("pool", 3000)
OWN_LIMITS = [without_refill("rate", 10**9), LEDGER, without_refill("pool", 10**9)]


def configure(url: str) -> None:
    """Threads below teams below one company. On a thread's own level nothing is refused, only counted."""
    with SyncRateLimiter(url, store_timeout=20) as limiter:
        limiter.set_resource_defaults("api", OWN_LIMITS)
        limiter.create_entity(COMPANY)
        limiter.set_limits(COMPANY, [COMPANY_RATE, LEDGER, POOL], "api")
        for team in TEAMS:
            limiter.create_entity(team, parent_id=COMPANY, cascade=True)
            limiter.set_limits(team, [TEAM_RATE, LEDGER], "api")


def missing(limiter: SyncRateLimiter, entity: str, limit: Limit) -> int:
    """Whole tokens that are gone from an entity's own bucket."""
    found = {bucket.limit.name: bucket.available for bucket in limiter.get_buckets(entity, "api")}
    return int(limit.capacity) - found.get(limit.name, int(limit.capacity))


# What the workers did


@dataclass(frozen=True)
class Operation:
    """`amounts` are taken from the thread's entity and all above it; negative ones are given back."""

    kind: str
    entities: tuple[str, ...]
    amounts: dict[str, int]
    outcome: str | None  # done, refused, or None: killed on the way
    begun_ns: int
    ended_ns: int

    def delta(self, entity: str, limit_name: str) -> int:
        return self.amounts.get(limit_name, 0) if entity in self.entities else 0


def read_journals(folder: Path) -> list[list[Operation]]:
    """The operations of every thread that began any."""
    journals = [list(_read_journal(journal)) for journal in sorted(folder.glob("*/*.jsonl"))]
    return [operations for operations in journals if operations]


def _read_journal(path: Path) -> Iterator[Operation]:
    # A last line without its end was being written at the moment of death: it does not count.
    lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    errors = [line["outcome"] for line in lines if line.get("outcome") not in ("done", "refused", None)]
    assert not errors, f"thread {path.name} of {path.parent.name} failed: {errors}"
    for number in range(0, len(lines), 2):
        intent, *rest = lines[number : number + 2]
        outcome, ended_ns = (rest[0]["outcome"], rest[0]["at_ns"]) if rest else (None, time.time_ns())
        entities = tuple(intent["entities"])
        yield Operation(intent["kind"], entities, intent["amounts"], outcome, intent["at_ns"], ended_ns)


def net(operations: Sequence[Operation], entity: str, limit_name: str) -> int:
    """What a bucket lost to all operations that happened."""
    return sum(o.delta(entity, limit_name) for o in operations if o.outcome == "done")


def clear_doubt(operations: list[Operation], limiter: SyncRateLimiter) -> list[Operation]:
    """What a thread really did. Its own buckets, which nobody else uses, say if an operation in doubt happened."""
    entity, before, last = operations[0].entities[0], operations[:-1], operations[-1]
    gone = {limit.name: missing(limiter, entity, limit) for limit in OWN_LIMITS}
    possible = [operations] if last.outcome else [before, [*before, replace(last, outcome="done")]]
    totals = [{limit.name: net(history, entity, limit.name) for limit in OWN_LIMITS} for history in possible]
    assert gone in totals, f"{entity} took {' or '.join(map(str, totals))}, and its buckets lack {gone}"
    return possible[totals.index(gone)]


def surely_admitted(moves: Sequence[Operation], entity: str, limit_name: str, begin_ns: int, end_ns: int) -> int:
    """The least that was admitted and not given back between two moments. What was forced is not admitted."""
    admitted = 0
    for move in moves:
        delta = move.delta(entity, limit_name)
        if delta < 0:
            touching = move.begun_ns <= end_ns and begin_ns <= move.ended_ns
            admitted += delta if touching else 0
        elif move.kind == "take":
            inside = begin_ns <= move.begun_ns and move.ended_ns <= end_ns
            admitted += delta if inside else 0
    return admitted


def most_allowed(limit: Limit, begin_ns: int, end_ns: int) -> Fraction:
    """capacity + rate x elapsed. The limiter reads whole milliseconds: an interval may seem one longer than it was."""
    elapsed_ms = Fraction(end_ns - begin_ns, NS_PER_MS) + 1
    return Fraction(limit.capacity_milli, 1000) + elapsed_ms * Fraction(limit.refill_milli, 1000 * limit.period_ms)


def wrongly_refused(operations: Sequence[Operation], entity: str, limit: Limit) -> list[Operation]:
    """Refusals of what must still have been there: for a bucket without refill from which is only taken."""
    takes = sorted((o for o in operations if o.outcome == "done"), key=lambda take: take.begun_ns)
    begun_ns = [take.begun_ns for take in takes]
    taken = list(accumulate((take.delta(entity, limit.name) for take in takes), initial=0))
    return [
        refusal
        for refusal in operations
        if refusal.outcome == "refused"
        and 0 < refusal.delta(entity, limit.name) <= limit.capacity - taken[bisect(begun_ns, refusal.ended_ns)]
    ]


# The workers


class Crowd:
    """The processes of a load. Use with `with`: none outlives it."""

    def __init__(self, url: str, folder: Path, chance: random.Random) -> None:
        self._url = url
        self._folder = folder
        self._chance = chance
        self._started = 0
        self._alive: dict[Path, subprocess.Popen[bytes]] = {}
        self.killed = 0

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._alive.values():
            process.kill()
            process.communicate()

    def start(self, count: int) -> None:
        for _ in range(count):
            self._started += 1
            journals = self._folder / f"worker-{self._started}"
            journals.mkdir()
            program = str(Path(__file__).with_name("worker.py"))
            seed = self._chance.getrandbits(32)
            command = [sys.executable, program, self._url, str(journals), str(seed), str(THREADS)]
            self._alive[journals] = subprocess.Popen(command, stdin=subprocess.PIPE)

    def wait_until_busy(self) -> None:
        wait_for(lambda: all(_is_busy(journals) for journals in self._alive), "all workers to be at work")

    def kill_some(self) -> None:
        """Kill -9 a worker that is at work, now and then all of them, and start as many anew."""
        busy = [journals for journals in self._alive if _is_busy(journals)]
        count = len(busy) if self._chance.random() < 0.2 else min(1, len(busy))
        for journals in self._chance.sample(busy, count):
            process = self._alive.pop(journals)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            assert process.returncode == -signal.SIGKILL, f"{journals.name} had ended by itself: {process.returncode}"
            self.killed += 1
        self.start(count)

    def stop(self) -> None:
        for process in self._alive.values():
            assert process.stdin is not None
            process.stdin.close()
        for journals, process in self._alive.items():
            assert process.wait(PATIENCE_SECONDS) == 0, f"{journals.name} failed"
        self._alive.clear()


def _is_busy(journals: Path) -> bool:
    files = list(journals.glob("*.jsonl"))
    return len(files) == THREADS and all(os.path.getsize(file) for file in files)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS:g} s for {what}"
        time.sleep(0.01)
