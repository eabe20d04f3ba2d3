"""Helpers for the tests of the file. Run as a program, it is the other process: `sqlite_helpers.py ROLE ARGUMENTS`.

A role reads lines from stdin and answers each with a line on stdout, so that a test decides what happens when.
"""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from headgate import HeadgateError, Limit, SyncRateLimiter
from headgate.stores.sqlite import open_blocking

# A thousandth of a token a year: in a test it gains nothing, so that every token can be accounted for.
LIMIT = Limit.custom("tokens", 1_000_000, 0.001, 366 * 86_400)
PATIENCE_SECONDS = 30.0


def url_of(path: Path | str) -> str:
    return f"sqlite:///{path}"


def take(limiter: SyncRateLimiter, amount: int = 1, entity: str = "ada") -> None:
    assert limiter.try_acquire(entity, "api", {"tokens": amount}, limits=[LIMIT])


def taken(limiter: SyncRateLimiter, entity: str = "ada") -> int:
    return int(LIMIT.capacity) - limiter.available(entity, "api", limits=[LIMIT])["tokens"]


def taken_from(path: Path | str, entity: str = "ada") -> int:
    with SyncRateLimiter(url_of(path)) as limiter:
        return taken(limiter, entity)


def query(path: Path | str, sql: str) -> Any:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchone()[0]


class Other:
    """Another process in a role."""

    def __init__(self, role: str, *arguments: Path | str, wrapper: tuple[str, ...] = ()) -> None:
        command = [*wrapper, sys.executable, __file__, role, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the other process ended with {self.process.wait(PATIENCE_SECONDS)} instead of an answer"
        return json.loads(line)

    def ask(self, line: str = "") -> Any:
        self.say(line)
        return self.hear()


@contextmanager
def several(count: int, role: str) -> Iterator[list[Other]]:
    with ExitStack() as stack:
        yield [stack.enter_context(another(role)) for _ in range(count)]


@contextmanager
def another(role: str, *arguments: Path | str, wrapper: tuple[str, ...] = ()) -> Iterator[Other]:
    other = Other(role, *arguments, wrapper=wrapper)
    try:
        yield other
    finally:
        other.process.kill()
        other.process.communicate()


# The roles


def answer(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def attempt(path: Path | str) -> str:
    """Open the file and take a token: "ok", or the error as a caller sees it."""
    try:
        with SyncRateLimiter(url_of(path)) as limiter:
            take(limiter)
    except HeadgateError as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


def opener() -> None:
    """Open every file that is named."""
    answer("ready")
    for line in sys.stdin:
        answer(attempt(line.strip()))


def locker(path: str) -> None:
    """Hold the lock of the file from one line to the next."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for number, _ in enumerate(sys.stdin):
            connection.execute("ROLLBACK" if number % 2 else "BEGIN IMMEDIATE")
            answer("free" if number % 2 else "held")


def taker(path: str) -> None:
    """Take as many as each line says, and never close."""
    limiter = SyncRateLimiter(url_of(path))
    for line in sys.stdin:
        take(limiter, int(line))
        answer("taken")


def purger(path: str) -> None:
    """Purge a namespace, and say after each step how much that was."""
    with closing(open_blocking(url_of(path), PATIENCE_SECONDS)) as store:
        while removed := store.purge("doomed"):
            answer(removed)


def stranger() -> None:
    """Open files as a user without any rights."""
    with tempfile.TemporaryDirectory() as folder:
        attempt(Path(folder, "limits.db"))  # imports what a user without rights may not be able to read
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    opener()


def _fork(function: Any, *arguments: Any) -> Any:
    child = get_context("fork").Process(target=function, args=arguments)
    child.start()
    return child


def _join(child: Any) -> None:
    child.join(PATIENCE_SECONDS)
    if child.exitcode is None:
        child.kill()
        raise AssertionError("the child hangs")
    assert child.exitcode == 0, f"the child ended with {child.exitcode}"


def _take_many(limiter: SyncRateLimiter, times: int) -> None:
    for _ in range(times):
        take(limiter)


def fork_both_use(path: str) -> None:
    """Both sides of a fork go on with one limiter, at the same time."""
    limiter = SyncRateLimiter(url_of(path))
    take(limiter)
    children = [_fork(_take_many, limiter, 100) for _ in range(3)]
    _take_many(limiter, 100)
    for child in children:
        _join(child)
    answer(taken(limiter))


def fork_parent_closes(path: str) -> None:
    """The parent closes its limiter while the child still uses its own."""
    limiter = SyncRateLimiter(url_of(path))
    take(limiter)
    context = get_context("fork")
    used, closed = context.Event(), context.Event()

    def child() -> None:
        take(limiter)
        used.set()
        closed.wait(PATIENCE_SECONDS)
        _take_many(limiter, 100)

    process = _fork(child)
    used.wait(PATIENCE_SECONDS)
    limiter.close()
    closed.set()
    _join(process)
    answer("done")


def fork_amid_threads(path: str) -> None:
    """Fork again and again while other threads are in the middle of everything."""
    limiter = SyncRateLimiter(url_of(path))
    stop = threading.Event()
    counts = [0] * 4

    def hammer(number: int) -> None:
        while not stop.is_set():
            take(limiter)
            counts[number] += 1

    threads = [threading.Thread(target=hammer, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            _join(_fork(_take_many, limiter, 3))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    answer({"expected": sum(counts) + 30 * 3, "taken": taken(limiter)})


def _fill_up(limiter: SyncRateLimiter) -> tuple[int, str]:
    """Take from ever more entities until the store fails; how many passed, and the error."""
    for number in range(100_000):
        try:
            take(limiter, entity=f"entity-{number}")
        except HeadgateError as error:
            return number, f"{type(error).__name__}: {error}"
    raise AssertionError("the disk never was full")


def _counted(limiter: SyncRateLimiter, until: int) -> int:
    return sum(taken(limiter, f"entity-{number}") for number in range(until))


def file_size_limited(path: str) -> None:
    """Files may not grow for a while."""
    with SyncRateLimiter(url_of(path)) as limiter:
        take(limiter)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        passed, error = _fill_up(limiter)
        again = attempt(path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        take(limiter, 5)
        answer({"passed": passed, "error": error, "again": again, "counted": _counted(limiter, passed + 1)})


def disk_full(folder: str) -> None:
    """Fill a small disk, with the file there and with none, then make room."""
    filler, path = Path(folder, "filler"), Path(folder, "limits.db")
    _fill_with_zeros(filler)
    creating = attempt(path)
    filler.unlink()
    with SyncRateLimiter(url_of(path)) as limiter:
        take(limiter)
        _fill_with_zeros(filler)
        passed, error = _fill_up(limiter)
        filler.unlink()
        take(limiter, 5)
        answer({"creating": creating, "error": error, "passed": passed, "counted": _counted(limiter, passed + 1)})


def _fill_with_zeros(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
