"""Worker processes for `demo` and `loadtest`: starting and stopping them, and the numbers they share.

The numbers are in a mapped file. Its pages belong to the operating system, so the counts of a worker survive when it is
killed. Every number has one writer, so there is no lock.
"""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from ..core.errors import RateLimiterUnavailable

START_SECONDS = 30.0
_FRAME_SECONDS = 0.125
_BYTES = 8
_BEGUN, _STOPPED = range(2)
_ENDINGS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class WorkerCounters:
    """A slot of `width` numbers for each worker. Slot 0 holds the signals to begin and to stop."""

    def __init__(self, path: Path, width: int, workers: int | None = None) -> None:
        """Map the file; with `workers`, create it first, with a slot for each."""
        self._width = width
        if workers is not None:
            path.write_bytes(bytes((workers + 1) * width * _BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._numbers = memoryview(self._map).cast("Q")

    def slot(self, number: int) -> memoryview:
        return self._numbers[number * self._width : (number + 1) * self._width]

    @property
    def begun(self) -> bool:
        return bool(self._numbers[_BEGUN])

    def begin(self) -> None:
        self._numbers[_BEGUN] = 1

    @property
    def stopped(self) -> bool:
        return bool(self._numbers[_STOPPED])

    def stop(self) -> None:
        self._numbers[_STOPPED] = 1


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker process is given: its job as text, its number, and the counters."""

    job: str
    number: int
    counters: WorkerCounters
    parent_pid: int

    @property
    def over(self) -> bool:
        """Asked to stop, or the parent has died."""
        return self.counters.stopped or os.getppid() != self.parent_pid


@dataclass(slots=True)
class Worker:
    number: int
    process: subprocess.Popen[bytes]
    slot: memoryview
    killed: bool = False


class WorkerPool:
    """Processes that run the function `work`, written `module:function`, with an Assignment.

    `title` names the pool in errors. `width`: numbers in a slot. `most`: workers that may ever be started.
    """

    def __init__(self, title: str, work: str, job: str, folder: Path, width: int, most: int) -> None:
        self._title = title
        self._work = work
        self._job = job
        self._folder = folder
        self._width = width
        self.counters = WorkerCounters(self._path, width, most)
        self.workers: list[Worker] = []

    @property
    def _path(self) -> Path:
        return self._folder / "counters"

    def start(self) -> None:
        """Start one more."""
        number = len(self.workers) + 1
        # Python looks for modules in the directory it starts in, and the user's may contain anything. So a worker
        # starts elsewhere, finds modules where this process finds them, and then changes to the user's directory.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        arguments = [self._work, os.getcwd(), self._path, self._width, number, os.getpid()]
        with self._errors(number).open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=environment,
                cwd=self._folder,
            )
        assert process.stdin is not None
        with process.stdin as pipe:  # not an argument: a URL may hold a password, and all users can see arguments
            pipe.write(self._job.encode())
        self.workers.append(Worker(number, process, self.counters.slot(number)))

    def _errors(self, number: int) -> Path:
        return self._folder / f"worker-{number}.txt"

    @property
    def failed(self) -> list[Worker]:
        """Those that ended with an error."""
        return [worker for worker in self.workers if not worker.killed and worker.process.poll()]

    def check_alive(self) -> None:
        for worker in self.failed:
            last = self._errors(worker.number).read_text(errors="replace").strip().splitlines()[-1:]
            raise RateLimiterUnavailable(f"worker {worker.number} of the {self._title} ended: {' '.join(last)}")

    def kill(self, worker: Worker) -> None:
        worker.killed = True
        worker.process.kill()
        worker.process.wait()

    def wait(self, deadline: float) -> None:
        """After `counters.stop()`: let all workers finish their current call, and kill those that take too long."""
        for worker in self.workers:
            try:
                worker.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.kill(worker)


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Removed at the end, even if the process is asked to terminate or its terminal is closed."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in _ENDINGS}
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
            yield Path(name).resolve()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def watch(frame: Callable[[], bool]) -> bool:
    """Call `frame` several times a second, until it returns False. True if it was interrupted with Ctrl-C."""
    try:
        while frame():
            time.sleep(_FRAME_SECONDS)
    except KeyboardInterrupt:
        return True
    return False


def _main() -> None:
    # Ctrl-C reaches every process of the terminal; the parent tells the workers when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work, directory, path, width, number, parent_pid = sys.argv[1:]
    module, _, function = work.partition(":")
    counters = WorkerCounters(Path(path), int(width))
    assignment = Assignment(sys.stdin.read(), int(number), counters, int(parent_pid))
    os.chdir(directory)
    getattr(import_module(module), function)(assignment)


if __name__ == "__main__":
    _main()
