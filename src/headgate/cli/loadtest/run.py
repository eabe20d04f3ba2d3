"""The processes of a load test: start, watch, stop, and add up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import RateLimiterUnavailable
from ...core.limit import Limit
from ...core.units import tokens_to_milli
from ...limiter import SyncRateLimiter
from ...stores import open_store
from ...stores.health import read_clock
from .counters import ADMITTED, DONE, HISTOGRAM, REFUSED, SLOWEST, STAGE, UNAVAILABLE, Counters
from .histogram import SIZE
from .load import STORE_TIMEOUT_SECONDS, Load
from .result import Result, Sale

_START_SECONDS = 30.0
_STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Reading:
    """A moment by the clock that the limit goes by: the slowest and the fastest of several."""

    earliest_ms: int
    latest_ms: int


class Run:
    def __init__(self, load: Load, limits: Sequence[Limit], folder: Path) -> None:
        self._load = load
        self._limits = limits
        self._folder = folder
        self._path = folder / "counters"
        self._counters = Counters(self._path, load.entities, load.workers)
        self._slots = [self._counters.slot(number) for number in range(1, load.workers + 1)]
        self._processes: list[subprocess.Popen[bytes]] = []
        with closing(open_store(load.url, STORE_TIMEOUT_SECONDS)) as store:
            self.by_store_clock = store.own_clock and read_clock(load.url, STORE_TIMEOUT_SECONDS) is not None
            # A clock of its own that cannot be read is still read in whole milliseconds by the store.
            self._grain_ms = int(store.own_clock and not self.by_store_clock)
        with self._limiter() as limiter:
            limiter.set_system_defaults(list(limits))
        self._began: Reading | None = None
        self._ended: Reading | None = None
        self._since = 0.0

    def _limiter(self) -> SyncRateLimiter:
        return SyncRateLimiter(
            self._load.url, namespace=self._load.namespace, store_timeout=STORE_TIMEOUT_SECONDS, audit_days=0
        )

    def begin(self) -> None:
        """Start the workers, wait until all are connected, and let them ask."""
        for number in range(1, self._load.workers + 1):
            self._processes.append(self._start_worker(number))
        deadline = time.monotonic() + _START_SECONDS
        while not all(slot[STAGE] for slot in self._slots):
            self.check_alive()
            if time.monotonic() > deadline:
                raise RateLimiterUnavailable(f"not all workers of the load test started within {_START_SECONDS:.0f} s")
            time.sleep(0.01)
        self._began = self._read_clock()
        self._since = time.monotonic()
        self._counters.begin()

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        # Python looks for modules in the directory it starts in, and the user's may hold anything. So a worker starts
        # elsewhere, finds modules where this process finds them, and goes to the user's directory afterwards.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        arguments = [os.getcwd(), str(self._path), str(number), str(os.getpid())]
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
            told.write(self._load.as_json().encode())
        return process

    def _errors(self, number: int) -> Path:
        return self._folder / f"worker-{number}.txt"

    def _read_clock(self) -> Reading:
        if self.by_store_clock:
            reading = read_clock(self._load.url, STORE_TIMEOUT_SECONDS)
            assert reading is not None
            return Reading(reading.earliest_ms, reading.latest_ms)
        now_ms = time.time_ns() // 1_000_000
        return Reading(now_ms, now_ms + self._grain_ms)

    def check_alive(self) -> None:
        for number in self._dead():
            last = self._errors(number).read_text(errors="replace").strip().splitlines()[-1:]
            raise RateLimiterUnavailable(f"worker {number} of the load test ended: {' '.join(last)}")

    def _dead(self) -> list[int]:
        return [number for number, process in enumerate(self._processes, 1) if process.poll()]

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since

    @property
    def done(self) -> bool:
        return all(slot[STAGE] == DONE for slot in self._slots)

    @property
    def decisions(self) -> int:
        return sum(slot[REFUSED] + sum(slot[ADMITTED:]) for slot in self._slots)

    def stop(self) -> None:
        """Let everybody finish the call they are in; kill who does not. Idempotent."""
        self._counters.stop()
        deadline = time.monotonic() + _STOP_SECONDS
        try:
            if self._began is not None and self._ended is None:
                while not self.done and time.monotonic() < deadline and not self._dead():
                    time.sleep(0.002)
                self._ended = self._read_clock()
        finally:
            self._wait(deadline)

    def _wait(self, deadline: float) -> None:
        for process in self._processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def result(self) -> Result:
        """After `stop`."""
        self.check_alive()
        assert self._began is not None
        assert self._ended is not None
        # From the slowest clock at the start to the fastest at the end: no bucket has seen more time pass.
        elapsed_ms = self._ended.latest_ms - self._began.earliest_ms
        calls = [self._sum(ADMITTED + entity) for entity in range(self._load.entities)]
        milli = {name: tokens_to_milli(amount, name) for name, amount in self._load.amounts.items()}
        return Result(
            load=self._load,
            elapsed_ms=elapsed_ms,
            by_store_clock=self.by_store_clock,
            admitted=sum(calls),
            refused=self._sum(REFUSED),
            unavailable=self._sum(UNAVAILABLE),
            histogram=[self._sum(HISTOGRAM + place) for place in range(SIZE)],
            slowest_us=max(slot[SLOWEST] for slot in self._slots),
            sales=[Sale.of(limit, milli[limit.name], calls, elapsed_ms) for limit in self._limits],
        )

    def _sum(self, place: int) -> int:
        return sum(slot[place] for slot in self._slots)

    def clean_up(self) -> None:
        """Leave nothing in the store, even if it has forgotten that there is something."""
        with self._limiter() as limiter:
            limiter.register_namespace(self._load.namespace)
            limiter.delete_namespace(self._load.namespace)
            limiter.purge_namespace(self._load.namespace, confirm=self._load.namespace)
