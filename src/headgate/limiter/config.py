"""Stored limits: four levels, the most specific wins. And how an acquire finds its chain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..core.errors import EntityNotFound, ValidationError, VersionConflict
from ..core.limit import Limit, by_name
from ..core.names import StoredId, bucket_key, check_resource
from ..core.records import ABSENT, Change, Delete, Page, Put, Record
from ..plan import GetRecords, ListRecords, Once, Plan, WriteRecords
from . import keys
from .base import BaseLimiter, OnUnavailable, check_on_unavailable
from .chain import Chain, Shape

MAX_ANCESTORS = 8
SOURCES = ("entity", "entity_default", "resource", "system")


# Finding the chain


def chain_plan(limiter: BaseLimiter, entity_id: str, resource: str, limits: Iterable[Limit] | None) -> Plan[Chain]:
    check_resource(resource)
    chain = limiter._cache.get(entity_id, resource)
    if chain is None:
        stored_id = limiter._stored_id(entity_id)
        generation = limiter._cache.generation
        shape = None
        if not limiter._cache.entities_have_their_own:
            shape = yield from Once((generation, resource), partial(_common_shape_plan, limiter, resource))
        if shape is not None:
            limiter._cache.put_shape(resource, shape, generation)
            chain = Chain((bucket_key(limiter.namespace, stored_id, resource),), shape)
        else:
            read = partial(_read_chain_plan, limiter, stored_id, resource)
            chain = yield from Once((generation, resource, stored_id), read)
            limiter._cache.put(entity_id, resource, chain, generation)
    return chain if limits is None else chain.under(limits)


def stored_chain_plan(
    limiter: BaseLimiter, stored_id: StoredId, resource: str, limits: Iterable[Limit] | None
) -> Plan[Chain]:
    """The chain of an entity of which only its stored id is known."""
    if not limiter._hashes_ids:
        return (yield from chain_plan(limiter, stored_id, resource, limits))
    read = partial(_read_chain_plan, limiter, stored_id, resource)
    chain = yield from Once((limiter._cache.generation, resource, stored_id), read)
    return chain if limits is None else chain.under(limits)


def _common_shape_plan(limiter: BaseLimiter, resource: str) -> Plan[Shape | None]:
    """The shape all entities have on a resource, or None if some entity has a record or limits of its own."""
    for prefix in (keys.entities_prefix(limiter.namespace), keys.entities_limits_prefix(limiter.namespace)):
        if (yield from ListRecords(prefix, limit=1)):
            limiter._cache.note_entities_have_their_own()
            return None
    revision, *records = yield from GetRecords(
        [
            keys.revision_key(limiter.namespace),
            keys.resource_limits_key(limiter.namespace, resource),
            keys.system_limits_key(limiter.namespace),
        ]
    )
    limits, source = _most_specific(records, SOURCES[2:])
    return Shape([limits], [_revision(revision)], source, _policy(records[-1]))


def _read_chain_plan(limiter: BaseLimiter, entity_id: StoredId, resource: str) -> Plan[Chain]:
    first = yield from _read_link_plan(limiter, entity_id, resource)
    links = [first]
    above = first.parent_id if first.cascade else None
    while above is not None:
        if len(links) > MAX_ANCESTORS:
            raise ValidationError(f"{entity_id!r} has more than {MAX_ANCESTORS} ancestors; a cascade may have no more")
        link = yield from _read_link_plan(limiter, above, resource)
        if not link.exists:
            raise EntityNotFound(above, f"the parent of {links[-1].entity_id!r}, to which {entity_id!r} cascades")
        links.append(link)
        above = link.parent_id
    levels, revisions = [link.limits for link in links], [link.revision for link in links]
    chain_keys = tuple(bucket_key(limiter.namespace, link.entity_id, resource) for link in links)
    return Chain(chain_keys, Shape(levels, revisions, first.source, first.policy))


class _Link(NamedTuple):
    entity_id: StoredId
    exists: bool
    parent_id: StoredId | None
    cascade: bool
    limits: Mapping[str, Limit]
    source: str | None
    revision: int
    policy: str | None


def _read_link_plan(limiter: BaseLimiter, entity_id: StoredId, resource: str) -> Plan[_Link]:
    revision, entity, *records = yield from GetRecords(
        [
            keys.revision_key(limiter.namespace),  # first: limits may be newer than it says, never older
            keys.entity_key(limiter.namespace, entity_id),
            keys.entity_limits_key(limiter.namespace, entity_id, resource),
            keys.entity_limits_key(limiter.namespace, entity_id, None),
            keys.resource_limits_key(limiter.namespace, resource),
            keys.system_limits_key(limiter.namespace),
        ]
    )
    limits, source = _most_specific(records, SOURCES)
    value: dict[str, Any] = entity.value if entity else {"parent_id": None, "cascade": False}
    return _Link(
        entity_id=entity_id,
        exists=entity is not None,
        parent_id=value["parent_id"],
        cascade=value["cascade"],
        limits=limits,
        source=source,
        revision=_revision(revision),
        policy=_policy(records[-1]),
    )


def _most_specific(records: Sequence[Record | None], sources: Sequence[str]) -> tuple[Mapping[str, Limit], str | None]:
    for record, source in zip(records, sources):
        if record is not None:
            return by_name(_limits(record)), source
    return {}, None


def _revision(record: Record | None) -> int:
    return int(record.value["revision"]) if record else 0


def _policy(system: Record | None) -> str | None:
    return system.value.get("on_unavailable") if system else None


def _limits(record: Record | None) -> list[Limit]:
    return [Limit.from_dict(limit) for limit in record.value["limits"]] if record else []


def _value(limits: Iterable[Limit]) -> dict[str, Any]:
    named = by_name(limits)
    if not named:
        raise ValidationError("limits must not be empty; to remove stored limits, delete them")
    return {"limits": [limit.as_dict() for limit in named.values()]}


def resolve_limits_plan(limiter: BaseLimiter, entity_id: str, resource: str) -> Plan[tuple[list[Limit], str | None]]:
    """The limits an acquire would obey, and their source: entity, entity_default, resource, system or None."""
    chain = yield from chain_plan(limiter, entity_id, resource, None)
    return list(chain.shape.levels[0].values()), chain.shape.source


# An entity's own


def set_limits_plan(
    limiter: BaseLimiter, entity_id: str, limits: Sequence[Limit], resource: str | None = None
) -> Plan[None]:
    """Store an entity's limits on a resource, or (resource None) its default for all of them."""
    namespace, entity_id = limiter.namespace, limiter._stored_id(entity_id)
    resource = None if resource is None else check_resource(resource)
    yield from write_limits_plan(
        limiter,
        [
            Put(keys.entity_limits_key(namespace, entity_id, resource), _value(limits)),
            Put(keys.custom_key(namespace, resource, entity_id), {}),
        ],
    )
    limiter._cache.note_entities_have_their_own()  # a list may be late to know


def get_limits_plan(limiter: BaseLimiter, entity_id: str, resource: str | None = None) -> Plan[list[Limit]]:
    """The limits stored for an entity at exactly this level; [] if there are none."""
    resource = None if resource is None else check_resource(resource)
    key = keys.entity_limits_key(limiter.namespace, limiter._stored_id(entity_id), resource)
    (record,) = yield from GetRecords([key])
    return _limits(record)


def delete_limits_plan(limiter: BaseLimiter, entity_id: str, resource: str | None = None) -> Plan[bool]:
    """Remove an entity's limits at this level. False if there were none."""
    namespace, entity_id = limiter.namespace, limiter._stored_id(entity_id)
    resource = None if resource is None else check_resource(resource)
    key = keys.entity_limits_key(namespace, entity_id, resource)
    return (yield from _delete_plan(limiter, [key, keys.custom_key(namespace, resource, entity_id)]))


def list_entities_with_custom_limits_plan(
    limiter: BaseLimiter, resource: str | None, *, limit: int = 100, cursor: str | None = None
) -> Plan[Page[str]]:
    """Ids of the entities with limits of their own on a resource (None: with a default of their own)."""
    resource = None if resource is None else check_resource(resource)
    return (yield from _list_plan(keys.custom_prefix(limiter.namespace, resource), cursor, limit))


# Of a resource


def set_resource_defaults_plan(limiter: BaseLimiter, resource: str, limits: Sequence[Limit]) -> Plan[None]:
    """Store the limits of everyone on a resource who has none of their own."""
    key = keys.resource_limits_key(limiter.namespace, check_resource(resource))
    yield from write_limits_plan(limiter, [Put(key, _value(limits))])


def get_resource_defaults_plan(limiter: BaseLimiter, resource: str) -> Plan[list[Limit]]:
    (record,) = yield from GetRecords([keys.resource_limits_key(limiter.namespace, check_resource(resource))])
    return _limits(record)


def delete_resource_defaults_plan(limiter: BaseLimiter, resource: str) -> Plan[bool]:
    key = keys.resource_limits_key(limiter.namespace, check_resource(resource))
    return (yield from _delete_plan(limiter, [key]))


def list_resources_with_defaults_plan(
    limiter: BaseLimiter, *, limit: int = 100, cursor: str | None = None
) -> Plan[Page[str]]:
    """Names of the resources that have defaults."""
    return (yield from _list_plan(keys.resources_prefix(limiter.namespace), cursor, limit))


# Of the system


def set_system_defaults_plan(
    limiter: BaseLimiter, limits: Sequence[Limit], on_unavailable: OnUnavailable | None = None
) -> Plan[None]:
    """Store the limits of everyone everywhere who has no others, and what happens when the store is away.

    It replaces both: without `on_unavailable` the limiters' own policy holds again.
    """
    value = _value(limits)
    if on_unavailable is not None:
        value["on_unavailable"] = check_on_unavailable(on_unavailable)
    yield from write_limits_plan(limiter, [Put(keys.system_limits_key(limiter.namespace), value)])


def get_system_defaults_plan(limiter: BaseLimiter) -> Plan[list[Limit]]:
    (record,) = yield from GetRecords([keys.system_limits_key(limiter.namespace)])
    return _limits(record)


def get_system_on_unavailable_plan(limiter: BaseLimiter) -> Plan[OnUnavailable | None]:
    """The outage policy stored with the system defaults."""
    (record,) = yield from GetRecords([keys.system_limits_key(limiter.namespace)])
    return record.value.get("on_unavailable") if record else None


def delete_system_defaults_plan(limiter: BaseLimiter) -> Plan[bool]:
    return (yield from _delete_plan(limiter, [keys.system_limits_key(limiter.namespace)]))


# All levels


def _delete_plan(limiter: BaseLimiter, doomed: Sequence[str]) -> Plan[bool]:
    record, *_ = yield from GetRecords(doomed)
    yield from write_limits_plan(limiter, [Delete(key) for key in doomed])
    return record is not None


def write_limits_plan(limiter: BaseLimiter, changes: Sequence[Change]) -> Plan[None]:
    """Change stored limits, and move the namespace's revision on, so that buckets know the newer from the older.

    The revision is a time in milliseconds: even if its record is lost, the next one is later than all before.
    """
    key = keys.revision_key(limiter.namespace)
    while True:
        (record,) = yield from GetRecords([key])
        revision = max(limiter._clock.now_ms(), _revision(record) + 1)
        try:
            yield from WriteRecords([*changes, Put(key, {"revision": revision}, record.version if record else ABSENT)])
        except VersionConflict as conflict:
            if conflict.key == key:
                continue  # someone else changed limits in between
            raise
        limiter._cache.clear()
        return


def _list_plan(prefix: str, cursor: str | None, limit: int) -> Plan[Page[str]]:
    if not isinstance(limit, int) or limit < 1:
        raise ValidationError(f"limit must be a whole number above zero, not {limit!r}")
    page = yield from ListRecords(prefix, cursor, limit)
    return Page([keys.last_part(record.key) for record in page], page.cursor)
