"""What was used, by the hour, in an SQLite file: to the token, whoever counts, and for as long as it is wanted."""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlite_helpers import query, url_of

from headgate import Limit
from headgate.core.decide import FORCE, PEEK, PENALIZE, TAKE, Mode, Part, Request, refund
from headgate.core.units import MAX_AMOUNT, MAX_DEBT_MILLI, MILLI
from headgate.core.usage import DAY_MS, HOUR_MS, UsageRow, hour_of
from headgate.stores.sqlite import open_blocking
from headgate.stores.sqlite.store import SqliteStore

KEPT_MS = 90 * DAY_MS
START_MS = 500_000 * HOUR_MS
ALL_HOURS = (0, 10**9)
PLENTY = Limit.custom("tokens", 1_000_000, 1, 3600)
Counted: TypeAlias = "dict[tuple[str, str, int], int]"  # by key, limit, hour


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(opened(path)) as store:
        yield store


def opened(path: Path | str, usage_ms: int = KEPT_MS) -> SqliteStore:
    store = open_blocking(url_of(path), 10.0)
    store.usage_ms = usage_ms
    return store


def request(mode: Mode, key: str, limits: list[Limit], milli: int) -> Request:
    parts = tuple(Part(0, limit, milli) for limit in limits)
    return Request(mode, (key,), parts, block_ms=1000, lease_id="lease")


def used(store: SqliteStore, namespace: str, entity_id: str | None = None, resource: str | None = None) -> Counted:
    return {
        (f"{namespace}/{row.entity_id}#{row.resource}", name, hour): counted
        for row in pages(store, namespace, entity_id, resource)
        for name, hours in row.used.items()
        for hour, counted in hours.items()
        if counted
    }


def pages(store: SqliteStore, *where: str | None, hours: tuple[int, int] = ALL_HOURS) -> Iterator[UsageRow]:
    namespace, *rest = where
    cursor = None
    while True:
        page = store.list_usage(namespace, *rest, hours, cursor, START_MS)
        yield from page
        if (cursor := page.cursor) is None:
            return


# Any history

KEYS = ["ns/a#api", "ns/a#web", "ns/a-b#api", "ns/b#api", "n/a#api"]
LIMITS = [
    [Limit.custom("tokens", 10, 1, 60)],
    [Limit.custom("tokens", 100, 100, 3600), Limit.custom("more", 7, 1, 1)],
    [Limit.concurrent("tokens", 10)],
    [Limit.custom("more", 5, 5, 86_400)],
]
milli = st.integers(1, 12_000)
calls = st.tuples(
    st.sampled_from([TAKE, TAKE, TAKE, FORCE, PEEK, PENALIZE]), st.sampled_from(KEYS), st.sampled_from(LIMITS), milli
)
steps = st.one_of(
    st.tuples(st.just("call"), st.integers(0, 2), st.lists(calls, min_size=1, max_size=3)),
    st.tuples(st.just("refund"), st.integers(0, 2), st.integers(0, 9)),
    st.tuples(st.just("pass"), st.sampled_from([1, 1000, 60_000, 3_599_999, HOUR_MS, 5 * HOUR_MS, DAY_MS])),
    st.tuples(st.just("reset"), st.integers(0, 2), st.sampled_from(KEYS)),
    st.tuples(st.just("sweep"), st.integers(0, 2)),
)


class History:
    """Two who count and one who does not, on one file, and a dict of what the hours must be."""

    def __init__(self, folder: str) -> None:
        self.stores = [opened(f"{folder}/limits.db", usage_ms) for usage_ms in (KEPT_MS, KEPT_MS, 0)]
        self.expected: Counter[tuple[str, str, int]] = Counter()
        self.taken: list[Request] = []
        self.now_ms = START_MS

    def play(self, step: tuple) -> None:  # type: ignore[type-arg]
        what, *arguments = step
        getattr(self, f"do_{what}")(*arguments)

    def do_call(self, who: int, calls: list[tuple[Mode, str, list[Limit], int]]) -> None:
        kinds = {(key, limit.name): limit.is_concurrent for _, key, limits, _ in calls for limit in limits}
        batch = [
            request(*call)
            for call in calls  # one batch does not use a limit as both kinds
            if all(kinds[call[1], limit.name] is limit.is_concurrent for limit in call[2])
        ]
        for asked, answer in zip(batch, self.stores[who].settle(batch, self.now_ms)):
            if asked.mode is FORCE or (asked.mode is TAKE and answer.allowed):
                self.count(asked, who)
                self.taken.append(asked)

    def do_refund(self, who: int, which: int) -> None:
        if self.taken:
            back = refund(self.taken.pop(which % len(self.taken)))
            self.stores[who].settle([back], self.now_ms)
            self.count(back, who)

    def count(self, asked: Request, who: int) -> None:
        for _, limit, amount_milli, _ in asked.parts if self.stores[who].usage_ms else ():
            if not limit.is_concurrent:
                self.expected[asked.keys[0], limit.name, hour_of(self.now_ms)] += amount_milli

    def do_pass(self, ms: int) -> None:
        self.now_ms += ms

    def do_reset(self, who: int, key: str) -> None:
        self.stores[who].delete_buckets([key])

    def do_sweep(self, who: int) -> None:
        self.stores[who].sweep("ns", self.now_ms)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, max_size=40))
def test_hours_are_what_was_taken_less_what_was_given_back(played: list[tuple]) -> None:  # type: ignore[type-arg]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        history = History(folder)
        for store in history.stores:
            stack.enter_context(closing(store))
        for step in played:
            history.play(step)
        found = {**used(history.stores[0], "ns"), **used(history.stores[1], "n")}
        assert found == {place: counted for place, counted in history.expected.items() if counted}
        assert used(history.stores[0], "ns", "a", "web") == {
            place: counted for place, counted in found.items() if place[0] == "ns/a#web"
        }


@pytest.mark.parametrize("table", ["usage", "buckets"])
def test_a_count_that_is_being_put_away_is_neither_missed_nor_seen_twice(
    table: str, path: Path, store: SqliteStore
) -> None:
    """Whichever of the two tables is looked at next when it happens."""
    hours = iter(range(100))

    def take(statement: str = "") -> None:
        if f"FROM {table}" in statement or not statement:
            other.settle([request(TAKE, "ns/a#api", [PLENTY], 1)], START_MS + next(hours) * HOUR_MS)

    store.ping()
    with closing(opened(path)) as other:
        take()
        assert store._connection is not None
        store._connection.set_trace_callback(take)
        found = used(store, "ns")
        store._connection.set_trace_callback(None)
    taken = next(hours)
    assert taken > 1
    assert 1 <= len(found) <= taken
    assert list(found.values()) == [1] * len(found)
    assert {hour - hour_of(START_MS) for _, _, hour in found} == set(range(len(found)))
    assert len(used(store, "ns")) == taken


# What is written and read is a number that fits


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_stop_where_a_file_can_hold_them(sign: int, store: SqliteStore) -> None:
    batch = [request(FORCE, "ns/a#api", [PLENTY], sign * MAX_AMOUNT * MILLI)] * 2000
    for _ in range(2):
        store.settle(batch, START_MS)
        store.delete_buckets(["ns/a#api"])
        assert list(used(store, "ns").values()) == [sign * MAX_DEBT_MILLI]


def test_many_hours_come_in_pages(path: Path, store: SqliteStore) -> None:
    store.ping()
    written = {(f"ns/e{key:03}#api", "tokens", hour): key + hour for key in range(250) for hour in range(1, 61)}
    with closing(sqlite3.connect(path)) as connection:
        connection.executemany("INSERT INTO usage VALUES (?, ?, ?, ?)", [(*place, n) for place, n in written.items()])
        connection.commit()
    store.settle([request(FORCE, "ns/e100#api", [PLENTY], 5)], START_MS)
    written["ns/e100#api", "tokens", hour_of(START_MS)] = 5
    assert store.list_usage("ns", None, None, ALL_HOURS, None, START_MS).cursor is not None
    assert used(store, "ns") == written
    some = pages(store, "ns", None, None, hours=(10, 12))
    assert all(row.used["tokens"].keys() == {10, 11} for row in some)
    assert used(store, "ns", None, "web") == {}


# For as long as it is wanted


def test_what_is_too_old_goes_by_the_way(path: Path, store: SqliteStore) -> None:
    """Though nobody sweeps, and nobody comes back."""
    store.usage_ms = 2 * DAY_MS
    soon = Limit.per_second("tokens", 10)
    for day in range(8):
        batch = [request(TAKE, f"ns/{day}-{number}#api", [soon], 1000) for number in range(2000)]
        for start in range(0, len(batch), 500):
            store.settle(batch[start : start + 500], START_MS + day * DAY_MS + start)
    rows = query(path, "SELECT count(*) FROM usage")
    assert 2 * 2000 <= rows <= 6 * 2000
    now_ms = START_MS + 8 * DAY_MS
    store.sweep("ns", now_ms)
    assert query(path, "SELECT min(hour) FROM usage") == hour_of(now_ms - store.usage_ms)
    assert sum(used(store, "ns").values()) == 2 * 2000 * 1000


def test_one_who_comes_every_hour_keeps_what_is_wanted(path: Path, store: SqliteStore) -> None:
    store.usage_ms = 5 * HOUR_MS
    for hour in range(50):
        store.settle([request(TAKE, "ns/a#api", [PLENTY], 1000)], START_MS + hour * HOUR_MS)
    assert 5 <= query(path, "SELECT count(*) FROM usage") <= 7
    assert [hour - hour_of(START_MS) for _, _, hour in used(store, "ns")][-5:] == [45, 46, 47, 48, 49]


def test_one_who_counts_nothing_forgets_nothing(path: Path, store: SqliteStore) -> None:
    for hour in range(3):
        store.settle([request(TAKE, "ns/a#api", [PLENTY], 1000)], START_MS + hour * HOUR_MS)
    before = used(store, "ns")
    with closing(opened(path, 0)) as other:
        later_ms = START_MS + 100 * DAY_MS
        other.settle([request(TAKE, "ns/a#api", [PLENTY], 1000)], later_ms)
        other.sweep("ns", later_ms)
        assert used(other, "ns") == used(store, "ns") == before
        assert len(before) == 3


def test_looking_puts_nothing_away(path: Path, store: SqliteStore) -> None:
    """Nor does a refused take: what is not written is still counted where it was."""
    store.settle([request(TAKE, "ns/a#api", [PLENTY], 1000)], START_MS)
    for mode, milli in ((PEEK, 1000), (TAKE, 10**12)):
        store.settle([request(mode, "ns/a#api", [PLENTY], milli)], START_MS + HOUR_MS)
    store.settle([request(PEEK, "ns/a#api", [Limit.concurrent("tokens", 1)], 1000)], START_MS + HOUR_MS)
    assert query(path, "SELECT count(*) FROM usage") == 0
    store.settle([request(TAKE, "ns/a#api", [PLENTY], 500)], START_MS)  # a clock that is behind what was seen
    assert used(store, "ns") == {
        ("ns/a#api", "tokens", hour_of(START_MS)): 1000,
        ("ns/a#api", "tokens", hour_of(START_MS) + 1): 500,
    }
