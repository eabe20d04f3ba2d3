"""A process that hammers two children of one entity with prefetch, from the first line of stdin until that is closed,
or until it is killed.

A line for each request: when it began and ended by a clock that all processes share, and what came of it.

Usage: prefetch_worker.py URL JOURNAL tasks|threads
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from headgate import RateLimiter, SyncRateLimiter

PREFETCH = 0.2
PARENT, CHILDREN = "org", ("left", "right")
CONSUME = {"rate": 1, "ledger": 2}
CALLERS = 4
LONG_ENOUGH = 30.0


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, began: int, decision: Any) -> None:
        outcome = "refused" if not decision else "local" if decision.local else "store"
        os.write(self._file, f"{began} {time.monotonic_ns()} {outcome}\n".encode())


async def tasks(url: str, journal: Journal, stop: threading.Event) -> None:
    async def hammer(child: str) -> None:
        while not stop.is_set():
            began = time.monotonic_ns()
            decision = await limiter.try_acquire(child, "api", CONSUME)
            journal.write(began, decision)
            await asyncio.sleep(0.001 if decision else 0.01)

    async with RateLimiter(url, store_timeout=LONG_ENOUGH, prefetch=PREFETCH) as limiter:
        await asyncio.gather(*(hammer(CHILDREN[number % 2]) for number in range(CALLERS)))


def threads(url: str, journal: Journal, stop: threading.Event) -> None:
    def hammer(child: str) -> None:
        while not stop.is_set():
            began = time.monotonic_ns()
            decision = limiter.try_acquire(child, "api", CONSUME)
            journal.write(began, decision)
            time.sleep(0.001 if decision else 0.01)

    with SyncRateLimiter(url, store_timeout=LONG_ENOUGH, prefetch=PREFETCH) as limiter:
        crowd = [threading.Thread(target=hammer, args=(CHILDREN[number % 2],)) for number in range(CALLERS)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()


def main(url: str, path: str, kind: str) -> None:
    journal = Journal(Path(path))
    sys.stdin.readline()
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    if kind == "tasks":
        asyncio.run(tasks(url, journal, stop))
    else:
        threads(url, journal, stop)


if __name__ == "__main__":
    main(*sys.argv[1:])
