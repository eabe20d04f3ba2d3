"""A process whose workers wait for slots in turns, and note how each was had.

They go on until stdin is closed. A line of the journal is one turn, its times by CLOCK_MONOTONIC, which is the same for
all processes of a machine: when the take was first sent and answered, when the one that passed was, when the slot was
given back, and how often it was asked for.

Usage: queue_worker.py URL NAMESPACE JOURNAL WORKERS sync|async
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headgate import Limit, RateLimiter, SyncRateLimiter
from headgate.core.decide import TAKE, Request

SLOTS = 2
LIMITS = [Limit.concurrent("slots", SLOTS, ttl=60)]
WISH: Any = ("hot", "api", {"slots": 1}, LIMITS)
HOLD_SECONDS = 0.004
LONG_ENOUGH = 60.0


class Notes:
    """What the store was asked, by lease."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._asked: dict[str, list[tuple[int, int]]] = {}

    def asked(self, batch: Sequence[Request], sent_ns: int) -> None:
        for request in batch:
            if request.mode is TAKE:
                self._asked.setdefault(request.lease_id, []).append((sent_ns, time.monotonic_ns()))

    def left(self, lease: Any) -> None:
        asked = self._asked.pop(lease._hold.lease_id)
        turn = {"joined": asked[0], "granted": asked[-1], "asks": len(asked), "left_ns": time.monotonic_ns()}
        os.write(self._file, json.dumps(turn).encode() + b"\n")


def threads(url: str, namespace: str, notes: Notes, workers: int) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with limiter.acquire(*WISH, max_wait=LONG_ENOUGH) as lease:
                time.sleep(HOLD_SECONDS)
                notes.left(lease)

    with SyncRateLimiter(url, namespace=namespace, store_timeout=LONG_ENOUGH) as limiter:
        settle = limiter.engine.store.settle

        def noted(batch: Sequence[Request], now_ms: int | None) -> Any:
            sent_ns = time.monotonic_ns()
            answers = settle(batch, now_ms)
            notes.asked(batch, sent_ns)
            return answers

        limiter.engine.store.settle = noted  # type: ignore[method-assign]
        limiter.engine.wire()
        running = [threading.Thread(target=work) for _ in range(workers)]
        for thread in running:
            thread.start()
        sys.stdin.read()
        stop.set()
        for thread in running:
            thread.join()


async def tasks(url: str, namespace: str, notes: Notes, workers: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, stop.set)

    async def work() -> None:
        while not stop.is_set():
            async with limiter.acquire(*WISH, max_wait=LONG_ENOUGH) as lease:
                await asyncio.sleep(HOLD_SECONDS)
                notes.left(lease)

    async with RateLimiter(url, namespace=namespace, store_timeout=LONG_ENOUGH) as limiter:
        store: Any = limiter.engine.store
        settle = store.settle

        async def noted(batch: Sequence[Request], now_ms: int | None) -> Any:
            sent_ns = time.monotonic_ns()
            answers = await settle(batch, now_ms)
            notes.asked(batch, sent_ns)
            return answers

        store.settle = noted
        store.start = lambda *_: False  # so that every batch is settled, and noted
        limiter.engine.wire()
        await asyncio.gather(*(work() for _ in range(workers)))


def main(url: str, namespace: str, path: str, workers: str, kind: str) -> None:
    notes = Notes(Path(path))
    if kind == "sync":
        threads(url, namespace, notes, int(workers))
    else:
        asyncio.run(tasks(url, namespace, notes, int(workers)))


if __name__ == "__main__":
    main(*sys.argv[1:])
