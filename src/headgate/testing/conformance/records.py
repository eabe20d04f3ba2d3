"""The record side of the contract, on the store itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ...core.errors import VersionConflict
from ...core.records import ABSENT, Check, Delete, Put
from ...stores import Store, open_store
from ...stores.contract import MAX_CHANGES
from .fixtures import START_MS, Conformance


class RecordConformance(Conformance):
    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        store = open_store(url, 5.0)
        store.setup()
        yield store
        store.close()

    @pytest.fixture
    def value_of(self, store: Store) -> Callable[[str], Any]:
        def read(key: str) -> Any:
            (record,) = store.get_records([key], START_MS)
            return record and (record.value, record.version)

        return read

    def test_every_write_raises_the_version_by_one(self, store: Store, value_of: Callable[[str], Any]) -> None:
        assert value_of("n/a") is None
        store.write_records([Put("n/a", {"x": 1}, ABSENT)], START_MS)
        assert value_of("n/a") == ({"x": 1}, 1)
        store.write_records([Put("n/a", {"x": 2}, 1)], START_MS)
        store.write_records([Put("n/a", {"x": 3})], START_MS)
        assert value_of("n/a") == ({"x": 3}, 3)

    def test_changes_happen_together_or_not_at_all(self, store: Store, value_of: Callable[[str], Any]) -> None:
        store.write_records([Put("n/a", {"x": 1}), Put("n/b", {"x": 1})], START_MS)
        for conflict in (Put("n/b", {}, ABSENT), Put("n/b", {}, 7), Delete("n/b", 7), Check("n/b", 7), Check("n/c", 1)):
            with pytest.raises(VersionConflict, match=conflict.key):
                store.write_records([Put("n/a", {"x": 2}), Put("n/new", {}), conflict], START_MS)
            assert value_of("n/a") == ({"x": 1}, 1)
            assert value_of("n/new") is None
        store.write_records([Check("n/a", 1), Delete("n/b", 1), Delete("n/missing")], START_MS)
        assert value_of("n/b") is None

    def test_changing_a_value_in_memory_does_not_change_the_store(
        self, store: Store, value_of: Callable[[str], Any]
    ) -> None:
        value = {"list": [1]}
        store.write_records([Put("n/a", value)], START_MS)
        value["list"].append(2)
        value_of("n/a")[0]["list"].append(3)
        assert value_of("n/a") == ({"list": [1]}, 1)

    def test_many_are_read_in_order(self, store: Store) -> None:
        for start in range(0, 300, MAX_CHANGES):
            store.write_records([Put(f"n/{n}", {"n": n}) for n in range(start, start + MAX_CHANGES)], START_MS)
        wanted = [f"n/{n}" for n in (299, 7, 1000, 7, 0)]
        found = store.get_records(wanted, START_MS)
        assert [record and record.value["n"] for record in found] == [299, 7, None, 7, 0]
        assert store.get_records([], START_MS) == []

    def test_list_by_prefix_has_each_record_once_over_all_pages(self, store: Store) -> None:
        keys = ["n/a#", "n/a#1", "n/a#2", "n/a#é", "n/b#1", "n/a", "m/a#1"]
        for namespace in "nm":
            store.write_records([Put(key, {}) for key in keys if key[0] == namespace], START_MS)
        assert {record.key for record in store.list_records("n/a#", None, 10, START_MS)} == {"n/a#", *keys[1:4]}
        first = store.list_records("n/a#", None, 2, START_MS)
        rest = store.list_records("n/a#", first.cursor, 2, START_MS)
        assert len(first) == len(rest) == 2
        assert not {r.key for r in first} & {r.key for r in rest}
        assert rest.cursor is None

    def test_an_expired_record_is_gone_for_reads_lists_and_conditions(
        self, store: Store, value_of: Callable[[str], Any]
    ) -> None:
        soon, later = START_MS + 1000, START_MS + 2000
        store.write_records([Put("n/soon", {}, expires_at_ms=soon), Put("n/later", {}, expires_at_ms=later)], START_MS)
        assert [r.key for r in store.list_records("n/", None, 10, soon - 1)] == ["n/later", "n/soon"]
        assert [r.key for r in store.list_records("n/", None, 10, soon)] == ["n/later"]
        assert store.get_records(["n/soon"], soon) == [None]
        store.write_records([Put("n/soon", {"again": True}, ABSENT)], soon)
        assert value_of("n/soon") == ({"again": True}, 1)
        assert [r.key for r in store.list_records("n/", None, 10, later)] == ["n/soon"]
