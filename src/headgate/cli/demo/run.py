"""A demo while it runs: its workers, one of which is killed and replaced."""

from __future__ import annotations

import json
import random
import time
from contextlib import closing
from pathlib import Path

from ...limiter import SyncRateLimiter
from ...stores import open_store
from ..options import remove_namespace
from ..workers import Assignment, WorkerPool
from .state import (
    ADMITTED,
    ASKING,
    CALLS,
    COSTS,
    FIRST_MS,
    LAST_MS,
    REFUSED,
    RPM,
    TPM,
    WIDTH,
    DemoResult,
    DemoState,
    Kill,
    WorkerState,
)

ENTITY = "vendor"
RESOURCE = "llm"
# Longer than any demo: a worker that waits for the lock of the file must not fail.
_STORE_TIMEOUT_SECONDS = 60.0
_STOP_SECONDS = 10.0
_REACH_SECONDS = 5.0


def _open_limiter(url: str, namespace: str) -> SyncRateLimiter:
    return SyncRateLimiter(url, namespace=namespace, store_timeout=_STORE_TIMEOUT_SECONDS, audit_days=0)


class DemoRun:
    def __init__(self, url: str, namespace: str, folder: Path, workers: int) -> None:
        self._url = url
        self._namespace = namespace
        self.kill: Kill | None = None
        with closing(open_store(url, _REACH_SECONDS)) as store:
            store.ping()
            # A store's own clock is read in whole milliseconds: an interval may seem one longer there than here.
            self._grain_ms = int(store.own_clock)
        with _open_limiter(url, namespace) as limiter:
            limiter.set_limits(ENTITY, [RPM, TPM, CALLS], RESOURCE)
        self._pool = WorkerPool("demo", f"{__name__}:work", json.dumps([url, namespace]), folder, WIDTH, workers + 1)
        for _ in range(workers):
            self._pool.start()

    def state(self) -> DemoState:
        self._pool.check_alive()
        workers = self._read()
        # The clock after the counters: nothing that was counted is later than the time it is compared with.
        return DemoState.at(workers, self._now_ms())

    def state_at_end(self) -> DemoState:
        """After `stop`."""
        workers = self._read()
        return DemoState.at(workers, self._end_ms(workers))

    def _read(self) -> list[WorkerState]:
        return [WorkerState.read(one.number, one.process.pid, one.killed, one.slot) for one in self._pool.workers]

    def replace_one(self, seconds: float) -> None:
        """Kill the second worker, or the only one, in the middle of a call, and start another."""
        workers = self._pool.workers
        victim = workers[min(1, len(workers) - 1)]
        self._pool.kill(victim)
        self.kill = Kill(victim.number, seconds)
        self._pool.start()

    def stop(self) -> None:
        """Idempotent."""
        self._pool.counters.stop()
        self._pool.wait(time.monotonic() + _STOP_SECONDS)

    def result(self) -> DemoResult:
        """After `stop`: what the workers counted, compared with what the store counted."""
        workers = self._read()
        with _open_limiter(self._url, self._namespace) as limiter:
            buckets = {bucket.limit.name: bucket for bucket in limiter.get_buckets(ENTITY, RESOURCE)}
        by_store = int(CALLS.capacity) - buckets["calls"].available if "calls" in buckets else 0
        by_workers = sum(worker.admitted for worker in workers)
        # A worker that is killed during a call does not count the answer. The store knows whether it was admitted.
        unheard = sorted((worker.asking for worker in workers if worker.killed and worker.asking), reverse=True)
        unheard = unheard[: max(0, by_store - by_workers)]
        state = DemoState.at(workers, self._end_ms(workers), len(unheard), sum(unheard))
        return DemoResult(state, self.kill, by_store, by_workers, len(unheard))

    def _end_ms(self, workers: list[WorkerState]) -> int:
        """Just after the last decision, if all workers lived to record it."""
        last = [worker.last_ms for worker in workers if self.kill is None or worker.number != self.kill.number]
        return max(last) + self._grain_ms if last and all(last) else self._now_ms()

    def _now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._grain_ms

    def clean_up(self, *, its_own_namespace: bool) -> None:
        """Leave nothing of the demo in a store that stays."""
        with _open_limiter(self._url, self._namespace) as limiter:
            if its_own_namespace:
                remove_namespace(limiter)
            else:
                limiter.delete_limits(ENTITY, RESOURCE)
                limiter.reset(ENTITY, RESOURCE)


def work(assignment: Assignment) -> None:
    """In a worker process: ask, count, ask again."""
    url, namespace = json.loads(assignment.job)
    mine = assignment.counters.slot(assignment.number)
    calls = [(ADMITTED + index, cost, {"rpm": 1, "tpm": cost, "calls": 1}) for index, cost in enumerate(COSTS)]
    with _open_limiter(url, namespace) as limiter:
        limiter.available(ENTITY, RESOURCE)  # connects, and reads the limits
        mine[FIRST_MS] = time.time_ns() // 1_000_000
        while not assignment.over:
            index, cost, consume = random.choice(calls)
            mine[ASKING] = cost
            decision = limiter.try_acquire(ENTITY, RESOURCE, consume)
            mine[index if decision else REFUSED] += 1
            mine[ASKING] = 0
        mine[LAST_MS] = time.time_ns() // 1_000_000
