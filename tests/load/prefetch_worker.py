"""A process that hammers one key with prefetch until stdin is closed, or until it is killed.

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

PREFETCH = 0.05
CALLERS = 4
LONG_ENOUGH = 30.0


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, began: int, decision: Any) -> None:
        outcome = "refused" if not decision else "local" if decision.local else "store"
        os.write(self._file, f"{began} {time.monotonic_ns()} {outcome}\n".encode())


async def tasks(url: str, journal: Journal, stop: threading.Event) -> None:
    async def hammer(limiter: RateLimiter) -> None:
        while not stop.is_set():
            began = time.monotonic_ns()
            decision = await limiter.try_acquire("hot", "api", {"rate": 1})
            journal.write(began, decision)
            await asyncio.sleep(0.001 if decision else 0.01)

    async with RateLimiter(url, store_timeout=LONG_ENOUGH, prefetch=PREFETCH) as limiter:
        await asyncio.gather(*(hammer(limiter) for _ in range(CALLERS)))


def threads(url: str, journal: Journal, stop: threading.Event) -> None:
    def hammer() -> None:
        while not stop.is_set():
            began = time.monotonic_ns()
            decision = limiter.try_acquire("hot", "api", {"rate": 1})
            journal.write(began, decision)
            time.sleep(0.001 if decision else 0.01)

    with SyncRateLimiter(url, store_timeout=LONG_ENOUGH, prefetch=PREFETCH) as limiter:
        crowd = [threading.Thread(target=hammer) for _ in range(CALLERS)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()


def main(url: str, path: str, kind: str) -> None:
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    journal = Journal(Path(path))
    if kind == "tasks":
        asyncio.run(tasks(url, journal, stop))
    else:
        threads(url, journal, stop)


if __name__ == "__main__":
    main(*sys.argv[1:])
