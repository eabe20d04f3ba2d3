"""A process of a history: it takes and gives back at random until stdin is closed, or until it is killed.

A line of its journal before each operation says what it is about to do, a line after it what came of it, before the
tokens are used. Written lines outlive `kill -9`: of a killed process only what it was at is in doubt.

`tasks`: some tasks of one event loop, which are cancelled and timed out. `signals`: the main thread, in which SIGINT
raises, and which forks in the bodies of its leases.

Usage: history_worker.py URL JOURNAL SEED tasks|signals BEHIND_MS
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from headgate import Lease, Limit, RateLimiter, RateLimiterUnavailable, RateLimitExceeded, SyncRateLimiter

PARENT = "org"
CHILDREN = ("ann", "bob")
RATE = Limit.custom("rate", 20, 141, 7)  # about 20 a second
STORE_TIMEOUT = 0.5
TASKS = 4
PAUSE_SECONDS = 0.02
SELDOM = 0.002  # what leaves a debt: nothing is granted until it is repaid


class BodyFailed(Exception):
    pass


class Interrupted(BaseException):
    """What the handler of SIGINT raises."""


class Behind:
    """A clock that is some milliseconds late."""

    def __init__(self, behind_ms: int) -> None:
        self._behind_ms = behind_ms

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 - self._behind_ms


class Journal(logging.Handler):
    """It also hears of rollbacks that failed: they are warnings, so that the error of the body gets out."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._ids = count()
        self._failed: set[object] = set()
        logger = logging.getLogger("headgate")
        logger.addHandler(self)
        logger.propagate = False

    def begin(self, kind: str, entity: str, amount: int) -> int:
        number = next(self._ids)
        self._write({"id": number, "kind": kind, "entity": entity, "amount": amount, "at_ns": time.time_ns()})
        return number

    def end(self, number: int, outcome: str) -> None:
        self._write({"id": number, "outcome": outcome, "at_ns": time.time_ns()})

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("lease %s could not be rolled back"):
            assert isinstance(record.args, tuple)
            self._failed.add(record.args[0])

    def rolled_back(self, number: int, lease: Any) -> None:
        """If it failed it may land yet: it has no end."""
        if lease.id not in self._failed:
            self.end(number, "done")

    def _write(self, line: dict[str, object]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


def wish(chance: random.Random) -> tuple[str, int]:
    return chance.choice((PARENT, *CHILDREN)), chance.randint(1, 4)


class Tasks:
    def __init__(self, limiter: RateLimiter, journal: Journal, chance: random.Random) -> None:
        self.limiter = limiter
        self.journal = journal
        self.chance = chance

    async def run(self, stop: asyncio.Event) -> None:
        acts = (self.ask, self.wait, self.cancel, self.time_out, self.lease, self.lease, self.correct, self.penalize)
        while not stop.is_set():
            with suppress(RateLimiterUnavailable):
                await self.chance.choice(acts)()
            await asyncio.sleep(self.chance.uniform(0, PAUSE_SECONDS))

    async def ask(self) -> None:
        await self._take(max_wait=0)

    async def wait(self) -> None:
        await self._take(max_wait=self.chance.uniform(0, 0.3))

    async def cancel(self) -> None:
        asking = asyncio.ensure_future(self._take(max_wait=0.2))
        await asyncio.sleep(self.chance.choice((0, 0.001, 0.005, 0.05)))
        asking.cancel()
        await asyncio.wait([asking])
        if not asking.cancelled():
            asking.result()

    async def time_out(self) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._take(max_wait=0.2), self.chance.uniform(0, 0.05))

    async def _take(self, max_wait: float) -> None:
        entity, amount = wish(self.chance)
        number = self.journal.begin("take", entity, amount)
        outcome = "lost"
        try:
            decision = await self.limiter.try_acquire(entity, "api", {"rate": amount}, max_wait=max_wait)
            outcome = "done" if decision else "refused"
        except asyncio.CancelledError:
            outcome = "given back"  # before the caller hears of it
            raise
        finally:
            self.journal.end(number, outcome)

    async def lease(self) -> None:
        entity, amount = wish(self.chance)
        number = self.journal.begin("take", entity, amount)
        lease, back = None, 0
        try:
            async with self.limiter.acquire(entity, "api", {"rate": amount}) as lease:
                back = self.journal.begin("back", entity, amount)
                self.journal.end(number, "done")
                await self._use(lease, entity)
            self.journal.end(back, "kept")
        except RateLimitExceeded:
            self.journal.end(number, "refused")
        except (BodyFailed, RateLimiterUnavailable):
            if lease is None:
                self.journal.end(number, "lost")
            else:
                self.journal.rolled_back(back, lease)

    async def _use(self, lease: Lease, entity: str) -> None:
        give_back, chance = self.chance.choice((lease.release, None)), self.chance.random()
        if give_back is not None:
            number = self.journal.begin("back", entity, 1)
            await give_back(rate=1)
            self.journal.end(number, "done")
        elif chance < SELDOM:
            await lease.adjust(rate=2)  # it uses more than it was granted: nobody gains
        if chance < 0.5:
            raise BodyFailed

    async def correct(self) -> None:
        entity, amount = wish(self.chance)
        if self.chance.random() < SELDOM:
            await self.limiter.adjust(entity, "api", {"rate": amount})

    async def penalize(self) -> None:
        if self.chance.random() < SELDOM:
            await self.limiter.penalize(wish(self.chance)[0], "api", seconds=0.05, factor=0.9)


class Signals:
    """The same in the main thread, where a signal may come at any moment."""

    def __init__(self, limiter: SyncRateLimiter, journal: Journal, chance: random.Random) -> None:
        self.limiter = limiter
        self.journal = journal
        self.chance = chance
        self.process = os.getpid()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self.chance.choice((self.ask, self.ask, self.lease, self.fork))()
                time.sleep(self.chance.uniform(0, PAUSE_SECONDS))
            except (RateLimiterUnavailable, Interrupted):
                pass
            finally:
                if os.getpid() != self.process:
                    os._exit(0)

    def ask(self) -> None:
        entity, amount = wish(self.chance)
        number = self.journal.begin("take", entity, amount)
        try:
            decision = self.limiter.try_acquire(entity, "api", {"rate": amount}, max_wait=self.chance.choice((0, 0.1)))
        except RateLimiterUnavailable:
            self.journal.end(number, "lost")
            raise
        self.journal.end(number, "done" if decision else "refused")

    def lease(self, body: Callable[[], None] = lambda: None) -> None:
        entity, amount = wish(self.chance)
        number = self.journal.begin("take", entity, amount)
        lease, back = None, 0
        try:
            with self.limiter.acquire(entity, "api", {"rate": amount}) as lease:
                back = self.journal.begin("back", entity, amount)  # a signal may end the body at any moment
                self.journal.end(number, "done")
                body()
                if self.chance.random() < 0.5:
                    raise BodyFailed
            self.journal.end(back, "kept")
        except RateLimitExceeded:
            self.journal.end(number, "refused")
        except (BodyFailed, RateLimiterUnavailable):
            if os.getpid() != self.process:
                os._exit(0)
            if lease is None:
                self.journal.end(number, "lost")
            else:
                self.journal.rolled_back(back, lease)

    def fork(self) -> None:
        """Both sides may leave the body by an exception: the child's does nothing."""
        self.lease(self._fork)

    def _fork(self) -> None:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.alarm(20)
            raise BodyFailed
        os.waitpid(child, 0)


def interrupt(*_: object) -> None:
    raise Interrupted


async def run_tasks(url: str, journal: Journal, seed: str, settings: dict[str, Any]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, stop.set)
    async with RateLimiter(url, **settings) as limiter:
        tasks = [Tasks(limiter, journal, random.Random(f"{seed}/{task}")) for task in range(TASKS)]
        await asyncio.gather(*(task.run(stop) for task in tasks))


def run_signals(url: str, journal: Journal, seed: str, settings: dict[str, Any]) -> None:
    stop = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    with SyncRateLimiter(url, **settings) as limiter:
        work = Signals(limiter, journal, random.Random(seed))
        signal.signal(signal.SIGINT, interrupt)
        while not stop.is_set():
            with suppress(Interrupted):  # between two operations
                work.run(stop)


def main(url: str, path: str, seed: str, kind: str, behind_ms: str) -> None:
    settings: dict[str, Any] = {"store_timeout": STORE_TIMEOUT}
    if int(behind_ms):
        settings["clock"] = Behind(int(behind_ms))
    if kind == "tasks":
        asyncio.run(run_tasks(url, Journal(Path(path)), seed, settings))
    else:
        run_signals(url, Journal(Path(path)), seed, settings)


if __name__ == "__main__":
    main(*sys.argv[1:])
