"""The bare roads: what the same work costs without any limiter. Nothing that decides can be faster."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from .measure import Hit, Turn, calls, calls_with, threads

_BEGIN, _COMMIT = "BEGIN IMMEDIATE", "COMMIT"
_SELECT = "SELECT tokens, settled_at FROM buckets WHERE key = ?"
_UPDATE = "UPDATE buckets SET tokens = ?, settled_at = ? WHERE key = ?"


@contextmanager
def _table(folder: Path, keys: int) -> Iterator[sqlite3.Connection]:
    path = folder / "bare.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 8192")
        connection.execute("CREATE TABLE buckets (key TEXT PRIMARY KEY, tokens INT, settled_at INT) WITHOUT ROWID")
        connection.executemany("INSERT INTO buckets VALUES (?, 0, 0)", [(f"user-{key}",) for key in range(keys)])
        yield connection


def _transaction(connection: sqlite3.Connection, key: str) -> Hit:
    execute, clock = connection.execute, count(1_700_000_000_000)

    def hit() -> bool:
        execute(_BEGIN)
        ((tokens, _),) = execute(_SELECT, (key,)).fetchall()
        execute(_UPDATE, (tokens + 1, next(clock), key))
        execute(_COMMIT)
        return True

    return hit


@contextmanager
def transaction(folder: Path) -> Iterator[Turn]:
    with _table(folder, 1) as connection:
        yield calls(_transaction(connection, "user-0"))


def transactions_of_threads(number: int) -> Any:
    """On one connection, one after the other: two writers cannot be in the file at once."""

    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        lock = threading.Lock()

        def alone(hit: Hit) -> Hit:
            def locked() -> bool:
                with lock:
                    return hit()

            return locked

        with _table(folder, number) as connection:
            yield threads([alone(_transaction(connection, f"user-{key}")) for key in range(number)])

    return opened


def hand_over(number: int) -> Any:
    """No file at all: one more thread answers whoever waits. What group commit costs without the commit."""

    @contextmanager
    def opened(_: Path) -> Iterator[Turn]:
        waiting: SimpleQueue[Any] = SimpleQueue()

        def answer() -> None:
            while (gate := waiting.get()) is not None:
                gate.release()

        def waits() -> Hit:
            gate = threading.Lock()
            gate.acquire()

            def hit() -> bool:
                waiting.put(gate)
                return gate.acquire()

            return hit

        leader = threading.Thread(target=answer, daemon=True)
        leader.start()
        try:
            yield threads([waits() for _ in range(number)])
        finally:
            waiting.put(None)
            leader.join()

    return opened


class _Row:
    """As large as a bucket, and written to like one."""

    __slots__ = ("a", "b", "c", "d", "e", "f", "g", "h")

    def __init__(self) -> None:
        self.a = self.b = self.c = self.d = self.e = self.f = self.g = self.h = 1_000_000


def dictionary(number: int) -> Any:
    """An object each of so many names, one written to at random: what a million of anything costs in cache misses."""

    @contextmanager
    def opened(_: Path) -> Iterator[Turn]:
        chance = random.Random(2)
        rows = {f"user-{name}": _Row() for name in chance.sample(range(number), number)}

        def hit(name: str) -> bool:
            row = rows[name]
            row.a -= 1_000
            row.b += 1_000
            return row.c > 0

        yield calls_with(hit, lambda hits: [f"user-{chance.randrange(number)}" for _ in range(hits)])

    return opened
