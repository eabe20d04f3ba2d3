"""The store in the process: dictionaries and a lock."""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

from ...core.bucket import Bucket
from ...core.decide import (
    PEEK,
    TAKE,
    Answer,
    Mode,
    Part,
    Parts,
    Request,
    State,
    decide,
    is_of_kind,
    state_of,
    take,
    take_one,
)
from ...core.errors import VersionConflict
from ...core.limit import OWN
from ...core.names import REGISTRY, parse_bucket_key
from ...core.quota import Quota
from ...core.records import ABSENT, BucketRow, Change, Check, Page, Put, Record, Swept
from ...core.slots import Slots
from ...core.usage import HOUR_MS, UsageRow, hour_of, is_over
from ..locks import OwnedLock, locked_during_fork, reentered

IDLE_MS = 60_000  # a bucket that was used this recently is kept even if it is full
KEPT_KEYS = 100_000  # whose usage is kept, the last used ones: this is memory
# Most entities have one limit on a resource: a dict for it would double what its bucket takes in memory.
_Row: TypeAlias = "Bucket | dict[str, State]"
_Used: TypeAlias = "dict[str, dict[int, int]]"  # by limit and hour


class _Stored(NamedTuple):
    json: str
    version: int
    expires_at_ms: int | None


class _UsageBook:
    """Usage by the hour that is no longer counted in a bucket."""

    def __init__(self) -> None:
        self._by_key: dict[str, _Used] = {}  # the one that was written last is last

    def put_away(self, key: str, bucket: Bucket, usage_ms: int) -> None:
        """Move what a bucket has counted here, and forget hours of its limit that are too old."""
        if not (bucket.used_milli and usage_ms):
            return
        used = self._by_key[key] = self._by_key.pop(key, {})
        _count(used, bucket)
        bucket.used_milli = 0
        _forget(used[bucket.limit.name], hour_of(bucket.settled_at_ms - usage_ms))
        if len(self._by_key) > KEPT_KEYS:
            del self._by_key[next(iter(self._by_key))]

    def get(self, key: str) -> _Used:
        return {name: dict(hours) for name, hours in self._by_key.get(key, {}).items()}

    def keys(self) -> Iterator[str]:
        return iter(self._by_key)

    def forget_before(self, hour: int) -> None:
        for key, used in list(self._by_key.items()):
            for hours in used.values():
                _forget(hours, hour)
            if not any(used.values()):
                del self._by_key[key]

    def remove(self, namespace: str) -> int:
        doomed = [key for key in self._by_key if parse_bucket_key(key)[0] == namespace]
        for key in doomed:
            del self._by_key[key]
        return len(doomed)


class MemoryStore:
    own_clock = False
    in_process = True

    def __init__(self) -> None:
        self.usage_ms = 0
        self.lock = OwnedLock()
        self._rows: dict[str, _Row] = {}
        self._eviction_cursor: deque[str] = deque()  # every key of _rows; the next to look at is first
        self._records: dict[str, _Stored] = {}
        self._record_keys: list[str] = []  # sorted
        self._expiring: list[tuple[int, str]] = []  # a heap
        self._usage = _UsageBook()
        self._hour_starts_ms = self._hour_ends_ms = 0
        locked_during_fork(self)

    def _alone(self) -> OwnedLock:
        if self.lock.owned():
            raise reentered()
        return self.lock

    def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        assert now_ms is not None
        if self.lock.owned():
            raise reentered()
        with self.lock:
            return [decide(request, self._states(*request[:3], now_ms), now_ms) for request in batch]

    def _states(self, mode: Mode, keys: Sequence[str], parts: Parts, now_ms: int) -> list[State]:
        return [self._state(keys[part.level], part, now_ms, looks=mode is PEEK) for part in parts]

    def take(self, keys: Sequence[str], parts: Parts, now_ms: int) -> Answer:
        if self.lock.owned():
            raise reentered()
        with self.lock:
            if now_ms >= self._hour_ends_ms:
                self._hour_starts_ms = now_ms - now_ms % HOUR_MS
                self._hour_ends_ms = self._hour_starts_ms + HOUR_MS
            if len(parts) == 1:
                level, limit, amount_milli, revision = parts[0]
                bucket = self._rows.get(keys[level])
                if (
                    bucket.__class__ is (Bucket if limit.refill_milli > 0 else Quota)
                    and bucket.settled_at_ms >= self._hour_starts_ms
                    and bucket.limit.name == limit.name
                ):
                    return take_one(bucket, limit, amount_milli, revision, now_ms)
            return take(parts, self._in_use(keys, parts) or self._states(TAKE, keys, parts, now_ms), now_ms)

    def _in_use(self, keys: Sequence[str], parts: Parts) -> list[State] | None:
        """The buckets of the parts, if all were used in this hour: then no row is new, and no usage is put away."""
        found: list[State] = []
        for level, limit, _, _ in parts:
            row: State | _Row | None = self._rows.get(keys[level])
            row = row.get(limit.name) if row.__class__ is dict else row
            if row.__class__ is Bucket and row.settled_at_ms >= self._hour_starts_ms and row.limit.name == limit.name:
                found.append(row)
            else:
                return None
        return found

    def _state(self, key: str, part: Part, now_ms: int, *, looks: bool) -> State:
        limit = part.limit
        row = self._rows.get(key)
        if row is None:
            return self._new_row(key, part, now_ms)
        if isinstance(row, Bucket):
            if row.limit.name == limit.name and is_of_kind(row, limit):
                return self._settled(key, row, now_ms)
            row = self._rows[key] = {row.limit.name: row}
        found = row.get(limit.name)
        if found is not None and is_of_kind(found, limit):
            return self._settled(key, found, now_ms)
        anew = state_of(part, now_ms)
        if found is None or not looks:
            self._put_away(key, [] if found is None else [found])
            row[limit.name] = anew
        return anew

    def _new_row(self, key: str, part: Part, now_ms: int) -> State:
        self._forget_idle(now_ms)
        self._eviction_cursor.append(key)
        state = state_of(part, now_ms)
        self._rows[key] = state if isinstance(state, Bucket) else {part.limit.name: state}
        return state

    def _settled(self, key: str, state: State, now_ms: int) -> State:
        if isinstance(state, Bucket) and is_over(state, now_ms):
            self._usage.put_away(key, state, self.usage_ms)
        state.settle(now_ms)  # no longer idle: the next part of the request may add a row, and evict idle ones
        return state

    def _put_away(self, key: str, states: Iterable[State]) -> None:
        """The usage of buckets that are removed."""
        for state in states:
            if isinstance(state, Bucket):
                self._usage.put_away(key, state, self.usage_ms)

    def _forget_idle(self, now_ms: int) -> None:
        """Look at two rows for every new one, so that idle full rows are removed faster than others are added."""
        for _ in range(min(2, len(self._eviction_cursor))):
            key = self._eviction_cursor.popleft()
            if _is_idle(_states(self._rows[key]), now_ms):
                self._put_away(key, _states(self._rows.pop(key)))
            else:
                self._eviction_cursor.append(key)

    def delete_buckets(self, keys: Sequence[str]) -> None:
        with self._alone():
            for key in keys:
                if key in self._rows:
                    self._empty(key)

    def _empty(self, key: str) -> None:
        self._put_away(key, _states(self._rows[key]))
        self._rows[key] = {}  # the eviction cursor removes the empty row

    def list_buckets(
        self, namespace: str, entity_id: str | None, resource: str | None, cursor: str | None, now_ms: int | None
    ) -> Page[BucketRow]:
        assert now_ms is not None
        found = []
        with self._alone():
            for key, row in self._rows.items():
                place = _place(key, namespace, entity_id, resource)
                if row and place:
                    found.append(BucketRow(*place, _settled_copies(_states(row), now_ms)))
        found.sort(key=lambda row: (row.entity_id, row.resource))
        return Page(found)

    def get_records(self, keys: Sequence[str], now_ms: int | None) -> list[Record | None]:
        with self._alone():
            return [self._record(key, now_ms) for key in keys]

    def _record(self, key: str, now_ms: int | None) -> Record | None:
        stored = self._records.get(key)
        if stored is None or _expired(stored, now_ms):
            return None
        return Record(key, json.loads(stored.json), stored.version)

    def write_records(self, changes: Sequence[Change], now_ms: int | None) -> None:
        with self._alone():
            self._forget_expired(now_ms)
            versions = [self._version(change.key) for change in changes]
            for change, version in zip(changes, versions):
                if change.expected is not None and change.expected != version:
                    raise VersionConflict(change.key)
            for change, version in zip(changes, versions):
                if isinstance(change, Put):
                    self._put(change, version + 1)
                elif not isinstance(change, Check):
                    self._remove(change.key)

    def _version(self, key: str) -> int:
        stored = self._records.get(key)
        return stored.version if stored else ABSENT

    def _put(self, change: Put, version: int) -> None:
        if change.key not in self._records:
            insort(self._record_keys, change.key)
        self._records[change.key] = _Stored(json.dumps(change.value), version, change.expires_at_ms)
        if change.expires_at_ms is not None:
            heappush(self._expiring, (change.expires_at_ms, change.key))

    def _remove(self, key: str) -> None:
        if self._records.pop(key, None) is not None:
            del self._record_keys[bisect_left(self._record_keys, key)]

    def _forget_expired(self, now_ms: int | None) -> None:
        while self._expiring and now_ms is not None and self._expiring[0][0] <= now_ms:
            _, key = heappop(self._expiring)
            stored = self._records.get(key)
            if stored and _expired(stored, now_ms):
                self._remove(key)

    def list_records(self, prefix: str, cursor: str | None, limit: int, now_ms: int | None) -> Page[Record]:
        found: list[Record] = []
        with self._alone():
            keys = self._record_keys
            for index in range(bisect_left(keys, max(prefix, cursor or "")), len(keys)):
                if not keys[index].startswith(prefix):
                    break
                record = None if keys[index] == cursor else self._record(keys[index], now_ms)
                if record is None:
                    continue
                if len(found) == limit:
                    return Page(found, found[-1].key)
                found.append(record)
        return Page(found)

    def list_usage(
        self,
        namespace: str,
        entity_id: str | None,
        resource: str | None,
        hours: tuple[int, int],
        cursor: str | None,
        now_ms: int | None,
    ) -> Page[UsageRow]:
        found = []
        with self._alone():
            for key in dict.fromkeys([*self._usage.keys(), *self._rows]):
                place = _place(key, namespace, entity_id, resource)
                used = self._used(key, hours) if place else {}
                if place and used:
                    found.append(UsageRow(*place, used))
        return Page(found)

    def _used(self, key: str, hours: tuple[int, int]) -> _Used:
        used = self._usage.get(key)
        for state in _states(self._rows.get(key, {})) if self.usage_ms else ():
            if isinstance(state, Bucket) and state.used_milli:
                _count(used, state)
        first, after = hours
        for name, counted in list(used.items()):
            used[name] = {hour: milli for hour, milli in counted.items() if first <= hour < after}
        return {name: counted for name, counted in used.items() if counted}

    def sweep(self, namespace: str, now_ms: int | None) -> Swept:
        assert now_ms is not None
        idle: list[str] = []
        leases = 0
        with self._alone():
            records = len(self._records)
            self._forget_expired(now_ms)
            if self.usage_ms:
                self._usage.forget_before(hour_of(now_ms - self.usage_ms))
            for key, row in self._rows.items():
                if row and key.startswith(f"{namespace}/"):
                    leases += _free_expired(row, now_ms)
                    if _is_idle(_states(row), now_ms):
                        idle.append(key)
            for key in idle:
                self._empty(key)
            return Swept(len(idle), records - len(self._records), leases)

    def list_stored(self) -> list[str]:
        with self._alone():
            stored = [*(key for key, row in self._rows.items() if row), *self._usage.keys(), *self._records]
            return sorted({key.partition("/")[0] for key in stored} - {REGISTRY})

    def count_stored(self, namespace: str) -> int:
        with self._alone():
            return len(self._rows_of(namespace)) + len(self._records_of(namespace))

    def purge(self, namespace: str) -> int:
        with self._alone():
            rows, records = self._rows_of(namespace), self._records_of(namespace)
            for key in rows:
                self._rows[key] = {}  # the eviction cursor removes the empty row
            for key in records:
                self._remove(key)
            return len(rows) + len(records) + self._usage.remove(namespace)

    def _rows_of(self, namespace: str) -> list[str]:
        return [key for key, row in self._rows.items() if row and key.startswith(f"{namespace}/")]

    def _records_of(self, namespace: str) -> list[str]:
        return [key for key in self._records if key.startswith(f"{namespace}/")]

    def setup(self) -> None:
        pass

    def ping(self) -> None:
        pass

    def close(self) -> None:
        pass

    def before_fork(self) -> None:
        pass


def _count(used: _Used, bucket: Bucket) -> None:
    hours = used.setdefault(bucket.limit.name, {})
    hour = hour_of(bucket.settled_at_ms)
    hours[hour] = hours.get(hour, 0) + bucket.used_milli


def _forget(hours: dict[int, int], first: int) -> None:
    for hour in [hour for hour in hours if hour < first]:
        del hours[hour]


def _place(key: str, namespace: str, entity_id: str | None, resource: str | None) -> tuple[str, str] | None:
    """Entity and resource of a row, if it matches."""
    its_namespace, its_entity, its_resource = parse_bucket_key(key)
    wanted = its_namespace == namespace and entity_id in (None, its_entity) and resource in (None, its_resource)
    return (its_entity, its_resource) if wanted else None


def _expired(stored: _Stored, now_ms: int | None) -> bool:
    return stored.expires_at_ms is not None and now_ms is not None and stored.expires_at_ms <= now_ms


def _states(row: _Row) -> Iterable[State]:
    return row.values() if isinstance(row, dict) else (row,)


def _free_expired(row: _Row, now_ms: int) -> int:
    """Free expired slots, and return how many leases held them."""
    gone = 0
    for slots in _states(row):
        if isinstance(slots, Slots):
            before = len(slots.holders)
            slots.settle(now_ms)
            gone += 0 if slots.limit.name.startswith(OWN) else before - len(slots.holders)
    return gone


def _is_idle(states: Iterable[State], now_ms: int) -> bool:
    idle_ms = now_ms - IDLE_MS
    return all(state.settled_at_ms <= idle_ms and state.full_at_ms() <= now_ms for state in states)


def _settled_copies(states: Iterable[State], now_ms: int) -> tuple[State, ...]:
    copies = sorted(map(_copy, states), key=lambda state: state.limit.name)
    for state in copies:
        state.settle(now_ms)
    return tuple(copies)


def _copy(state: State) -> State:
    twin = copy(state)
    if isinstance(twin, Slots):
        twin.holders = dict(twin.holders)
    return twin
