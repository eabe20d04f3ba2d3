"""One process of the load: threads that hammer one limiter until stdin is closed, or until they are killed.

Each thread acts as an entity of its own, and keeps a journal: a line before an operation says what it may take,
a line after it what came of it. A written line outlives `kill -9`, so of a killed thread at most the last
operation is in doubt.

Usage: worker.py URL JOURNAL_FOLDER SEED THREADS
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from pathlib import Path

from headgate import RateLimitExceeded, SyncLease, SyncRateLimiter

TEAMS = ("red", "green", "blue")
COMPANY = "company"
LONG_ENOUGH = 60.0  # a busy file is what this load is about, not a reason to give up


class Journal:
    def __init__(self, path: Path, entities: list[str]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._entities = entities

    def intend(self, kind: str, amounts: dict[str, int]) -> None:
        self._write({"kind": kind, "entities": self._entities, "amounts": amounts, "at_ns": time.time_ns()})

    def result(self, outcome: str) -> None:
        self._write({"outcome": outcome, "at_ns": time.time_ns()})

    def _write(self, line: dict[str, object]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


class BodyFailed(Exception):
    pass


class Hammer:
    """One thread. What it takes may be refused, what it forces never is."""

    def __init__(self, limiter: SyncRateLimiter, folder: Path, number: int, chance: random.Random) -> None:
        self.limiter = limiter
        self.chance = chance
        self.entity = f"{folder.name}.{number}"
        self.team = chance.choice(TEAMS)
        self.journal = Journal(folder / f"{number}.jsonl", [self.entity, self.team, COMPANY])

    def run(self, stop: threading.Event) -> None:
        try:
            self.limiter.create_entity(self.entity, parent_id=self.team, cascade=True)
            while not stop.is_set():
                self.chance.choice((self.ask, self.use_a_lease))()
        except BaseException as error:
            self.journal.result(f"error: {error!r}")
            raise

    def ask(self) -> None:
        amounts = self.chance.choice(({"pool": self.chance.randint(1, 3)}, self.amounts()))
        self.journal.intend("take", amounts)
        decision = self.limiter.try_acquire(self.entity, "api", amounts)
        self.journal.result("done" if decision else "refused")

    def use_a_lease(self) -> None:
        amounts = self.amounts()
        self.journal.intend("take", amounts)
        entered = False
        try:
            with self.limiter.acquire(self.entity, "api", amounts) as lease:
                entered = True
                self.journal.result("done")
                held = self.change_mind(lease, amounts)
                if self.chance.random() < 0.5:
                    self.journal.intend("force", {name: -amount for name, amount in held.items()})
                    raise BodyFailed
        except BodyFailed:
            self.journal.result("done")
        except RateLimitExceeded:
            if entered:
                raise
            self.journal.result("refused")

    def change_mind(self, lease: SyncLease, amounts: dict[str, int]) -> dict[str, int]:
        """Take more or give back, and answer what the lease holds afterwards by our own count."""
        held = dict(amounts)
        for _ in range(self.chance.randint(0, 2)):
            more = self.chance.randint(1, 500)
            less = self.chance.randint(0, held["ledger"])
            method, kind, delta = self.chance.choice(
                (
                    (lease.consume, "take", more),
                    (lease.adjust, "force", more),
                    (lease.adjust, "force", -less),
                    (lease.release, "force", -less),
                )
            )
            self.journal.intend(kind, {"ledger": delta})
            method(ledger=less if method == lease.release else delta)
            self.journal.result("done")
            held["ledger"] += delta
        return held

    def amounts(self) -> dict[str, int]:
        return {"rate": self.chance.randint(1, 3), "ledger": self.chance.randint(1, 1000)}


def main(url: str, folder: str, seed: str, threads: str) -> None:
    stop = threading.Event()
    with SyncRateLimiter(url, store_timeout=LONG_ENOUGH) as limiter:
        hammers = [
            Hammer(limiter, Path(folder), number, random.Random(f"{seed}/{number}")) for number in range(int(threads))
        ]
        running = [threading.Thread(target=hammer.run, args=(stop,)) for hammer in hammers]
        for thread in running:
            thread.start()
        sys.stdin.read()
        stop.set()
        for thread in running:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
