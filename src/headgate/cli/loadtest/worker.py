"""One worker process: so many tasks that ask, count, and ask again. Run as a module by `run`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from itertools import cycle
from pathlib import Path

from ...core.errors import RateLimiterUnavailable
from ...limiter import RateLimiter
from .counters import ADMITTED, DONE, HISTOGRAM, READY, REFUSED, SLOWEST, STAGE, UNAVAILABLE, Counters
from .histogram import place
from .load import RESOURCE, STORE_TIMEOUT_SECONDS, Load

_AWAY_SECONDS = 0.05


async def work(load: Load, counters: Counters, number: int, parent: int) -> None:
    """Until it is done or told to stop, or until `parent` is no longer there to do so."""
    mine = counters.slot(number)
    entities = cycle(range(load.entities))
    turns = load.turns(number)
    names, amounts = [load.entity(entity) for entity in range(load.entities)], load.amounts

    def over() -> bool:
        return counters.stopped or os.getppid() != parent

    async def ask() -> None:
        for _ in turns:
            if over():
                return
            entity = next(entities)
            start = time.perf_counter_ns()
            try:
                decision = await limiter.try_acquire(names[entity], RESOURCE, amounts)
            except RateLimiterUnavailable:
                mine[UNAVAILABLE] += 1
                await asyncio.sleep(_AWAY_SECONDS)
                continue
            taken = (time.perf_counter_ns() - start + 999) // 1000
            mine[ADMITTED + entity if decision else REFUSED] += 1
            mine[HISTOGRAM + place(taken)] += 1
            mine[SLOWEST] = max(mine[SLOWEST], taken)

    async with RateLimiter(load.url, namespace=load.namespace, store_timeout=STORE_TIMEOUT_SECONDS) as limiter:
        await limiter.available(names[0], RESOURCE)  # connected, limits read
        mine[STAGE] = READY
        while not counters.begun and not over():  # noqa: ASYNC110 - another process gives the sign
            await asyncio.sleep(0.002)
        await asyncio.gather(*(ask() for _ in range(load.tasks)))
        mine[STAGE] = DONE


if __name__ == "__main__":
    # Ctrl-C reaches every process of the terminal; the test says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    directory, path, worker_number, parent_pid = sys.argv[1:]
    os.chdir(directory)
    told = Load.from_json(sys.stdin.read())
    asyncio.run(work(told, Counters(Path(path), told.entities), int(worker_number), int(parent_pid)))
