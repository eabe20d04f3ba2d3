"""A process of the load on slots: workers that take a slot and a token, hold on for a while, and give the slot back.

They work until stdin is closed, or until they are killed. The journal has a line "asking" before each acquire, one
"holding" right after it, one "leaving" right before the slot is given back: at every moment between the last two it is
certain that the worker held it. The times are CLOCK_MONOTONIC's, which is the same for all processes of a machine.

Usage: slots_worker.py URL NAMESPACE JOURNAL SEED WORKERS sync|async
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from headgate import Limit, RateLimiter, RateLimitExceeded, SyncRateLimiter

SLOTS = Limit.concurrent("slots", 10, ttl=1.5)
RATE = Limit.per_second("rate", 50, burst=10)
LIMITS = [SLOTS, RATE]
CONSUME = {"slots": 1, "rate": 1}
ENTITY, RESOURCE = "hot", "api"
MAX_WAIT_SECONDS = 1.0
LONG_ENOUGH = 60.0  # nothing is done to the store here


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, worker: int, what: str, **fields: Any) -> None:
        line = {"worker": worker, "what": what, "at_ns": time.monotonic_ns(), **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def left(self, worker: int, lease: Any) -> None:
        """`promised_ns`: until when it was known to hold the slot. Who was told that it is lost holds it no longer."""
        promised_ns = int((lease._hold.asked_at + lease._hold.ttl_seconds) * 1e9)
        self.write(worker, "leaving", lost=lease.lost, promised_ns=promised_ns)

    def close(self) -> None:
        os.close(self._file)


def pause(chance: random.Random) -> float:
    """How long one works: as a rule a moment, at times longer than a slot lasts without being renewed."""
    return chance.uniform(1.2, 1.6) * SLOTS.period_ms / 1000 if chance.random() < 0.02 else chance.uniform(0.01, 0.08)


async def task(limiter: RateLimiter, journal: Journal, worker: int, chance: random.Random) -> None:
    """Once. It may be cancelled at any moment."""
    journal.write(worker, "asking")
    try:
        async with limiter.acquire(
            ENTITY, RESOURCE, CONSUME, LIMITS, max_wait=MAX_WAIT_SECONDS, on_error="keep"
        ) as lease:
            journal.write(worker, "holding")
            try:
                await asyncio.sleep(pause(chance))
            finally:
                journal.left(worker, lease)
    except RateLimitExceeded:
        journal.write(worker, "refused")


def turn(limiter: SyncRateLimiter, journal: Journal, worker: int, chance: random.Random) -> None:
    """Once."""
    journal.write(worker, "asking")
    try:
        with limiter.acquire(ENTITY, RESOURCE, CONSUME, LIMITS, max_wait=MAX_WAIT_SECONDS) as lease:
            journal.write(worker, "holding")
            time.sleep(pause(chance))
            journal.left(worker, lease)
    except RateLimitExceeded:
        journal.write(worker, "refused")


def threads(url: str, namespace: str, journal: Journal, chances: list[random.Random]) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            while not stop.is_set():
                turn(limiter, journal, worker, chances[worker])
        except BaseException as error:
            failures.append(error)

    with SyncRateLimiter(url, namespace=namespace, store_timeout=LONG_ENOUGH) as limiter:
        running = [threading.Thread(target=work, args=(worker,)) for worker in range(len(chances))]
        for thread in running:
            thread.start()
        sys.stdin.read()
        stop.set()
        for thread in running:
            thread.join()
    if failures:
        raise failures[0]


async def tasks(url: str, namespace: str, journal: Journal, chances: list[random.Random]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, stop.set)

    async def work(worker: int) -> None:
        while not stop.is_set():
            await task(limiter, journal, worker, chances[worker])

    async with RateLimiter(url, namespace=namespace, store_timeout=LONG_ENOUGH) as limiter:
        await asyncio.gather(*(work(worker) for worker in range(len(chances))))


def main(url: str, namespace: str, path: str, seed: str, workers: str, kind: str) -> None:
    journal = Journal(Path(path))
    chances = [random.Random(f"{seed}/{worker}") for worker in range(int(workers))]
    if kind == "sync":
        threads(url, namespace, journal, chances)
    else:
        asyncio.run(tasks(url, namespace, journal, chances))


if __name__ == "__main__":
    main(*sys.argv[1:])
