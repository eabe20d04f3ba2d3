"""The processes of a demo: start, kill one and replace it, stop, and add up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import RateLimiterUnavailable
from ...limiter import SyncRateLimiter
from ...stores import open_store
from .counters import Counters
from .state import CALLS, RPM, TPM, State, WorkerState
from .worker import ENTITY, RESOURCE, STORE_TIMEOUT_SECONDS

_STOP_SECONDS = 10.0
_REACH_SECONDS = 5.0


@dataclass(slots=True)
class Worker:
    number: int
    process: subprocess.Popen[bytes]
    killed: bool = False


@dataclass(frozen=True, slots=True)
class Kill:
    number: int
    seconds: float

    def __str__(self) -> str:
        return f"worker {self.number} was killed with kill -9 after {self.seconds:.1f} s and replaced"


class Run:
    def __init__(self, url: str, namespace: str, folder: Path, workers: int) -> None:
        self._url = url
        self._namespace = namespace
        self._folder = folder
        self._counters = Counters(folder / "counters", workers + 1)
        self._workers: list[Worker] = []
        self.kill: Kill | None = None
        with closing(open_store(url, _REACH_SECONDS)) as store:
            store.ping()
            # A clock of its own is read in whole milliseconds: an interval may seem one longer there than it does here.
            self._grain_ms = int(store.own_clock)
        with self._limiter() as limiter:
            limiter.set_limits(ENTITY, [RPM, TPM, CALLS], RESOURCE)
        for _ in range(workers):
            self._start_worker()

    def _limiter(self) -> SyncRateLimiter:
        settings: dict[str, Any] = {"store_timeout": STORE_TIMEOUT_SECONDS, "audit_days": 0}
        return SyncRateLimiter(self._url, namespace=self._namespace, **settings)

    def _start_worker(self) -> None:
        number = len(self._workers) + 1
        # Python looks for modules in the directory it starts in, and the user's may hold anything. So a worker starts
        # elsewhere, finds modules where this process finds them, and goes to the user's directory afterwards.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        arguments = [os.getcwd(), self._namespace, str(self._folder / "counters"), str(number), str(os.getpid())]
        with self._errors(number).open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.worker", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=environment,
                cwd=self._folder,
            )
        assert process.stdin is not None
        with process.stdin as told:  # not an argument: a URL may hold a password, and all can see the arguments
            told.write(self._url.encode())
        self._workers.append(Worker(number, process))

    def _errors(self, number: int) -> Path:
        return self._folder / f"worker-{number}.txt"

    def state(self) -> State:
        self._check_alive()
        workers = self._read()
        # The clock after the counters: nothing counted is later than the time it is held against.
        return State.at(workers, self._now_ms())

    def state_at_end(self) -> State:
        """After `stop`."""
        workers = self._read()
        return State.at(workers, self._end_ms(workers))

    def _read(self) -> list[WorkerState]:
        return [
            WorkerState.read(worker.number, worker.process.pid, worker.killed, self._counters.slot(worker.number))
            for worker in self._workers
        ]

    def _check_alive(self) -> None:
        for worker in self._workers:
            if not worker.killed and worker.process.poll() is not None:
                last = self._errors(worker.number).read_text(errors="replace").strip().splitlines()[-1:]
                raise RateLimiterUnavailable(f"worker {worker.number} of the demo ended: {' '.join(last)}")

    def replace_one(self, seconds: float) -> None:
        """Kill the second worker (the only one, if there is but one) in the middle of whatever it does."""
        victim = self._workers[min(1, len(self._workers) - 1)]
        self._kill(victim)
        self.kill = Kill(victim.number, seconds)
        self._start_worker()

    def _kill(self, worker: Worker) -> None:
        worker.killed = True
        worker.process.kill()
        worker.process.wait()

    def stop(self) -> None:
        """Let everybody finish the call they are in; kill who does not. Idempotent."""
        self._counters.stop()
        deadline = time.monotonic() + _STOP_SECONDS
        for worker in self._workers:
            try:
                worker.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._kill(worker)

    def result(self) -> Result:
        """After `stop`: what the workers counted, held against what the store counted."""
        workers = self._read()
        with self._limiter() as limiter:
            buckets = {bucket.limit.name: bucket for bucket in limiter.get_buckets(ENTITY, RESOURCE)}
        by_store = int(CALLS.capacity) - buckets["calls"].available if "calls" in buckets else 0
        by_workers = sum(worker.admitted for worker in workers)
        # Who was killed while asking did not live to count the answer. The store knows whether it was a yes.
        unheard = sorted((worker.asking for worker in workers if worker.killed and worker.asking), reverse=True)
        unheard = unheard[: max(0, by_store - by_workers)]
        state = State.at(workers, self._end_ms(workers), len(unheard), sum(unheard))
        return Result(state, self.kill, by_store, by_workers, len(unheard))

    def _end_ms(self, workers: list[WorkerState]) -> int:
        """Just after the last decision, if everybody lived to say when that was."""
        last = [worker.last_ms for worker in workers if self.kill is None or worker.number != self.kill.number]
        return max(last) + self._grain_ms if last and all(last) else self._now_ms()

    def _now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._grain_ms

    def clean_up(self, *, its_own_namespace: bool) -> None:
        """Leave nothing of the demo in a store that stays."""
        with self._limiter() as limiter:
            if its_own_namespace:
                limiter.delete_namespace(self._namespace)
                limiter.purge_namespace(self._namespace, confirm=self._namespace)
            else:
                limiter.delete_limits(ENTITY, RESOURCE)
                limiter.reset(ENTITY, RESOURCE)


@dataclass(frozen=True, slots=True)
class Result:
    state: State
    kill: Kill | None
    counted_by_store: int
    counted_by_workers: int
    unheard: int

    @property
    def lost(self) -> int:
        """Calls that only one side knows of."""
        return abs(self.counted_by_store - self.counted_by_workers - self.unheard)

    @property
    def passed(self) -> bool:
        return self.state.oversold == 0 and self.lost == 0

    def as_dict(self) -> dict[str, Any]:
        state = self.state
        return {
            "seconds": state.seconds,
            "decisions": state.decisions,
            "decisions_per_second": round(state.decisions / max(state.seconds, 0.001)),
            "admitted": state.admitted,
            "refused": state.refused,
            "limit": state.limits[0].allowed,
            "oversold": state.oversold,
            "lost": self.lost,
            "counted_by_store": self.counted_by_store,
            "counted_by_workers": self.counted_by_workers,
            "killed": self.kill and self.kill.number,
            "limits": [limit.as_dict() for limit in state.limits],
            "workers": [worker.as_dict() for worker in state.workers],
        }
