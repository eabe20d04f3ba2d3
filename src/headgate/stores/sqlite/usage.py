"""The table of usage: usage by the hour that is no longer counted in a bucket."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import groupby, islice
from operator import itemgetter
from typing import TypeAlias

from ...core.names import parse_bucket_key
from ...core.records import Page
from ...core.stored import LATEST_MS
from ...core.units import MAX_DEBT_MILLI
from ...core.usage import HOUR_MS, UsageRow
from .rows import AFTER_ALL, Place

_Bounds: TypeAlias = tuple[str, str]  # keys after the one and before the other
_Used: TypeAlias = tuple[str, str, int, int]  # key, limit name, hour, millitokens

_NUMBERS = 10_000  # in a page
_HOUR = f"settled_at_ms / {HOUR_MS}"
# Numbers of corrupt rows are left out.
_COUNTED = (
    f"used_milli <> 0 AND typeof(used_milli) = 'integer' AND used_milli BETWEEN -{MAX_DEBT_MILLI} AND {MAX_DEBT_MILLI}"
    f" AND typeof(settled_at_ms) = 'integer' AND settled_at_ms BETWEEN 0 AND {LATEST_MS}"
)
# Both summands are within the bound, so that the sum fits in 63 bits before it is clamped.
_PUT_AWAY = f"""
    INSERT INTO usage (key, limit_name, hour, used_milli)
    SELECT key, limit_name, {_HOUR}, used_milli FROM buckets WHERE {_COUNTED} AND key = ?
    ON CONFLICT DO UPDATE
    SET used_milli = max(-{MAX_DEBT_MILLI}, min({MAX_DEBT_MILLI}, used_milli + excluded.used_milli))"""
_PUT_PLACE_AWAY = _PUT_AWAY.replace("key = ?", "key = ? AND limit_name = ?")
_NEXT_PLACE = (
    "SELECT key, limit_name FROM usage WHERE (key, limit_name) > (?, ?) AND key < ? ORDER BY key, limit_name LIMIT 1"
)
_READ_PLACE = (
    "SELECT key, limit_name, hour, used_milli FROM usage"
    " WHERE key = ? AND limit_name = ? AND hour >= ? AND hour < ? ORDER BY hour"
)
_READ_OPEN = (
    f"SELECT key, limit_name, {_HOUR}, used_milli FROM buckets"
    f" WHERE key > ? AND key < ? AND {_COUNTED} AND {_HOUR} >= ? AND {_HOUR} < ? ORDER BY key, limit_name"
)
_FORGET = "DELETE FROM usage WHERE key = ? AND limit_name = ? AND hour < ?"
_NEVER = 1 << 62


def put_away(connection: sqlite3.Connection, places: Iterable[Place]) -> None:
    """Copy what the stored buckets have counted. The same transaction then writes or deletes them."""
    connection.executemany(_PUT_PLACE_AWAY, places)


def put_keys_away(connection: sqlite3.Connection, keys: Iterable[tuple[str]]) -> None:
    connection.executemany(_PUT_AWAY, keys)


def forget(connection: sqlite3.Connection, after: Place, end: str, hour: int, most: int) -> Place | None:
    """Delete all before an hour at the next `most` places. Returns the last place, or None if there are no more."""
    last, count = None, 0
    for place in islice(_places(connection, after, end), most):
        connection.execute(_FORGET, (*place, hour))
        last, count = place, count + 1
    return last if count == most else None


def delete_some(connection: sqlite3.Connection, bounds: _Bounds, most: int) -> int:
    """Delete all of some places, about `most` rows. Returns the number of places."""
    start, end = bounds
    places = rows = 0
    for place in _places(connection, (start, AFTER_ALL), end):
        rows += connection.execute(_FORGET, (*place, _NEVER)).rowcount
        places += 1
        if rows >= most:
            break
    return places


def read_page(
    connection: sqlite3.Connection, bounds: _Bounds, resource: str | None, hours: tuple[int, int], *, with_open: bool
) -> Page[UsageRow]:
    rows = merge(
        _read_put_away(connection, bounds, hours),
        connection.execute(_READ_OPEN, (*bounds, *hours)) if with_open else (),
    )
    page = []
    numbers = 0
    for key, of_key in groupby(rows, key=itemgetter(0)):
        used = _by_limit(of_key)
        numbers += sum(map(len, used.values()))
        _, entity_id, its_resource = parse_bucket_key(key)
        if resource in (None, its_resource):
            page.append(UsageRow(entity_id, its_resource, used))
        if numbers >= _NUMBERS:
            return Page(page, key)
    return Page(page)


def _read_put_away(connection: sqlite3.Connection, bounds: _Bounds, hours: tuple[int, int]) -> Iterator[_Used]:
    start, end = bounds
    for place in _places(connection, (start, AFTER_ALL), end):
        yield from connection.execute(_READ_PLACE, (*place, *hours))


def _places(connection: sqlite3.Connection, after: Place, end: str) -> Iterator[Place]:
    """Skips from one place to the next, however many hours each has."""
    while found := connection.execute(_NEXT_PLACE, (*after, end)).fetchone():
        after = found
        yield after


def _by_limit(rows: Iterable[_Used]) -> dict[str, dict[int, int]]:
    used: dict[str, dict[int, int]] = {}
    for _, name, hour, used_milli in rows:
        counted = used.setdefault(name, {})
        counted[hour] = counted.get(hour, 0) + used_milli
    return used
