"""The table of records; and listing, counting and deleting the rows of a namespace in all tables."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

from ...core.errors import VersionConflict
from ...core.names import REGISTRY
from ...core.records import ABSENT, Change, Check, Put
from . import usage
from .rows import bounds_of

PURGED = 5000  # rows in one transaction: others wait for it
_TABLES = ("buckets", "slots", "usage", "records")
_LIVE = "(expires_at_ms IS NULL OR expires_at_ms > ?)"
GET = f"SELECT key, value, version FROM records WHERE key IN (SELECT value FROM json_each(?)) AND {_LIVE}"
LIST = (
    f"SELECT key, value, version FROM records WHERE key > ? AND key >= ? AND key < ? AND {_LIVE} ORDER BY key LIMIT ?"
)


def apply(connection: sqlite3.Connection, change: Change) -> None:
    row = connection.execute("SELECT version FROM records WHERE key = ?", (change.key,)).fetchone()
    version = row[0] if row and type(row[0]) is int and row[0] >= 0 else ABSENT  # an unreadable one too
    if change.expected is not None and change.expected != version:
        raise VersionConflict(change.key)
    if isinstance(change, Put):
        connection.execute(
            "INSERT OR REPLACE INTO records (key, value, version, expires_at_ms) VALUES (?, ?, ?, ?)",
            (change.key, json.dumps(change.value), version + 1, change.expires_at_ms),
        )
    elif not isinstance(change, Check):
        connection.execute("DELETE FROM records WHERE key = ?", (change.key,))


def list_namespaces(connection: sqlite3.Connection) -> list[str]:
    found = {namespace for table in _TABLES for namespace in _namespaces_in(connection, table)}
    return sorted(found - {REGISTRY})


def _namespaces_in(connection: sqlite3.Connection, table: str) -> Iterator[str]:
    """Skips from one namespace to the next, however many rows each has."""
    after = ""
    query = f"SELECT key FROM {table} WHERE key > ? ORDER BY key LIMIT 1"
    while row := connection.execute(query, (after,)).fetchone():
        namespace = row[0].partition("/")[0]
        yield namespace
        after = bounds_of(namespace)[1]


def count_rows(connection: sqlite3.Connection, namespace: str) -> int:
    queries = (f"SELECT count(*) FROM {table} WHERE key > ? AND key < ?" for table in ("buckets", "records"))
    return sum(connection.execute(query, bounds_of(namespace)).fetchone()[0] for query in queries)


def delete_some(connection: sqlite3.Connection, namespace: str) -> int:
    """Delete some of a namespace. Returns how many rows that was."""
    removed = 0
    for table in ("records", "buckets", "slots"):
        doomed = f"SELECT key FROM {table} WHERE key > ? AND key < ? LIMIT ?"
        parameters = (*bounds_of(namespace), PURGED - removed)
        removed += connection.execute(f"DELETE FROM {table} WHERE key IN ({doomed})", parameters).rowcount
        if removed >= PURGED:
            return removed
    return removed or usage.delete_some(connection, bounds_of(namespace), PURGED)
