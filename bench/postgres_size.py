"""How large the table of buckets gets, and stays, under a million decisions on a thousand keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from headgate import Limit
from headgate.core.decide import TAKE, Part, Request
from headgate.core.names import StoredId, bucket_key
from headgate.stores import open_store

KEYS = 1000
_BATCH = 250
_SIZES = """
SELECT pg_relation_size('headgate.buckets'), pg_relation_size('headgate.buckets_pkey'),
  n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = 'headgate' AND relname = 'buckets'"""


@dataclass(frozen=True)
class Bloat:
    """Bytes of the table and of its index, and how many of the updates stayed on their page."""

    decisions: int
    table_bytes: int
    index_bytes: int
    hot_updates: float


def on_postgres(url: str, decisions: int = 1_000_000) -> list[Bloat]:
    """At the beginning (every key once), at a tenth, and at the end."""
    store = open_store(url, 30.0)
    store.setup()
    part = (Part(0, Limit.per_hour("requests", 10**9), 1000),)
    keys = [bucket_key("bloat", StoredId(f"user-{number}"), "api") for number in range(KEYS)]
    requests = [Request(TAKE, (key,), part) for key in keys]
    found: list[Bloat] = []
    done = 0
    for stop in (KEYS, decisions // 10, decisions):
        while done < stop:
            begins = done % KEYS
            store.settle(requests[begins : begins + _BATCH], None)
            done += _BATCH
        found.append(_look(url, done))
    store.close()
    return found


def rows(url: str, decisions: int) -> list[dict[str, Any]]:
    """As a table of sizes."""
    return [
        {
            "name": f"after {bloat.decisions:,} decisions on {KEYS:,} keys",
            "bytes_each": bloat.table_bytes,
            "note": f"index {bloat.index_bytes:,}; {bloat.hot_updates:.1%} of the updates stayed on their page",
        }
        for bloat in on_postgres(url, decisions)
    ]


def _look(url: str, done: int) -> Bloat:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_clear_snapshot()")
        row = connection.execute(_SIZES).fetchone()
    assert row is not None
    table_bytes, index_bytes, updates, hot = row
    return Bloat(done, table_bytes, index_bytes, hot / max(updates, 1))
