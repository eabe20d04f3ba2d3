"""The tables of buckets (one row per limit of an entity on a resource, of either kind) and of slots."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from ...core.bucket import Bucket
from ...core.decide import Part, State
from ...core.errors import CorruptState
from ...core.limit import OWN, Limit
from ...core.slots import Slots
from ...core.stored import bucket_as_stored, corrupt_limit, is_sound_limit, is_sound_slots
from ...core.units import MAX_DEBT_MILLI
from .connection import fetched

Place: TypeAlias = tuple[str, str]  # key, limit name
Holders: TypeAlias = dict[str, tuple[int, int]]  # by lease id: millislots, and their expiry
Row: TypeAlias = tuple[str, str, int, int, int, int, int, int, int, int, int]
Values: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, str, str]

AFTER_ALL = chr(0x10FFFF)
_COLUMNS = (
    "capacity_milli, refill_milli, period_ms, tokens_milli, settled_at_ms, remainder, blocked_until_ms, revision,"
    " used_milli"
)
_READ_PLACE = f"SELECT key, limit_name, {_COLUMNS} FROM buckets WHERE key = ? AND limit_name = ?"
_READ_ONE = f"SELECT key, limit_name, {_COLUMNS} FROM buckets WHERE key = ?"
_READ_MANY = f"SELECT key, limit_name, {_COLUMNS} FROM buckets WHERE key IN (SELECT value FROM json_each(?))"
READ_PAGE = (
    f"SELECT key, limit_name, {_COLUMNS} FROM buckets WHERE key IN"
    " (SELECT DISTINCT key FROM buckets WHERE key > ? AND key < ? ORDER BY key LIMIT ?) ORDER BY key, limit_name"
)
READ_AFTER = (
    f"SELECT key, limit_name, {_COLUMNS} FROM buckets WHERE key > ? AND key < ? ORDER BY key, limit_name LIMIT ?"
)
INSERT = f"INSERT INTO buckets ({_COLUMNS}, key, limit_name) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
UPDATE = f"UPDATE buckets SET ({_COLUMNS}) = (?, ?, ?, ?, ?, ?, ?, ?, ?) WHERE key = ? AND limit_name = ?"
READ_HOLDERS = "SELECT key, limit_name, lease_id, held_milli, expires_at_ms FROM slots WHERE key >= ? AND key <= ?"
_EXPIRED = "FROM slots WHERE expires_at_ms <= ? AND key >= ? AND key < ?"


def bounds_of(namespace: str, entity_id: str | None = None) -> tuple[str, str]:
    """All keys of a namespace, or all buckets of an entity, are between these."""
    prefix = f"{namespace}/" if entity_id is None else f"{namespace}/{entity_id}#"
    return prefix, prefix + AFTER_ALL


def load(
    connection: sqlite3.Connection, wanted: dict[Place, Part]
) -> tuple[dict[Place, State], dict[Place, CorruptState]]:
    """Those that exist, and what is wrong with the corrupt ones."""
    keys = {key for key, _ in wanted}
    rows = (
        fetched(connection, _READ_ONE, *keys)
        if len(keys) == 1
        else fetched(connection, _READ_MANY, json.dumps(list(keys)))
    )
    stored: dict[Place, State] = {}
    corrupt: dict[Place, CorruptState] = {}
    for row in rows:
        place = row[:2]
        part = wanted.get(place)
        if part is not None:
            try:
                stored[place] = bucket_of(row, part.limit) if row[3] else slots_of(row, read_holders(connection, place))
            except CorruptState as error:
                corrupt[place] = error
    return stored, corrupt


def load_place(connection: sqlite3.Connection, place: Place, limit: Limit) -> dict[Place, State]:
    """The same for one bucket. Raises if it is corrupt."""
    for row in fetched(connection, _READ_PLACE, *place):
        return {place: bucket_of(row, limit) if row[3] else slots_of(row, {})}
    return {}


def bucket_of(row: Row, limit: Limit | None = None) -> Bucket:
    """The bucket of a row. Its limit is `limit` itself, if that is the one it was stored with."""
    key, name, *numbers = row
    bucket = bucket_as_stored(limit, name, *numbers)
    if bucket is None:
        raise corrupt_limit(key, name, numbers)
    return bucket


def slots_of(row: Row, holders: Holders) -> Slots:
    key, name, capacity_milli, refill_milli, ttl_ms, ends_ms, settled_at_ms, _, blocked_until_ms, revision, _ = row
    if not (
        is_sound_limit(capacity_milli, refill_milli, ttl_ms)
        and is_sound_slots(settled_at_ms, blocked_until_ms, revision, holders)
        and is_sound_slots(ends_ms, 0, 0, {})
    ):
        raise corrupt_limit(key, name, (*row[2:], *holders.values()))
    limit = Limit.from_stored(name, capacity_milli, 0, ttl_ms)
    return Slots(limit, settled_at_ms, holders, blocked_until_ms, revision)


def values_of(state: State, place: Place, counts: bool) -> Values:
    """For INSERT and UPDATE."""
    limit = state.limit
    tokens_milli, remainder, used_milli = (
        (state.tokens_milli, state.remainder, state.used_milli if counts else 0)
        if isinstance(state, Bucket)
        else (state.full_at_ms(), 0, 0)
    )
    if not -MAX_DEBT_MILLI <= used_milli <= MAX_DEBT_MILLI:
        used_milli = MAX_DEBT_MILLI if used_milli > 0 else -MAX_DEBT_MILLI
    return (
        limit.capacity_milli,
        limit.refill_milli,
        limit.period_ms,
        tokens_milli,
        state.settled_at_ms,
        remainder,
        state.blocked_until_ms,
        state.revision,
        used_milli,
        *place,
    )


def is_full(row: Row, now_ms: int) -> bool:
    """A corrupt one never is: it has to be reported."""
    try:
        return (bucket_of(row).full_at_ms() if row[3] else max(row[5], slots_of(row, {}).blocked_until_ms)) <= now_ms
    except CorruptState:
        return False


def settled(rows: Iterable[Row], held: dict[Place, Holders], now_ms: int) -> Iterator[State]:
    for row in rows:
        state = bucket_of(row) if row[3] else slots_of(row, held.get(row[:2], {}))
        state.settle(now_ms)
        yield state


def holders_by_place(rows: Iterable[tuple[str, str, str, int, int]]) -> dict[Place, Holders]:
    held: dict[Place, Holders] = {}
    for key, limit_name, lease_id, held_milli, expires_at_ms in rows:
        held.setdefault((key, limit_name), {})[lease_id] = (held_milli, expires_at_ms)
    return held


def read_holders(connection: sqlite3.Connection, place: Place) -> Holders:
    query = "SELECT lease_id, held_milli, expires_at_ms FROM slots WHERE key = ? AND limit_name = ?"
    rows = fetched(connection, query, *place)
    return {lease_id: (held_milli, expires_at_ms) for lease_id, held_milli, expires_at_ms in rows}


def save_holders(connection: sqlite3.Connection, place: Place, state: State) -> None:
    """Write new holders, and delete those that have expired or were given back."""
    before = read_holders(connection, place)
    after = state.holders if isinstance(state, Slots) else {}
    connection.executemany(
        "DELETE FROM slots WHERE key = ? AND limit_name = ? AND lease_id = ?",
        [(*place, lease_id) for lease_id in before.keys() - after.keys()],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO slots (key, limit_name, lease_id, held_milli, expires_at_ms) VALUES (?, ?, ?, ?, ?)",
        [(*place, lease_id, *held) for lease_id, held in after.items() if before.get(lease_id) != held],
    )


def free_expired(connection: sqlite3.Connection, now_ms: int, start: str, end: str) -> int:
    """Free expired slots of keys from `start` to before `end`. Returns how many leases held them."""
    expired = (now_ms, start, end)
    names = connection.execute(f"SELECT limit_name {_EXPIRED}", expired).fetchall()
    connection.execute(f"DELETE {_EXPIRED}", expired)
    return sum(not name.startswith(OWN) for (name,) in names)
