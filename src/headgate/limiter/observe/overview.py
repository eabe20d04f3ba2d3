"""Looking at buckets from outside: of one entity, or of everyone on a resource."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...core.errors import CorruptState
from ...core.limit import Limit
from ...core.names import StoredId, check_limit_name, check_resource
from ...core.records import BucketRow, Page
from ...core.units import MILLI, from_milli
from ...plan import GetRecords, ListBuckets, ListRecords, Plan
from .. import keys
from ..config.levels import merge
from ..engine import Engine
from ..leases.held_slots import RECORDED


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """A bucket as it is now. `full_in_seconds`: when it will be as if never used."""

    entity_id: str
    resource: str
    limit: Limit
    available: int
    full_in_seconds: float
    blocked_for_seconds: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "entity_id": self.entity_id,
            "resource": self.resource,
            "limit_name": self.limit.name,
            "limit": str(self.limit),
            "capacity": self.limit.capacity,
            "available": self.available,
            "full_in_seconds": self.full_in_seconds,
            "blocked_for_seconds": self.blocked_for_seconds,
        }


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
    return Page(_statuses(rows), None, rows.corrupt)


def list_buckets_plan(
    engine: Engine, resource: str | None = None, *, cursor: str | None = None
) -> Plan[Page[BucketStatus]]:
    """Everyone's buckets that differ from full ones, in pages as the store has them. One may be there twice."""
    resource = None if resource is None else check_resource(resource)
    page = yield from ListBuckets(engine.namespace, None, resource, cursor)
    return Page(_statuses(page), page.cursor, page.corrupt)


def _statuses(rows: Iterable[BucketRow]) -> list[BucketStatus]:
    return [
        BucketStatus(
            entity_id=row.entity_id,
            resource=row.resource,
            limit=bucket.limit,
            available=bucket.available_milli() // MILLI,
            full_in_seconds=(bucket.full_at_ms() - bucket.settled_at_ms) / MILLI,
            blocked_for_seconds=max(0, bucket.blocked_until_ms - bucket.settled_at_ms) / MILLI,
        )
        for row in rows
        for bucket in row.buckets
        if bucket.limit.name != RECORDED
    ]


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
