"""One connection, one transaction per batch."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias, TypeVar

from ...core.bucket import Bucket
from ...core.decide import Answer, Part, Request, State, decide, state_of
from ...core.errors import VersionConflict
from ...core.limit import Limit
from ...core.names import parse_bucket_key
from ...core.records import ABSENT, BucketRow, Change, Check, Page, Put, Record, Swept
from ...core.slots import Slots
from . import slots
from .connection import busy, connect, damaged, explained, patiently
from .fork import open_anew_after_fork

_COLUMNS = "capacity_milli, refill_milli, period_ms, tokens_milli, settled_at_ms, remainder, blocked_until_ms, revision"
_READ_PLACE = f"SELECT key, limit_name, {_COLUMNS} FROM buckets WHERE key = ? AND limit_name = ?"
_READ_ONE = f"SELECT key, limit_name, {_COLUMNS} FROM buckets WHERE key = ?"
_READ_MANY = f"SELECT key, limit_name, {_COLUMNS} FROM buckets WHERE key IN (SELECT value FROM json_each(?))"
_READ_PAGE = (
    f"SELECT key, limit_name, {_COLUMNS} FROM buckets WHERE key IN"
    " (SELECT DISTINCT key FROM buckets WHERE key > ? AND key < ? ORDER BY key LIMIT ?) ORDER BY key, limit_name"
)
_READ_AFTER = (
    f"SELECT key, limit_name, {_COLUMNS} FROM buckets WHERE key > ? AND key < ? ORDER BY key, limit_name LIMIT ?"
)
_INSERT = f"INSERT INTO buckets ({_COLUMNS}, key, limit_name) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_UPDATE = f"UPDATE buckets SET ({_COLUMNS}) = (?, ?, ?, ?, ?, ?, ?, ?) WHERE key = ? AND limit_name = ?"

PAGE = 1000
_AFTER_ALL = chr(0x10FFFF)
_Place: TypeAlias = tuple[str, str]  # key, limit name
_Row: TypeAlias = tuple[str, str, int, int, int, int, int, int, int, int]


T = TypeVar("T")


class SqliteStore:
    own_clock = False
    in_process = False

    def __init__(self, path: str, timeout_seconds: float) -> None:
        self._path = path
        self._timeout_seconds = timeout_seconds
        self.lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._seen: dict[_Place, int] = {}
        self._new_rows = 0
        self._hand = ""
        open_anew_after_fork(self)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect(self._path, self._timeout_seconds)
        return self._connection

    def _take_lock(self) -> float:
        """Have the connection to oneself. How many seconds are left."""
        if self.lock.acquire(blocking=False):
            return self._timeout_seconds
        deadline = time.monotonic() + self._timeout_seconds
        if not self.lock.acquire(timeout=self._timeout_seconds):
            raise busy(self._path)
        return max(0.0, deadline - time.monotonic())

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do the work in a transaction that no other process can come between."""
        seconds = self._take_lock()
        try:
            connection = self._connected()
            patiently(lambda: connection.execute("BEGIN IMMEDIATE"), seconds)
            try:
                result = work(connection)
                connection.execute("COMMIT")
                return result
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise explained(error, self._path) from error
        finally:
            self.lock.release()

    def _read(self, query: str, *parameters: object) -> list[Any]:
        seconds = self._take_lock()
        try:
            connection = self._connected()
            return patiently(lambda: connection.execute(query, parameters).fetchall(), seconds)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise explained(error, self._path) from error
        finally:
            self.lock.release()

    # Buckets

    def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        assert now_ms is not None
        now = now_ms

        def work(connection: sqlite3.Connection) -> list[Answer]:
            if len(batch) == 1 and len(batch[0].parts) == 1 and not batch[0].parts[0].limit.is_concurrent:
                return [self._settle_one(connection, batch[0], now)]
            wanted = {(request.keys[part.level], part.limit.name): part for request in batch for part in request.parts}
            stored = _load(connection, wanted)
            states = {place: self._state(place, part, stored, now) for place, part in wanted.items()}
            answers = [
                decide(request, [states[request.keys[level], limit.name] for level, limit, _, _ in request.parts], now)
                for request in batch
            ]
            self._save(connection, states, stored, now)
            return answers

        return self._write(work)

    def _settle_one(self, connection: sqlite3.Connection, request: Request, now_ms: int) -> Answer:
        """The same for the request that most requests are."""
        (part,) = request.parts
        place = (request.keys[part.level], part.limit.name)
        row = connection.execute(_READ_PLACE, place).fetchone()
        stored: dict[_Place, State] = {place: _bucket(row, part.limit) if row[3] else _slots(row, {})} if row else {}
        bucket = self._state(place, part, stored, now_ms)
        answer = decide(request, (bucket,), now_ms)
        self._save(connection, {place: bucket}, stored, now_ms)
        return answer

    def _state(self, place: _Place, part: Part, stored: dict[_Place, State], now_ms: int) -> State:
        state = stored.get(place)
        seen_ms = self._seen.get(place, 0)
        if state is None or isinstance(state, Slots) is not part.limit.is_concurrent:
            return state_of(part, max(seen_ms, now_ms))
        state.settle(seen_ms)
        return state

    def _save(
        self, connection: sqlite3.Connection, states: dict[_Place, State], stored: dict[_Place, State], now_ms: int
    ) -> None:
        for place, state in states.items():
            if not state.changed:
                # Looking costs no write, but time must not run backwards for one who looked.
                self._seen[place] = state.settled_at_ms
                continue
            if place in stored:
                connection.execute(_UPDATE, _values(state) + place)
            else:
                connection.execute(_INSERT, _values(state) + place)
                self._new_rows += 1
            if isinstance(state, Slots) or isinstance(stored.get(place), Slots):
                slots.save(connection, place, state)
        if len(self._seen) > PAGE:
            self._seen.clear()
        if self._new_rows >= PAGE:
            self._forget_full(connection, now_ms)

    def _forget_full(self, connection: sqlite3.Connection, now_ms: int) -> None:
        """For every page of new rows look at two, going round, so that full ones go faster than others can come."""
        self._new_rows = 0
        rows = connection.execute(_READ_AFTER, (self._hand, _AFTER_ALL, 2 * PAGE)).fetchall()
        _delete_full(connection, rows, now_ms)
        self._hand = rows[-1][0] if len(rows) == 2 * PAGE else ""

    def delete_buckets(self, keys: Sequence[str]) -> None:
        doomed = [(key,) for key in keys]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("DELETE FROM buckets WHERE key = ?", doomed)
            connection.executemany("DELETE FROM slots WHERE key = ?", doomed)
            self._seen = {place: ms for place, ms in self._seen.items() if place[:1] not in doomed}

        self._write(work)

    def list_buckets(
        self, namespace: str, entity_id: str | None, resource: str | None, cursor: str | None, now_ms: int | None
    ) -> Page[BucketRow]:
        assert now_ms is not None
        prefix = f"{namespace}/" if entity_id is None else f"{namespace}/{entity_id}#"
        rows = self._read(_READ_PAGE, cursor or prefix, prefix + _AFTER_ALL, PAGE)
        held = slots.by_place(self._read(slots.READ_RANGE, rows[0][0], rows[-1][0])) if rows else {}
        page = []
        last, count = None, 0
        for last, of_key in groupby(rows, key=itemgetter(0)):
            count += 1
            _, row_entity, row_resource = parse_bucket_key(last)
            if resource in (None, row_resource):
                page.append(BucketRow(row_entity, row_resource, tuple(_settled(of_key, held, now_ms))))
        return Page(page, last if count == PAGE else None)

    # Records

    def get_records(self, keys: Sequence[str], now_ms: int | None) -> list[Record | None]:
        rows = self._read(
            "SELECT key, value, version FROM records WHERE key IN (SELECT value FROM json_each(?))"
            " AND (expires_at_ms IS NULL OR expires_at_ms > ?)",
            json.dumps(list(keys)),
            now_ms,
        )
        found = {row[0]: self._record(*row) for row in rows}
        return [found.get(key) for key in keys]

    def _record(self, key: str, value: str, version: int) -> Record:
        try:
            return Record(key, json.loads(value), version)
        except ValueError as error:
            raise damaged(self._path, f"record {key!r}: {error}") from error

    def write_records(self, changes: Sequence[Change], now_ms: int | None) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM records WHERE expires_at_ms <= ?", (now_ms,))
            for change in changes:
                _apply(connection, change)

        self._write(work)

    def list_records(self, prefix: str, cursor: str | None, limit: int, now_ms: int | None) -> Page[Record]:
        rows = self._read(
            "SELECT key, value, version FROM records WHERE key > ? AND key >= ? AND key < ?"
            " AND (expires_at_ms IS NULL OR expires_at_ms > ?) ORDER BY key LIMIT ?",
            cursor or "",
            prefix,
            prefix + _AFTER_ALL,
            now_ms,
            limit + 1,
        )
        found = [self._record(*row) for row in rows[:limit]]
        return Page(found, found[-1].key if len(rows) > limit else None)

    # Life

    def sweep(self, namespace: str, now_ms: int | None) -> Swept:
        assert now_ms is not None
        now, prefix = now_ms, f"{namespace}/"

        def work(connection: sqlite3.Connection) -> Swept:
            expired = connection.execute("DELETE FROM records WHERE expires_at_ms <= ?", (now,)).rowcount
            leases = slots.sweep(connection, now, prefix, prefix + _AFTER_ALL)
            buckets, after = 0, prefix
            while True:
                rows = connection.execute(_READ_AFTER, (after, prefix + _AFTER_ALL, PAGE)).fetchall()
                buckets += _delete_full(connection, rows, now)
                if len(rows) < PAGE:
                    return Swept(buckets, expired, leases)
                after = rows[-1][0]

        return self._write(work)

    def setup(self) -> None:
        self.ping()

    def ping(self) -> None:
        self._read("SELECT 1 FROM buckets LIMIT 1")

    def close(self) -> None:
        with self.lock:
            self.disconnect()

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _load(connection: sqlite3.Connection, wanted: dict[_Place, Part]) -> dict[_Place, State]:
    keys = {key for key, _ in wanted}
    rows = (
        connection.execute(_READ_ONE, tuple(keys))
        if len(keys) == 1
        else connection.execute(_READ_MANY, (json.dumps(list(keys)),))
    )
    return {
        (key, name): _slots(row, slots.read(connection, (key, name))) if not refill else _bucket(row, part.limit)
        for row in rows.fetchall()
        for key, name, _, refill, *_ in (row,)
        if (part := wanted.get((key, name)))
    }


def _bucket(row: _Row, limit: Limit | None = None) -> Bucket:
    """The bucket of a row; with `limit` itself as its limit if that is the one it was stored under."""
    _, name, capacity_milli, refill_milli, period_ms, *state = row
    if (
        limit is None
        or limit.capacity_milli != capacity_milli
        or limit.refill_milli != refill_milli
        or limit.period_ms != period_ms
    ):
        limit = Limit.from_stored(name, capacity_milli, refill_milli, period_ms)
    return Bucket(limit, *state)


def _slots(row: _Row, holders: slots.Holders) -> Slots:
    _, name, capacity_milli, _, ttl_ms, _, settled_at_ms, _, blocked_until_ms, revision = row
    limit = Limit.from_stored(name, capacity_milli, 0, ttl_ms)
    return Slots(limit, settled_at_ms, holders, blocked_until_ms, revision)


def _full_at_ms(row: _Row) -> int:
    _, _, _, refill_milli, _, last_ms, _, _, blocked_until_ms, _ = row
    return _bucket(row).full_at_ms() if refill_milli else max(last_ms, blocked_until_ms)


def _delete_full(connection: sqlite3.Connection, rows: Iterable[_Row], now_ms: int) -> int:
    full = [row[:2] for row in rows if _full_at_ms(row) <= now_ms]
    connection.executemany("DELETE FROM buckets WHERE key = ? AND limit_name = ?", full)
    connection.executemany("DELETE FROM slots WHERE key = ? AND limit_name = ?", full)
    return len(full)


def _settled(rows: Iterable[_Row], held: dict[_Place, slots.Holders], now_ms: int) -> Iterator[State]:
    for row in rows:
        state = _bucket(row) if row[3] else _slots(row, held.get(row[:2], {}))
        state.settle(now_ms)
        yield state


def _values(state: State) -> tuple[int, ...]:
    limit = state.limit
    tokens_milli, remainder = (
        (state.tokens_milli, state.remainder) if isinstance(state, Bucket) else (state.full_at_ms(), 0)
    )
    return (
        limit.capacity_milli,
        limit.refill_milli,
        limit.period_ms,
        tokens_milli,
        state.settled_at_ms,
        remainder,
        state.blocked_until_ms,
        state.revision,
    )


def _apply(connection: sqlite3.Connection, change: Change) -> None:
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
