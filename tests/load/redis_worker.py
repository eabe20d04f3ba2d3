"""A process of the load on Redis: tasks that hammer one limiter until stdin is closed, whatever becomes of the server.

Under `stored` limits most tasks act as entities of their own, which cascade to the hot one, some as the hot one itself,
and some as another that has nothing but the one limit. With `given` limits all act as the hot entity, and pass the
limit along, since a server that forgets everything forgets stored limits too.

A line of the journal is an operation: what it was to move, from when to when, and what came of it by the limiter's
word: done, refused, cancelled, or lost, which is that nobody knows.

Usage: redis_worker.py URL JOURNAL SEED TASKS STORE_TIMEOUT stored|given
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import time
from pathlib import Path

from headgate import Lease, Limit, RateLimiter, RateLimiterUnavailable, RateLimitExceeded

HOT, PLAIN = "hot", "plain"
# About 300 a second, and no millisecond earns a whole number of anything.
RATE = Limit.custom("rate", 1000, 2101, 7)
COSTS = (1, 1, 1, 2, 5)
PAUSE_SECONDS = 0.02


def entities_of(worker: str, task: int) -> list[str]:
    """Whom a task acts as, and the hot one above, if it is another."""
    if task % 4 == 0:
        return [HOT]
    return [PLAIN] if task % 4 == 1 else [f"{worker}.{task}", HOT]


class BodyFailed(Exception):
    pass


class Journal(logging.Handler):
    """It also hears of rollbacks that failed: they are warnings, so that the error of the body gets out."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._failed_rollbacks: set[object] = set()

    def write(self, line: dict[str, object]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("lease %s could not be rolled back"):
            assert isinstance(record.args, tuple)
            self._failed_rollbacks.add(record.args[0])

    def rolled_back(self, lease: Lease) -> bool:
        return lease.id not in self._failed_rollbacks


class Hammer:
    """One task. `limits` are those it passes along, if any."""

    def __init__(
        self,
        limiter: RateLimiter,
        journal: Journal,
        task: int,
        entities: list[str],
        limits: list[Limit] | None,
        chance: random.Random,
    ) -> None:
        self.limiter = limiter
        self.journal = journal
        self.task = task
        self.entities = entities
        self.own = len(entities) > 1
        self.limits = limits
        self.chance = chance

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            act = self.chance.choice((self.ask, self.ask, self.ask_and_cancel, self.use_a_lease))
            try:
                await act()
            except RateLimiterUnavailable:
                await asyncio.sleep(PAUSE_SECONDS)
            if self.chance.random() < 0.5:
                await asyncio.sleep(self.chance.uniform(0, PAUSE_SECONDS))

    def note(self, kind: str, amounts: dict[str, int], outcome: str, begun_ns: int) -> None:
        self.journal.write(
            {
                "task": self.task,
                "kind": kind,
                "entities": self.entities,
                "amounts": amounts,
                "outcome": outcome,
                "begun_ns": begun_ns,
                "ended_ns": time.time_ns(),
            }
        )

    async def ask(self) -> None:
        from_pool = self.own and self.chance.random() < 0.2
        amounts = {"pool": self.chance.randint(1, 3)} if from_pool else self.amounts()
        begun_ns, outcome = time.time_ns(), "lost"
        try:
            decision = await self.limiter.try_acquire(self.entities[0], "api", amounts, self.limits)
            outcome = "done" if decision else "refused"
        finally:
            self.note("take", amounts, outcome, begun_ns)

    async def ask_and_cancel(self) -> None:
        amounts = self.amounts()
        begun_ns, outcome = time.time_ns(), "lost"
        asking = asyncio.ensure_future(self.limiter.try_acquire(self.entities[0], "api", amounts, self.limits))
        await asyncio.sleep(self.chance.choice((0, 0.001, 0.003)))
        asking.cancel()
        await asyncio.wait([asking])
        try:
            outcome = "cancelled" if asking.cancelled() else "done" if asking.result() else "refused"
        finally:
            self.note("take", amounts, outcome, begun_ns)

    async def use_a_lease(self) -> None:
        held = self.amounts()
        if self.own and self.chance.random() < 0.7:
            del held["rate"]  # what is seldom refused is often given back
        begun_ns = time.time_ns()
        lease = None
        try:
            async with self.limiter.acquire(self.entities[0], "api", dict(held), self.limits) as lease:
                self.note("take", dict(held), "done", begun_ns)
                try:
                    await self.use(lease, held)
                finally:
                    begun_ns = time.time_ns()
        except RateLimitExceeded:
            self.note("take", held, "refused", begun_ns)
        except (BodyFailed, RateLimiterUnavailable) as error:
            self.note_failure(lease, held, begun_ns)
            if not isinstance(error, BodyFailed):
                raise

    async def use(self, lease: Lease, held: dict[str, int]) -> None:
        if self.own:
            await self.change_mind(lease, held)
        if self.chance.random() < 0.5:
            raise BodyFailed

    def note_failure(self, lease: Lease | None, held: dict[str, int], begun_ns: int) -> None:
        if lease is None:
            self.note("take", held, "lost", begun_ns)
            return
        back = {name: -amount for name, amount in held.items()}
        self.note("force", back, "done" if self.journal.rolled_back(lease) else "lost", begun_ns)

    async def change_mind(self, lease: Lease, held: dict[str, int]) -> None:
        """Take more or give back, and keep `held` at what may still be given back afterwards, by our own count."""
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
            begun_ns, outcome = time.time_ns(), "lost"
            try:
                await method(ledger=less if method == lease.release else delta)
                outcome = "done"
            finally:
                self.note(kind, {"ledger": delta}, outcome, begun_ns)
                # Nobody knows if it was lost: what may have been given back is not held any more.
                held["ledger"] += delta if outcome == "done" else min(delta, 0)

    def amounts(self) -> dict[str, int]:
        cost = self.chance.choice(COSTS)
        if self.limits or self.entities == [PLAIN]:
            return {"rate": cost}
        return {"rate": cost, "ledger": self.chance.randint(1, 1000) if self.own else cost}


async def main(url: str, path: Path, seed: str, tasks: int, store_timeout: float, limits: list[Limit] | None) -> None:
    journal = Journal(path)
    logger = logging.getLogger("headgate")
    logger.addHandler(journal)
    logger.propagate = False
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, stop.set)
    async with RateLimiter(url, on_unavailable="block", store_timeout=store_timeout) as limiter:
        hammers = []
        for task in range(tasks):
            entities = [HOT] if limits else entities_of(path.stem, task)
            hammers.append(Hammer(limiter, journal, task, entities, limits, random.Random(f"{seed}/{task}")))
        await asyncio.gather(*(hammer.run(stop) for hammer in hammers))


if __name__ == "__main__":
    url, path, seed, tasks, store_timeout, limits = sys.argv[1:]
    asyncio.run(main(url, Path(path), seed, int(tasks), float(store_timeout), [RATE] if limits == "given" else None))
