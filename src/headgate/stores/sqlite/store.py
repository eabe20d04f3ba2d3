"""The store in a file: one connection, one transaction per batch."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

from ...core.bucket import Bucket
from ...core.decide import PEEK, Answer, Part, Request, State, decide, is_of_kind, state_of
from ...core.errors import CorruptState, PartlyAnswered
from ...core.names import parse_bucket_key
from ...core.records import BucketRow, Change, Page, Record, Swept, read_record
from ...core.slots import Slots
from ...core.usage import UsageRow, hour_of, is_over
from ..locks import OwnedLock, locked_during_fork, reentered
from . import records, rows, usage
from .connection import busy, connect, explained, fetched, identity, patiently
from .rows import AFTER_ALL, Place, bounds_of

log = logging.getLogger("headgate")

PAGE = 1000
LOOK_SECONDS = 1.0  # between checks that the file is still the same

T = TypeVar("T")


class SqliteStore:
    own_clock = False
    in_process = False

    def __init__(self, path: str, timeout_seconds: float) -> None:
        self.usage_ms = 0
        self._path = path
        self._timeout_seconds = timeout_seconds
        self.lock = OwnedLock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._look_at = 0.0
        self._seen: dict[Place, int] = {}
        self._new_rows = 0
        self._eviction_cursor = ""
        self._usage_cursor: Place = ("", "")
        locked_during_fork(self)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_SECONDS
            if identity(self._path) != self._identity:
                log.error("%r was deleted or replaced while it was open: limits start anew in the file that is there "
                    "now", self._path)  # fmt: skip
                self._disconnect()
        if self._connection is None:
            self._connection = connect(self._path, self._timeout_seconds)
            self._identity = identity(self._path)
            self._seen.clear()
        return self._connection

    def _alone(self, work: Callable[[float], T]) -> T:
        """Run `work` with exclusive use of the connection. Its argument is the seconds that are left."""
        if self.lock.owned():
            raise reentered()
        deadline = time.monotonic() + self._timeout_seconds
        try:
            with self.lock:  # each thread in front has its own deadline
                seconds = deadline - time.monotonic()
                if seconds <= 0:
                    raise busy(self._path)
                return work(seconds)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise explained(error, self._path) from error

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a write transaction."""

        def write(seconds: float) -> T:
            connection = self._connected()
            try:  # an interrupt may come with the BEGIN
                patiently(lambda: connection.execute("BEGIN IMMEDIATE"), seconds)
                result = work(connection)
                connection.execute("COMMIT")
                return result
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

        return self._alone(write)

    def _look(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do the work while nothing changes for it. It writes nothing."""

        def look(seconds: float) -> T:
            connection = self._connected()
            return patiently(lambda: _in_one_look(connection, work), seconds)

        return self._alone(look)

    def _read(self, query: str, *parameters: object) -> list[Any]:
        return self._look(lambda connection: fetched(connection, query, *parameters))

    # Buckets

    def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        assert now_ms is not None
        now = now_ms

        def work(connection: sqlite3.Connection) -> list[Answer | CorruptState]:
            if len(batch) == 1 and len(batch[0].parts) == 1 and not batch[0].parts[0].limit.is_concurrent:
                return [self._settle_one(connection, batch[0], now)]
            return [result for run in _of_one_kind(batch) for result in self._settle_run(connection, run, now)]

        results = self._write(work)
        answers = [result for result in results if result.__class__ is Answer]
        if len(answers) < len(results):
            raise PartlyAnswered(results)
        return answers

    def _settle_run(
        self, connection: sqlite3.Connection, batch: Sequence[Request], now_ms: int
    ) -> list[Answer | CorruptState]:
        wanted = {(request.keys[part.level], part.limit.name): part for request in batch for part in request.parts}
        stored, corrupt = rows.load(connection, wanted)
        for place in corrupt:
            del wanted[place]
        over: set[Place] = set()
        states = {place: self._state(place, part, stored, over, now_ms) for place, part in wanted.items()}
        results = [_result(request, states, corrupt, now_ms) for request in batch]
        self._save(connection, batch, states, stored, over, now_ms)
        return results

    def _settle_one(self, connection: sqlite3.Connection, request: Request, now_ms: int) -> Answer | CorruptState:
        """The same for the most common kind of request."""
        (part,) = request.parts
        place = (request.keys[part.level], part.limit.name)
        try:
            stored = rows.load_place(connection, place, part.limit)
        except CorruptState as error:
            return error
        over: set[Place] = set()
        bucket = self._state(place, part, stored, over, now_ms)
        answer = decide(request, (bucket,), now_ms)
        self._save(connection, (request,), {place: bucket}, stored, over, now_ms)
        return answer

    def _state(self, place: Place, part: Part, stored: dict[Place, State], over: set[Place], now_ms: int) -> State:
        """The state of a place at the start of a batch. The place is added to `over` if its usage must be put away."""
        state = stored.get(place)
        seen_ms = self._seen.get(place, 0)
        if state is None or not is_of_kind(state, part.limit):
            if state is not None:
                over.add(place)
            return state_of(part, max(seen_ms, now_ms))
        if (
            isinstance(state, Bucket)
            and state.used_milli
            # A process that does not count usage must not lose what others have counted.
            and (is_over(state, max(seen_ms, now_ms)) or not self.usage_ms)
        ):
            over.add(place)
            state.used_milli = 0
        state.settle(seen_ms)
        return state

    def _save(
        self,
        connection: sqlite3.Connection,
        batch: Sequence[Request],
        states: dict[Place, State],
        stored: dict[Place, State],
        over: set[Place],
        now_ms: int,
    ) -> None:
        if over:
            for place in over & _used(batch) & states.keys():
                if type(states[place]) is not type(stored[place]):
                    states[place].changed = True  # a limit that changed its kind starts anew, even if it refuses
            self._put_away(connection, [place for place in over if states[place].changed], now_ms)
        inserts: list[rows.Values] = []
        updates: list[rows.Values] = []
        for place, state in states.items():
            before = stored.get(place)
            if state.changed:
                (inserts if before is None else updates).append(rows.values_of(state, place, bool(self.usage_ms)))
                if isinstance(state, Slots) or isinstance(before, Slots):
                    rows.save_holders(connection, place, state)
            else:
                # A look writes nothing, but time must not run backwards for the caller.
                self._seen[place] = state.settled_at_ms
        if updates:
            connection.executemany(rows.UPDATE, updates)
        if inserts:
            connection.executemany(rows.INSERT, inserts)
            self._new_rows += len(inserts)
        if len(self._seen) > PAGE:
            self._seen.clear()
        if self._new_rows >= PAGE:
            self._forget_full(connection, now_ms)

    def _put_away(self, connection: sqlite3.Connection, places: Sequence[Place], now_ms: int) -> None:
        usage.put_away(connection, places)
        self._forget_usage(connection, 2 * len(places), now_ms)

    def _forget_full(self, connection: sqlite3.Connection, now_ms: int) -> None:
        """Look at two pages of rows for every page of new ones, so that full ones go faster than others come."""
        self._new_rows = 0
        found = fetched(connection, rows.READ_AFTER, self._eviction_cursor, AFTER_ALL, 2 * PAGE)
        _delete_full(connection, found, now_ms)
        self._eviction_cursor = found[-1][0] if len(found) == 2 * PAGE else ""
        self._forget_usage(connection, 2 * PAGE, now_ms)

    def _forget_usage(self, connection: sqlite3.Connection, places: int, now_ms: int) -> None:
        """The same for usage that is too old."""
        if self.usage_ms:
            hour = hour_of(now_ms - self.usage_ms)
            self._usage_cursor = usage.forget(connection, self._usage_cursor, AFTER_ALL, hour, places) or ("", "")

    def delete_buckets(self, keys: Sequence[str]) -> None:
        doomed = [(key,) for key in keys]

        def work(connection: sqlite3.Connection) -> None:
            usage.put_keys_away(connection, doomed)
            connection.executemany("DELETE FROM buckets WHERE key = ?", doomed)
            connection.executemany("DELETE FROM slots WHERE key = ?", doomed)
            self._seen = {place: ms for place, ms in self._seen.items() if place[:1] not in doomed}

        self._write(work)

    def list_buckets(
        self, namespace: str, entity_id: str | None, resource: str | None, cursor: str | None, now_ms: int | None
    ) -> Page[BucketRow]:
        assert now_ms is not None
        start, end = bounds_of(namespace, entity_id)
        found = self._read(rows.READ_PAGE, max(cursor or start, start), end, PAGE)
        held = rows.holders_by_place(self._read(rows.READ_HOLDERS, found[0][0], found[-1][0])) if found else {}
        page, corrupt = list[BucketRow](), list[CorruptState]()
        last, count = None, 0
        for last, of_key in groupby(found, key=itemgetter(0)):
            count += 1
            _, row_entity, row_resource = parse_bucket_key(last)
            if resource in (None, row_resource):
                try:
                    page.append(BucketRow(row_entity, row_resource, tuple(rows.settled(of_key, held, now_ms))))
                except CorruptState as error:
                    corrupt.append(error)
        return Page(page, last if count == PAGE else None, corrupt)

    # Records

    def get_records(self, keys: Sequence[str], now_ms: int | None) -> list[Record | None]:
        found = {row[0]: read_record(*row) for row in self._read(records.GET, json.dumps(list(keys)), now_ms)}
        return [found.get(key) for key in keys]

    def write_records(self, changes: Sequence[Change], now_ms: int | None) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM records WHERE expires_at_ms <= ?", (now_ms,))
            for change in changes:
                records.apply(connection, change)

        self._write(work)

    def list_records(self, prefix: str, cursor: str | None, limit: int, now_ms: int | None) -> Page[Record]:
        found = self._read(records.LIST, cursor or "", prefix, prefix + AFTER_ALL, now_ms, limit + 1)
        page = [read_record(*row) for row in found[:limit]]
        return Page(page, page[-1].key if len(found) > limit else None)

    # Usage

    def list_usage(
        self,
        namespace: str,
        entity_id: str | None,
        resource: str | None,
        hours: tuple[int, int],
        cursor: str | None,
        now_ms: int | None,
    ) -> Page[UsageRow]:
        start, end = bounds_of(namespace, entity_id)
        bounds, with_open = (max(cursor or start, start), end), bool(self.usage_ms)
        return self._look(lambda connection: usage.read_page(connection, bounds, resource, hours, with_open=with_open))

    # Maintenance

    def sweep(self, namespace: str, now_ms: int | None) -> Swept:
        assert now_ms is not None
        now = now_ms
        start, end = bounds_of(namespace)

        def work(connection: sqlite3.Connection) -> Swept:
            expired = connection.execute("DELETE FROM records WHERE expires_at_ms <= ?", (now,)).rowcount
            leases = rows.free_expired(connection, now, start, end)
            buckets, after = 0, start
            while True:
                found = fetched(connection, rows.READ_AFTER, after, end, PAGE)
                buckets += _delete_full(connection, found, now)
                if len(found) < PAGE:
                    return Swept(buckets, expired, leases)
                after = found[-1][0]

        swept = self._write(work)
        after: Place | None = (start, "") if self.usage_ms else None
        while after:
            after = self._write(
                partial(usage.forget, after=after, end=end, hour=hour_of(now - self.usage_ms), most=PAGE)
            )
        return swept

    def list_stored(self) -> list[str]:
        return self._look(records.list_namespaces)

    def count_stored(self, namespace: str) -> int:
        return self._look(lambda connection: records.count_rows(connection, namespace))

    def purge(self, namespace: str) -> int:
        return self._write(lambda connection: records.delete_some(connection, namespace))

    def setup(self) -> None:
        self.ping()

    def ping(self) -> None:
        self._read("SELECT 1 FROM buckets LIMIT 1")

    def close(self) -> None:
        self._alone(lambda _: self._disconnect())

    def before_fork(self) -> None:
        """SQLite would take the parent's locks for the child's own, and the parent would remove the log under the child
        when it closes. So both open the file again."""
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _result(
    request: Request, states: dict[Place, State], corrupt: dict[Place, CorruptState], now_ms: int
) -> Answer | CorruptState:
    places = [(request.keys[level], limit.name) for level, limit, _, _ in request.parts]
    for place in places if corrupt else ():
        if place in corrupt:
            return corrupt[place]
    return decide(request, [states[place] for place in places], now_ms)


def _of_one_kind(batch: Sequence[Request]) -> Iterator[Sequence[Request]]:
    """The batch in pieces. In each, a place has limits of one kind."""
    first, kinds = 0, dict[Place, int]()
    for index, request in enumerate(batch):
        wanted = {
            (request.keys[part.level], part.limit.name): min(part.limit.refill_milli, 1) for part in request.parts
        }
        if any(kinds.get(place, kind) != kind for place, kind in wanted.items()):
            yield batch[first:index]
            first, kinds = index, {}
        kinds |= wanted
    yield batch[first:]


def _used(batch: Sequence[Request]) -> set[Place]:
    """The places where a request does more than look."""
    return {
        (request.keys[part.level], part.limit.name)
        for request in batch
        if request.mode is not PEEK
        for part in request.parts
    }


def _in_one_look(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    try:
        connection.execute("BEGIN")
        return work(connection)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _delete_full(connection: sqlite3.Connection, found: Iterable[rows.Row], now_ms: int) -> int:
    full = [row[:2] for row in found if rows.is_full(row, now_ms)]
    usage.put_away(connection, full)
    connection.executemany("DELETE FROM buckets WHERE key = ? AND limit_name = ?", full)
    connection.executemany("DELETE FROM slots WHERE key = ? AND limit_name = ?", full)
    return len(full)
