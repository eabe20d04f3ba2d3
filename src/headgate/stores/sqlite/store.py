"""One connection, one transaction per batch."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...core.bucket import Bucket
from ...core.decide import Answer, Charge, Request, decide
from ...core.errors import VersionConflict
from ...core.limit import Limit
from ...core.names import parse_bucket_key
from ...core.records import ABSENT, BucketRow, Change, Check, Page, Put, Record
from .connection import connect, translated

_COLUMNS = (
    "key, limit_name, capacity_milli, refill_milli, period_ms, tokens_milli, settled_at_ms, remainder, blocked_until_ms"
)
_READ_ONE = f"SELECT {_COLUMNS} FROM buckets WHERE key = ?"
_READ_MANY = f"SELECT {_COLUMNS} FROM buckets WHERE key IN (SELECT value FROM json_each(?))"
_READ_AFTER = f"SELECT {_COLUMNS} FROM buckets WHERE key > ? AND key < ? ORDER BY key, limit_name LIMIT ?"
_WRITE = f"INSERT OR REPLACE INTO buckets ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"

PAGE = 1000
_AFTER_ALL = chr(0x10FFFF)
_Row = tuple[str, str, int, int, int, int, int, int, int]


class SqliteStore:
    own_clock = False
    in_process = False

    def __init__(self, path: str, timeout_seconds: float) -> None:
        self._path = path
        self._timeout_seconds = timeout_seconds
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        self._seen: dict[tuple[str, str], int] = {}
        self._new_rows = 0
        self._hand = ""

    # Transactions

    def _connected(self) -> sqlite3.Connection:
        # A connection must not be used on both sides of a fork.
        if self._connection is None or self._pid != os.getpid():
            self._connection = connect(self._path, self._timeout_seconds)
            self._pid = os.getpid()
        return self._connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, translated(self._path):
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, translated(self._path):
            yield self._connected()

    # Buckets

    def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        assert now_ms is not None
        charges = [charge for request in batch for charge in request.charges]
        with self._transaction() as connection:
            buckets = self._load(connection, charges, now_ms)
            answers = [
                decide(request, [buckets[key, limit.name] for key, limit, _ in request.charges], now_ms)
                for request in batch
            ]
            self._save(connection, buckets, now_ms)
        return answers

    def _load(
        self, connection: sqlite3.Connection, charges: list[Charge], now_ms: int
    ) -> dict[tuple[str, str], Bucket]:
        wanted = {(key, limit.name): limit for key, limit, _ in charges}
        keys = {key for key, _ in wanted}
        if len(keys) == 1:
            rows = connection.execute(_READ_ONE, tuple(keys))
        else:
            rows = connection.execute(_READ_MANY, (json.dumps(list(keys)),))
        buckets = {}
        for row in rows:
            limit = wanted.get((row[0], row[1]))
            if limit is not None:
                buckets[row[0], row[1]] = _bucket(row, limit)
        for place, limit in wanted.items():
            seen_ms = self._seen.get(place, 0)
            if place not in buckets:
                buckets[place] = Bucket.full(limit, max(seen_ms, now_ms))
                self._new_rows += 1
            elif seen_ms:
                buckets[place].settle(seen_ms)
        return buckets

    def _save(self, connection: sqlite3.Connection, buckets: dict[tuple[str, str], Bucket], now_ms: int) -> None:
        changed = []
        for place, bucket in buckets.items():
            if bucket.changed:
                changed.append(_row(place, bucket))
                self._seen.pop(place, None)
            else:
                # Looking costs no write, but time must not run backwards for one who looked.
                self._seen[place] = bucket.settled_at_ms
        if len(changed) == 1:
            connection.execute(_WRITE, changed[0])
        elif changed:
            connection.executemany(_WRITE, changed)
        if len(self._seen) > PAGE:
            self._seen.clear()
        if self._new_rows >= PAGE:
            self._new_rows = 0
            self._forget_full(connection, now_ms)

    def _forget_full(self, connection: sqlite3.Connection, now_ms: int) -> None:
        """For every page of new rows look at two, going round, so that full ones go faster than others can come."""
        rows = connection.execute(_READ_AFTER, (self._hand, _AFTER_ALL, 2 * PAGE)).fetchall()
        full = [row[:2] for row in rows if _bucket(row).full_at_ms() <= now_ms]
        connection.executemany("DELETE FROM buckets WHERE key = ? AND limit_name = ?", full)
        self._hand = rows[-1][0] if len(rows) == 2 * PAGE else ""

    def delete_buckets(self, keys: Sequence[str]) -> None:
        with self._transaction() as connection:
            connection.executemany("DELETE FROM buckets WHERE key = ?", [(key,) for key in keys])

    def list_buckets(
        self, namespace: str, entity_id: str | None, resource: str | None, cursor: str | None, now_ms: int | None
    ) -> Page[BucketRow]:
        assert now_ms is not None
        prefix = f"{namespace}/" if entity_id is None else f"{namespace}/{entity_id}#"
        with self._reading() as connection:
            rows = connection.execute(_READ_AFTER, (cursor or prefix, prefix + _AFTER_ALL, PAGE)).fetchall()
        found: dict[str, list[Bucket]] = {}
        for row in rows:
            if resource in (None, parse_bucket_key(row[0])[2]):
                bucket = _bucket(row)
                bucket.settle(now_ms)
                found.setdefault(row[0], []).append(bucket)
        # The last key of a full page may have more rows on the next: leave it to that page.
        full = len(rows) == PAGE
        if full and rows[0][0] != rows[-1][0]:
            found.pop(rows[-1][0], None)
        last = [row[0] for row in rows if row[0] != rows[-1][0]] or [row[0] for row in rows]
        page = [BucketRow(*parse_bucket_key(key)[1:], tuple(buckets)) for key, buckets in found.items()]
        return Page(page, last[-1] if full else None)

    # Records

    def get_records(self, keys: Sequence[str], now_ms: int | None) -> list[Record | None]:
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT key, value, version FROM records WHERE key IN (SELECT value FROM json_each(?))"
                " AND (expires_at_ms IS NULL OR expires_at_ms > ?)",
                (json.dumps(list(keys)), now_ms),
            ).fetchall()
        found = {key: Record(key, json.loads(value), version) for key, value, version in rows}
        return [found.get(key) for key in keys]

    def write_records(self, changes: Sequence[Change], now_ms: int | None) -> None:
        with self._transaction() as connection:
            connection.execute("DELETE FROM records WHERE expires_at_ms <= ?", (now_ms,))
            for change in changes:
                row = connection.execute("SELECT version FROM records WHERE key = ?", (change.key,)).fetchone()
                version = row[0] if row else ABSENT
                if change.expected is not None and change.expected != version:
                    raise VersionConflict(change.key)
                if isinstance(change, Put):
                    connection.execute(
                        "INSERT OR REPLACE INTO records (key, value, version, expires_at_ms) VALUES (?, ?, ?, ?)",
                        (change.key, json.dumps(change.value), version + 1, change.expires_at_ms),
                    )
                elif not isinstance(change, Check):
                    connection.execute("DELETE FROM records WHERE key = ?", (change.key,))

    def list_records(self, prefix: str, cursor: str | None, limit: int, now_ms: int | None) -> Page[Record]:
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT key, value, version FROM records WHERE key > ? AND key >= ? AND key < ?"
                " AND (expires_at_ms IS NULL OR expires_at_ms > ?) ORDER BY key LIMIT ?",
                (cursor or "", prefix, prefix + _AFTER_ALL, now_ms, limit + 1),
            ).fetchall()
        found = [Record(key, json.loads(value), version) for key, value, version in rows[:limit]]
        return Page(found, found[-1].key if len(rows) > limit else None)

    # Life

    def setup(self) -> None:
        self.ping()

    def ping(self) -> None:
        with self._reading() as connection:
            connection.execute("SELECT 1 FROM buckets LIMIT 1").fetchone()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None


def _bucket(row: _Row, limit: Limit | None = None) -> Bucket:
    _, name, capacity_milli, refill_milli, period_ms, tokens_milli, settled_at_ms, remainder, blocked_until_ms = row
    same = (
        limit is not None
        and limit.capacity_milli == capacity_milli
        and limit.refill_milli == refill_milli
        and limit.period_ms == period_ms
    )
    if limit is None or not same:
        limit = Limit.from_stored(name, capacity_milli, refill_milli, period_ms)
    return Bucket(limit, tokens_milli, settled_at_ms, remainder, blocked_until_ms)


def _row(place: tuple[str, str], bucket: Bucket) -> _Row:
    limit = bucket.limit
    return (
        *place,
        limit.capacity_milli,
        limit.refill_milli,
        limit.period_ms,
        bucket.tokens_milli,
        bucket.settled_at_ms,
        bucket.remainder,
        bucket.blocked_until_ms,
    )
