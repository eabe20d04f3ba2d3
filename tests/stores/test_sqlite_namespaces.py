"""Namespaces in an SQLite file: which there are, and removing one in steps that can be gone on with."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_helpers import another, query, url_of

from headgate import Limit
from headgate.core.decide import TAKE, Part, Request
from headgate.core.records import Put
from headgate.core.usage import HOUR_MS
from headgate.stores.sqlite import open_blocking
from headgate.stores.sqlite.store import SqliteStore

NAMESPACES = ["a", "a-b", "a.b", "a0", "ab", "b"]  # `/` sorts between some of what may follow an `a`
TABLES = ["buckets", "slots", "usage", "records"]
KINDS = [Limit.per_hour("calls", 100), Limit.concurrent("slots", 5)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(open_blocking(url_of(path), 10.0)) as store:
        store.usage_ms = 1000 * HOUR_MS
        yield store


def fill(store: SqliteStore, namespace: str) -> None:
    """Something in every table."""
    parts = tuple(Part(0, limit, 1000) for limit in KINDS)
    for hour in (1, 2):
        store.settle([Request(TAKE, (f"{namespace}/ada#api",), parts, lease_id="lease")], hour * HOUR_MS)
    store.write_records([Put(f"{namespace}/entity#ada", {"name": "Ada"})], 0)


def fill_up(path: Path, namespace: str, count: int) -> None:
    """So many of everything."""
    keys = [f"{namespace}/e{number}#api" for number in range(count)]
    with closing(sqlite3.connect(path)) as connection:
        connection.executemany(
            "INSERT INTO buckets VALUES (?, 'calls', 1000, 1000, 1000, 0, 0, 0, 0, 0, 5)", [(key,) for key in keys]
        )
        connection.executemany("INSERT INTO slots VALUES (?, 'slots', 'lease', 1000, 1)", [(key,) for key in keys])
        connection.executemany("INSERT INTO usage VALUES (?, 'calls', 1, 5)", [(key,) for key in keys])
        connection.executemany(
            "INSERT INTO records VALUES (?, ?, 1, NULL)", [(key, json.dumps({"n": 1})) for key in keys]
        )
        connection.commit()


def rows_of(path: Path, namespace: str) -> dict[str, int]:
    where = f"WHERE substr(key, 1, {len(namespace) + 1}) = '{namespace}/'"
    return {table: query(path, f"SELECT count(*) FROM {table} {where}") for table in TABLES}


def purge_all(store: SqliteStore, namespace: str) -> int:
    total = 0
    while removed := store.purge(namespace):
        total += removed
    return total


def test_namespaces_are_listed_and_removed_one_by_one(path: Path, store: SqliteStore) -> None:
    fill(store, "_")
    for namespace in NAMESPACES:
        fill(store, namespace)
    before = {namespace: rows_of(path, namespace) for namespace in NAMESPACES}
    assert before["a"] == {"buckets": 2, "slots": 1, "usage": 1, "records": 1}
    left = list(NAMESPACES)
    while left:
        assert store.list_stored() == sorted(left)
        doomed = left.pop(0)
        assert store.count_stored(doomed) == 3
        assert purge_all(store, doomed) >= 3
        assert store.count_stored(doomed) == 0
        assert rows_of(path, doomed) == dict.fromkeys(TABLES, 0)
        assert {namespace: rows_of(path, namespace) for namespace in left} == {
            namespace: before[namespace] for namespace in left
        }
    assert store.list_stored() == []
    assert rows_of(path, "_") == before["a"]


@pytest.mark.parametrize("table", TABLES)
def test_whatever_is_left_of_a_namespace_is_found(table: str, path: Path, store: SqliteStore) -> None:
    fill(store, "a")
    with closing(sqlite3.connect(path)) as connection:
        for other in TABLES:
            if other != table:
                connection.execute(f"DELETE FROM {other}")
        connection.commit()
    assert store.list_stored() == ["a"]
    assert purge_all(store, "a")
    assert store.list_stored() == []


def test_a_purge_that_is_killed_is_gone_on_with(path: Path, store: SqliteStore) -> None:
    fill(store, "kept")
    kept = rows_of(path, "kept")
    fill_up(path, "doomed", 10_000)
    with another("purger", path) as purger:
        heard = purger.hear()
        purger.process.kill()
        purger.process.wait()
    assert 0 < heard <= 10_000, "in steps"
    left = rows_of(path, "doomed")
    assert 0 < sum(left.values()) <= 40_000 - heard
    assert store.count_stored("doomed") == left["buckets"] + left["records"]
    assert store.list_stored() == ["doomed", "kept"]
    assert purge_all(store, "doomed") == sum(left.values())
    assert store.list_stored() == ["kept"]
    assert rows_of(path, "kept") == kept
