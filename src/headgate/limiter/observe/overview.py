"""Looking at buckets from outside: of one entity, or of everyone on a resource."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.bucket import Bucket
from ...core.decide import State
from ...core.errors import CorruptState
from ...core.limit import Limit
from ...core.names import StoredId, check_limit_name, check_resource
from ...core.quota import Quota
from ...core.records import BucketRow, Page
from ...core.units import MILLI, from_milli
from ...plan import GetRecords, ListBuckets, ListRecords, Plan
from .. import keys
from ..config.levels import StoredLevel, merge
from ..engine import Engine
from ..leases.held_slots import RECORDED

_AT_ONCE = 100  # records that are read in one call


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """A bucket as it is now. `full_in_seconds`: when it will be as if never used. `resets_at_ms`: of a quota, when its
    window ends; None if none is open."""

    entity_id: str
    resource: str
    limit: Limit
    available: int
    full_in_seconds: float
    blocked_for_seconds: float
    used: int | float = 0
    resets_at_ms: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "entity_id": self.entity_id,
            "resource": self.resource,
            "limit_name": self.limit.name,
            "limit": self.limit.spelled,
            "capacity": self.limit.capacity,
            "available": self.available,
            "full_in_seconds": self.full_in_seconds,
            "blocked_for_seconds": self.blocked_for_seconds,
        } | ({"used": self.used, "resets_at_ms": self.resets_at_ms} if self.limit.is_quota else {})


@dataclass(frozen=True, slots=True)
class EntityCapacity:
    entity_id: str
    capacity: int | float
    available: int


@dataclass(frozen=True, slots=True)
class ResourceCapacity:
    """The tokens under one limit of a resource, of all entities that used it lately or have limits of their own on
    it."""

    resource: str
    limit_name: str
    entities: list[EntityCapacity]

    @property
    def total_capacity(self) -> int | float:
        return sum(entity.capacity for entity in self.entities)

    @property
    def total_available(self) -> int:
        return sum(entity.available for entity in self.entities)


def all_buckets_plan(engine: Engine, entity_id: StoredId | None, resource: str | None) -> Plan[Page[BucketRow]]:
    """On one page."""
    rows: dict[tuple[str, str], BucketRow] = {}  # a store may list one twice, and in any order
    corrupt: dict[tuple[str, str], CorruptState] = {}
    cursor: str | None = None
    while True:
        page = yield from ListBuckets(engine.namespace, entity_id, resource, cursor)
        rows |= {(row.entity_id, row.resource): row for row in page}
        corrupt |= {(error.entity_id, error.resource): error for error in page.corrupt}
        cursor = page.cursor
        if cursor is None:
            return Page([rows[place] for place in sorted(rows)], None, [corrupt[place] for place in sorted(corrupt)])


def get_buckets_plan(engine: Engine, entity_id: str, resource: str | None = None) -> Plan[Page[BucketStatus]]:
    """The entity's buckets that differ from full ones, all on one page."""
    resource = None if resource is None else check_resource(resource)
    rows = yield from all_buckets_plan(engine, engine.stored_id(entity_id), resource)
    return Page((yield from _statuses_plan(engine, rows)), None, rows.corrupt)


def list_buckets_plan(
    engine: Engine, resource: str | None = None, *, cursor: str | None = None
) -> Plan[Page[BucketStatus]]:
    """Everyone's buckets that differ from full ones, in pages as the store has them. One may be there twice."""
    resource = None if resource is None else check_resource(resource)
    page = yield from ListBuckets(engine.namespace, None, resource, cursor)
    return Page((yield from _statuses_plan(engine, page)), page.cursor, page.corrupt)


def _statuses_plan(engine: Engine, rows: Sequence[BucketRow]) -> Plan[list[BucketStatus]]:
    in_force = yield from _in_force_plan(engine, [row for row in rows if any(map(_lacks_calendar, row.buckets))])
    found = []
    for row in rows:
        for bucket in row.buckets:
            if bucket.limit.name == RECORDED:
                continue
            if _lacks_calendar(bucket):
                bucket = _on_calendar(bucket, in_force[row.entity_id, row.resource].get(bucket.limit.name))
            found.append(_status(row, bucket))
    return found


def _status(row: BucketRow, bucket: State) -> BucketStatus:
    limit = bucket.limit
    window_ends_ms = bucket.remainder if isinstance(bucket, Quota) else 0
    return BucketStatus(
        entity_id=row.entity_id,
        resource=row.resource,
        limit=limit,
        available=bucket.available_milli() // MILLI,
        full_in_seconds=(bucket.full_at_ms() - bucket.settled_at_ms) / MILLI,
        blocked_for_seconds=max(0, bucket.blocked_until_ms - bucket.settled_at_ms) / MILLI,
        used=from_milli(limit.capacity_milli - bucket.tokens_milli) if isinstance(bucket, Bucket) else 0,
        resets_at_ms=window_ends_ms or None,
    )


# A store keeps numbers only, and knows no calendars. They are those of the limits in force.


def _lacks_calendar(bucket: State) -> bool:
    return bucket.limit.is_quota and bucket.limit.calendar is None and not bucket.limit.period_ms


def _on_calendar(bucket: State, limit: Limit | None) -> State:
    """If the bucket is in a window of this limit's calendar."""
    if not isinstance(bucket, Quota) or limit is None or limit.calendar is None:
        return bucket
    now_ms, ends_ms = bucket.settled_at_ms, limit.calendar.window(bucket.settled_at_ms).ends_ms
    if bucket.remainder not in (0, ends_ms):
        return bucket
    limit = limit.changed(capacity_milli=bucket.limit.capacity_milli)
    return Quota(limit, bucket.tokens_milli, now_ms, ends_ms, bucket.blocked_until_ms)


def _in_force_plan(engine: Engine, rows: Sequence[BucketRow]) -> Plan[dict[tuple[str, str], Mapping[str, Limit]]]:
    searched = {
        (row.entity_id, row.resource): [
            level.key(engine.namespace)
            for level in StoredLevel(StoredId(row.entity_id), row.resource).searched()
            if level is not None
        ]
        for row in rows
    }
    needed = list(dict.fromkeys(key for keys_of_row in searched.values() for key in keys_of_row))
    values: dict[str, Mapping[str, Any] | None] = {}
    for start in range(0, len(needed), _AT_ONCE):
        some = needed[start : start + _AT_ONCE]
        for key, record in zip(some, (yield from GetRecords(some, even_corrupt=True))):
            values[key] = record.value if record is not None and not record.flaw else None
    now_ms = engine.clock.now_ms()
    return {
        place: merge([values[key] for key in its_keys], engine.limits, now_ms).limits
        for place, its_keys in searched.items()
    }


def get_resource_capacity_plan(engine: Engine, resource: str, limit_name: str) -> Plan[ResourceCapacity]:
    """Every entity's tokens under one limit of a resource, and the total."""
    check_resource(resource)
    check_limit_name(limit_name)
    found: dict[str, EntityCapacity] = {}
    for row in (yield from all_buckets_plan(engine, None, resource)):
        for bucket in row.buckets:
            if bucket.limit.name == limit_name:
                whole = bucket.available_milli() // MILLI
                found[row.entity_id] = EntityCapacity(row.entity_id, bucket.limit.capacity, whole)
    prefix = keys.custom_prefix(engine.namespace, resource)
    cursor: str | None = None
    while True:
        page = yield from ListRecords(prefix, cursor, even_corrupt=True)
        idle = [entity_id for entity_id in (keys.last_id(record.key) for record in page) if entity_id not in found]
        found |= yield from _untouched_plan(engine, idle, resource, limit_name)
        cursor = page.cursor
        if cursor is None:
            return ResourceCapacity(resource, limit_name, [found[entity_id] for entity_id in sorted(found)])


def _untouched_plan(
    engine: Engine, entity_ids: list[StoredId], resource: str, limit_name: str
) -> Plan[dict[str, EntityCapacity]]:
    """Entities with limits of their own on the resource but no bucket: theirs is full."""
    namespace = engine.namespace
    everyones = [keys.resource_limits_key(namespace, resource), keys.system_limits_key(namespace)]
    own = [keys.entity_limits_key(namespace, one, place) for one in entity_ids for place in (resource, None)]
    found_at = yield from GetRecords([*own, *everyones])
    *records, of_resource, system = [record.value if record else None for record in found_at]
    found: dict[str, EntityCapacity] = {}
    for entity_id, mine, default in zip(entity_ids, records[::2], records[1::2]):
        limit = merge([mine, default, of_resource, system], engine.limits, engine.clock.now_ms()).limits.get(limit_name)
        if limit is not None:
            whole = int(from_milli(limit.capacity_milli))
            found[entity_id] = EntityCapacity(entity_id, limit.capacity, whole)
    return found
