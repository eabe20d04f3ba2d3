"""A load test while it runs: its workers, the clock it is measured by, and the sums."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import cycle
from pathlib import Path

from ...core.errors import RateLimiterUnavailable
from ...core.limit import Limit
from ...core.units import tokens_to_milli
from ...limiter import RateLimiter, SyncRateLimiter
from ...stores import open_store
from ...stores.health import ClockReading, read_clock
from ..options import remove_namespace
from ..workers import START_SECONDS, Assignment, WorkerPool
from .histogram import SIZE, place
from .load import (
    ADMITTED,
    DONE,
    HISTOGRAM,
    READY,
    REFUSED,
    RESOURCE,
    SLOWEST,
    STAGE,
    STORE_TIMEOUT_SECONDS,
    UNAVAILABLE,
    Load,
)
from .result import LoadResult, Sale

_STOP_SECONDS = 30.0
_AWAY_SECONDS = 0.05


class LoadRun:
    def __init__(self, load: Load, limits: Sequence[Limit], folder: Path) -> None:
        self._load = load
        self._limits = limits
        self._pool = WorkerPool("load test", f"{__name__}:work", load.as_json(), folder, load.width, load.workers)
        with closing(open_store(load.url, STORE_TIMEOUT_SECONDS)) as store:
            self.by_store_clock = store.own_clock and read_clock(load.url, STORE_TIMEOUT_SECONDS) is not None
            # If the store has a clock that cannot be read from here, the store still reads it in whole milliseconds.
            self._grain_ms = int(store.own_clock and not self.by_store_clock)
        with self._limiter() as limiter:
            limiter.set_system_defaults(list(limits))
        self._began: ClockReading | None = None
        self._ended: ClockReading | None = None
        self._since = 0.0

    def _limiter(self) -> SyncRateLimiter:
        return SyncRateLimiter(
            self._load.url, namespace=self._load.namespace, store_timeout=STORE_TIMEOUT_SECONDS, audit_days=0
        )

    def begin(self) -> None:
        """Start the workers, wait until all are connected, and let them ask."""
        for _ in range(self._load.workers):
            self._pool.start()
        deadline = time.monotonic() + START_SECONDS
        while not all(worker.slot[STAGE] for worker in self._pool.workers):
            self.check_alive()
            if time.monotonic() > deadline:
                raise RateLimiterUnavailable(f"not all workers of the load test started within {START_SECONDS:.0f} s")
            time.sleep(0.01)
        self._began = self._read_clock()
        self._since = time.monotonic()
        self._pool.counters.begin()

    def _read_clock(self) -> ClockReading:
        """A moment by the clock of the limits: the slowest and the fastest of several."""
        if self.by_store_clock:
            reading = read_clock(self._load.url, STORE_TIMEOUT_SECONDS)
            assert reading is not None
            return reading
        now_ms = time.time_ns() // 1_000_000
        return ClockReading(now_ms, now_ms + self._grain_ms)

    def check_alive(self) -> None:
        self._pool.check_alive()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since

    @property
    def done(self) -> bool:
        return all(worker.slot[STAGE] == DONE for worker in self._pool.workers)

    @property
    def decisions(self) -> int:
        return sum(worker.slot[REFUSED] + sum(worker.slot[ADMITTED:]) for worker in self._pool.workers)

    def stop(self) -> None:
        """Idempotent."""
        self._pool.counters.stop()
        deadline = time.monotonic() + _STOP_SECONDS
        try:
            if self._began is not None and self._ended is None:
                while not self.done and time.monotonic() < deadline and not self._pool.failed:
                    time.sleep(0.002)
                self._ended = self._read_clock()
        finally:
            self._pool.wait(deadline)

    def result(self) -> LoadResult:
        """After `stop`."""
        self.check_alive()
        assert self._began is not None
        assert self._ended is not None
        # From the slowest clock at the start to the fastest at the end: no bucket has seen more time pass.
        began_ms, ended_ms = self._began.earliest_ms, self._ended.latest_ms
        calls = [self._sum(ADMITTED + entity) for entity in range(self._load.entities)]
        milli = {name: tokens_to_milli(amount, name) for name, amount in self._load.amounts.items()}
        return LoadResult(
            load=self._load,
            elapsed_ms=ended_ms - began_ms,
            by_store_clock=self.by_store_clock,
            admitted=sum(calls),
            refused=self._sum(REFUSED),
            unavailable=self._sum(UNAVAILABLE),
            histogram=[self._sum(HISTOGRAM + index) for index in range(SIZE)],
            slowest_us=max(worker.slot[SLOWEST] for worker in self._pool.workers),
            sales=[Sale.of(limit, milli[limit.name], calls, began_ms, ended_ms) for limit in self._limits],
        )

    def _sum(self, index: int) -> int:
        return sum(worker.slot[index] for worker in self._pool.workers)

    def clean_up(self) -> None:
        """Leave nothing in the store, even if the namespace is no longer registered there."""
        with self._limiter() as limiter:
            limiter.register_namespace(self._load.namespace)
            remove_namespace(limiter)


def work(assignment: Assignment) -> None:
    """In a worker process: many tasks ask, count, and ask again."""
    asyncio.run(_work(assignment, Load.from_json(assignment.job)))


async def _work(assignment: Assignment, load: Load) -> None:
    mine = assignment.counters.slot(assignment.number)
    entities = cycle(range(load.entities))
    turns = load.turns(assignment.number)
    names, amounts = [load.entity(entity) for entity in range(load.entities)], load.amounts

    async def ask() -> None:
        for _ in turns:
            if assignment.over:
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
        await limiter.available(names[0], RESOURCE)  # connects, and reads the limits
        mine[STAGE] = READY
        while not assignment.counters.begun and not assignment.over:  # noqa: ASYNC110 - another process sets it
            await asyncio.sleep(0.002)
        await asyncio.gather(*(ask() for _ in range(load.tasks)))
        mine[STAGE] = DONE
