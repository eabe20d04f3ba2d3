"""A process of the load on DynamoDB: tasks that hammer one limiter until stdin is closed, or until they are killed.

Some tasks act as the hot entity, some as entities of their own that cascade to it, some as entities of their own that
are limited by themselves. A line of the journal before an operation says what it is to move, a line after it what came
of it. Written lines outlive `kill -9`: of a killed task only its last operation is in doubt.

Usage: dynamodb_worker.py URL JOURNAL SEED TASKS
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from itertools import count
from pathlib import Path

from headgate import RateLimiter, RateLimitExceeded

HOT = "hot"
COSTS = (1, 1, 1, 2, 5)
PAUSE_SECONDS = 0.02
LONG_ENOUGH = 60.0  # nothing is done to DynamoDB here


def entities_of(worker: str, task: int) -> list[str]:
    """Whom a task acts as, and the hot one above, if it cascades."""
    own = f"{worker}.{task}"
    return [[HOT], [own], [own, HOT], [own, HOT]][task % 4]


class BodyFailed(Exception):
    pass


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._ids = count()

    def begin(self, kind: str, entities: list[str], amounts: dict[str, int]) -> int:
        number = next(self._ids)
        intent = {"kind": kind, "entities": entities, "amounts": amounts, "begun_ns": time.time_ns()}
        self._write({"id": number, **intent})
        return number

    def end(self, number: int, outcome: str) -> None:
        self._write({"id": number, "outcome": outcome, "ended_ns": time.time_ns()})

    def _write(self, line: dict[str, object]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


class Hammer:
    """One task."""

    def __init__(self, limiter: RateLimiter, journal: Journal, entities: list[str], chance: random.Random) -> None:
        self.limiter = limiter
        self.journal = journal
        self.entities = entities
        self.chance = chance

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.chance.choice((self.ask, self.ask, self.ask_and_cancel, self.use_a_lease))()
            if self.chance.random() < 0.5:
                await asyncio.sleep(self.chance.uniform(0, PAUSE_SECONDS))

    def begin(self, kind: str, amounts: dict[str, int]) -> int:
        return self.journal.begin(kind, self.entities, amounts)

    async def ask(self) -> None:
        from_pool = len(self.entities) > 1 and self.chance.random() < 0.3
        amounts = {"pool": self.chance.randint(1, 3)} if from_pool else self.amounts()
        number = self.begin("take", amounts)
        decision = await self.limiter.try_acquire(self.entities[0], "api", amounts)
        self.journal.end(number, "done" if decision else "refused")

    async def ask_and_cancel(self) -> None:
        amounts = self.amounts()
        number = self.begin("take", amounts)
        asking = asyncio.ensure_future(self.limiter.try_acquire(self.entities[0], "api", amounts))
        await asyncio.sleep(self.chance.choice((0, 0.003, 0.01)))
        asking.cancel()
        await asyncio.wait([asking])
        self.journal.end(number, "cancelled" if asking.cancelled() else "done" if asking.result() else "refused")

    async def use_a_lease(self) -> None:
        amounts = self.amounts()
        number = self.begin("take", amounts)
        try:
            async with self.limiter.acquire(self.entities[0], "api", amounts):
                self.journal.end(number, "done")
                if self.chance.random() < 0.5:
                    number = self.begin("force", {name: -amount for name, amount in amounts.items()})
                    raise BodyFailed
        except BodyFailed:
            self.journal.end(number, "done")
        except RateLimitExceeded:
            self.journal.end(number, "refused")

    def amounts(self) -> dict[str, int]:
        return {"rate": self.chance.choice(COSTS)}


async def main(url: str, path: Path, seed: str, tasks: int) -> None:
    journal = Journal(path)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, stop.set)
    async with RateLimiter(url, store_timeout=LONG_ENOUGH) as limiter:
        hammers = [
            Hammer(limiter, journal, entities_of(path.stem, task), random.Random(f"{seed}/{task}"))
            for task in range(tasks)
        ]
        await asyncio.gather(*(hammer.run(stop) for hammer in hammers))


if __name__ == "__main__":
    url, path, seed, tasks = sys.argv[1:]
    asyncio.run(main(url, Path(path), seed, int(tasks)))
