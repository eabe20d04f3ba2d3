"""Of which namespaces something is stored, how much, and removing it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from ...core.names import REGISTRY
from . import usage
from .keys import bounds_of

PURGED = 5000  # rows in one transaction: others wait for it
_TABLES = ("buckets", "slots", "usage", "records")


def stored(connection: sqlite3.Connection) -> list[str]:
    found = {namespace for table in _TABLES for namespace in _stored_in(connection, table)}
    return sorted(found - {REGISTRY})


def _stored_in(connection: sqlite3.Connection, table: str) -> Iterator[str]:
    """From one to the next, however many rows there are of each."""
    after = ""
    query = f"SELECT key FROM {table} WHERE key > ? ORDER BY key LIMIT 1"
    while row := connection.execute(query, (after,)).fetchone():
        namespace = row[0].partition("/")[0]
        yield namespace
        after = bounds_of(namespace)[1]


def count(connection: sqlite3.Connection, namespace: str) -> int:
    queries = (f"SELECT count(*) FROM {table} WHERE key > ? AND key < ?" for table in ("buckets", "records"))
    return sum(connection.execute(query, bounds_of(namespace)).fetchone()[0] for query in queries)


def purge(connection: sqlite3.Connection, namespace: str) -> int:
    """Some of it."""
    removed = 0
    for table in ("records", "buckets", "slots"):
        doomed = f"SELECT key FROM {table} WHERE key > ? AND key < ? LIMIT ?"
        parameters = (*bounds_of(namespace), PURGED - removed)
        removed += connection.execute(f"DELETE FROM {table} WHERE key IN ({doomed})", parameters).rowcount
        if removed >= PURGED:
            return removed
    return removed or usage.purge(connection, bounds_of(namespace), PURGED)
