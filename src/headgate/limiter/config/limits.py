"""Stored limits: finding those of an acquire, and reading and changing those of a level. `levels` merges them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ...core.errors import EntityNotFound, ValidationError
from ...core.limit import Limit
from ...core.names import StoredId, bucket_key, check_resource
from ...core.records import Page, Record
from ...core.schedule import Schedule
from ...plan import GetRecords, ListRecords, Plan, SingleFlight
from .. import keys
from ..acquire.chain import Chain, Shape
from ..acquire.options import OnUnavailable, check_on_unavailable
from ..bind import blocking, coroutine
from ..engine import Engine
from .edits import Edit, revision_of, write_limits_plan
from .levels import (
    EVERYONES,
    LimitLevel,
    Merged,
    ResolvedLimits,
    StoredLevel,
    StoredLimits,
    entity_level,
    level_value,
    merge,
    resource_level,
    stored_limits,
)

MAX_ANCESTORS = 8


# Finding the chain


def chain_plan(engine: Engine, entity_id: str, resource: str, limits: Iterable[Limit] | None) -> Plan[Chain]:
    check_resource(resource)
    chain = engine.cache.get(entity_id, resource)
    if chain is None:
        stored_id = engine.stored_id(entity_id)
        generation = engine.cache.generation
        shape = None
        if not engine.cache.entities_have_their_own:
            shape = yield from SingleFlight((generation, resource), partial(_common_shape_plan, engine, resource))
        if shape is not None:
            engine.cache.put_shape(resource, shape, generation)
            chain = Chain((bucket_key(engine.namespace, stored_id, resource),), shape)
        else:
            read = partial(_read_chain_plan, engine, stored_id, resource, engine.limits)
            chain = yield from SingleFlight((generation, resource, stored_id), read)
            engine.cache.put(entity_id, resource, chain, generation)
    return chain if limits is None else chain.under(limits)


def stored_chain_plan(
    engine: Engine,
    stored_id: StoredId,
    resource: str,
    limits: Iterable[Limit] | None,
    own: Mapping[str, Limit],
) -> Plan[Chain]:
    """The chain of an entity by its stored id, above a limiter's `own` limits."""
    if not engine.hashes_ids and own == engine.limits:
        return (yield from chain_plan(engine, stored_id, resource, limits))
    read = partial(_read_chain_plan, engine, stored_id, resource, own)
    chain = yield from SingleFlight((engine.cache.generation, resource, stored_id, *own.values()), read)
    return chain if limits is None else chain.under(limits)


def _common_shape_plan(engine: Engine, resource: str) -> Plan[Shape | None]:
    """The shape all entities have on a resource, or None if some entity has a record or limits of its own."""
    for prefix in (keys.entities_prefix(engine.namespace), keys.entities_limits_prefix(engine.namespace)):
        if (yield from ListRecords(prefix, limit=1, even_corrupt=True)):
            engine.cache.note_entities_have_their_own()
            return None
    revision, *records = yield from GetRecords(
        [keys.revision_key(engine.namespace), *_searched_keys(engine.namespace, StoredLevel(resource=resource))]
    )
    merged = merge(_values(records), engine.limits, engine.clock.now_ms(), EVERYONES)
    shape = Shape([merged.limits], [_as_of(revision, merged)], merged.sources, _policy(records[-1]), engine.limits)
    return _until(shape, [merged])


def _read_chain_plan(engine: Engine, entity_id: StoredId, resource: str, own: Mapping[str, Limit]) -> Plan[Chain]:
    first = yield from read_link_plan(engine, entity_id, resource, own)
    links = [first]
    above = first.parent_id if first.cascade else None
    while above is not None:
        if len(links) > MAX_ANCESTORS:
            raise ValidationError(f"{entity_id!r} has more than {MAX_ANCESTORS} ancestors; a cascade may have no more")
        link = yield from read_link_plan(engine, above, resource, own)
        if not link.exists:
            raise EntityNotFound(above, f"the parent of {links[-1].entity_id!r}, to which {entity_id!r} cascades")
        links.append(link)
        above = link.parent_id
    levels, revisions = [link.merged.limits for link in links], [link.revision for link in links]
    chain_keys = tuple(bucket_key(engine.namespace, link.entity_id, resource) for link in links)
    shape = Shape(levels, revisions, first.merged.sources, first.policy, own)
    return Chain(chain_keys, _until(shape, [link.merged for link in links]))


def _until(shape: Shape, merged: Sequence[Merged]) -> Shape:
    until_ms = min((one.until_ms for one in merged if one.until_ms is not None), default=None)
    if until_ms is not None:
        shape.until_ms, shape.following = until_ms, tuple(one.at(until_ms) for one in merged)
    return shape


class Link(NamedTuple):
    entity_id: StoredId
    exists: bool
    parent_id: StoredId | None
    cascade: bool
    merged: Merged
    revision: int
    policy: OnUnavailable | None


def read_link_plan(engine: Engine, entity_id: StoredId, resource: str, own: Mapping[str, Limit]) -> Plan[Link]:
    """The record and limits of one entity of a chain, above a limiter's `own` limits."""
    revision, entity, *records = yield from GetRecords(
        [
            keys.revision_key(engine.namespace),  # first: limits may be newer than this revision, never older
            keys.entity_key(engine.namespace, entity_id),
            *_searched_keys(engine.namespace, StoredLevel(entity_id, resource)),
        ]
    )
    value: dict[str, Any] = entity.value if entity else {"parent_id": None, "cascade": False}
    merged = merge(_values(records), own, engine.clock.now_ms())
    return Link(
        entity_id=entity_id,
        exists=entity is not None,
        parent_id=value["parent_id"],
        cascade=value["cascade"],
        merged=merged,
        revision=_as_of(revision, merged),
        policy=_policy(records[-1]),
    )


def _searched_keys(namespace: str, level: StoredLevel) -> Iterator[str]:
    return (one.key(namespace) for one in level.searched() if one is not None)


def _values(records: Iterable[Record | None]) -> Iterator[dict[str, Any] | None]:
    return (record.value if record else None for record in records)


def _as_of(revision: Record | None, merged: Merged) -> int:
    """The revision of the limits that were read, including the limiter's own: a bucket that has seen a later revision
    does not go back to them. Never 0, which stands for limits passed to a call. Revisions are times, and the edge of a
    schedule is one more of them."""
    return max(revision_of(revision), merged.since_ms) or 1


def _policy(system: Record | None) -> OnUnavailable | None:
    return system.value.get("on_unavailable") if system else None


def resolve_limits_plan(engine: Engine, entity_id: str, resource: str) -> Plan[ResolvedLimits]:
    """The limits in force for an acquire, as `(limits, source)`, with the level of each in `sources`.

    A level is entity, entity_default, resource, system or engine. `source` is the most specific of them, or None.
    """
    shape = (yield from chain_plan(engine, entity_id, resource, None)).shape
    return ResolvedLimits(shape.levels[0].values(), shape.sources, shape.on_unavailable)


# An entity's own


def set_limits_plan(
    engine: Engine,
    entity_id: str,
    limits: Sequence[Limit] | Schedule,
    resource: str | None = None,
    *,
    inherit: bool = True,
    expected_version: int | None = None,
    actor: str | None = None,
) -> Plan[None]:
    """Store an entity's limits on a resource, or (resource None) its default for all of them.

    `inherit`: limits of other names come from the next level that has them; False: there are no others.
    `expected_version`: VersionConflict if the level has another version.
    """
    level = entity_level(engine, entity_id, resource)
    yield from _edit_plan(engine, level, level_value(limits, inherit), expected_version, actor)


def get_limits_plan(engine: Engine, entity_id: str, resource: str | None = None) -> Plan[StoredLimits]:
    """The limits stored for an entity at exactly this level; [] if there are none."""
    return (yield from _read_plan(engine, entity_level(engine, entity_id, resource)))


def delete_limits_plan(
    engine: Engine,
    entity_id: str,
    resource: str | None = None,
    *,
    expected_version: int | None = None,
    actor: str | None = None,
) -> Plan[bool]:
    """Remove an entity's limits at this level. False if there were none."""
    return (yield from _edit_plan(engine, entity_level(engine, entity_id, resource), None, expected_version, actor))


def list_entities_with_custom_limits_plan(
    engine: Engine, resource: str | None, *, limit: int = 100, cursor: str | None = None
) -> Plan[Page[str]]:
    """Ids of the entities with their own limits on a resource (None: with their own default)."""
    resource = None if resource is None else check_resource(resource)
    return (yield from _list_plan(keys.custom_prefix(engine.namespace, resource), cursor, limit))


# Of a resource


def set_resource_defaults_plan(
    engine: Engine,
    resource: str,
    limits: Sequence[Limit] | Schedule,
    *,
    inherit: bool = True,
    expected_version: int | None = None,
    actor: str | None = None,
) -> Plan[None]:
    """Store the limits on a resource for each entity without its own limits of these names."""
    level = resource_level(resource)
    yield from _edit_plan(engine, level, level_value(limits, inherit), expected_version, actor)


def get_resource_defaults_plan(engine: Engine, resource: str) -> Plan[StoredLimits]:
    """The limits stored for everyone on a resource; [] if there are none."""
    return (yield from _read_plan(engine, resource_level(resource)))


def delete_resource_defaults_plan(
    engine: Engine, resource: str, *, expected_version: int | None = None, actor: str | None = None
) -> Plan[bool]:
    """Remove the limits for everyone on a resource. False if there were none."""
    level = resource_level(resource)
    return (yield from _edit_plan(engine, level, None, expected_version, actor))


def list_resources_with_defaults_plan(
    engine: Engine, *, limit: int = 100, cursor: str | None = None
) -> Plan[Page[str]]:
    """The names of the resources with defaults."""
    return (yield from _list_plan(keys.resources_prefix(engine.namespace), cursor, limit))


# Of the system


def set_system_defaults_plan(
    engine: Engine,
    limits: Sequence[Limit] | Schedule,
    on_unavailable: OnUnavailable | None = None,
    *,
    inherit: bool = True,
    expected_version: int | None = None,
    actor: str | None = None,
) -> Plan[None]:
    """Store the limits for every place where no other level has their names, and the outage policy.

    Both are replaced: without `on_unavailable` the policy of each limiter applies again. `inherit=False`: the limits
    that limiters were created with do not apply.
    """
    value = level_value(limits, inherit) | _policy_value(on_unavailable)
    yield from _edit_plan(engine, StoredLevel(), value, expected_version, actor)


def get_system_defaults_plan(engine: Engine) -> Plan[StoredLimits]:
    """The limits stored for everyone everywhere; [] if there are none."""
    return (yield from _read_plan(engine, StoredLevel()))


def get_system_on_unavailable_plan(engine: Engine) -> Plan[OnUnavailable | None]:
    """The outage policy stored with the system defaults."""
    return (yield from _read_plan(engine, StoredLevel())).on_unavailable


def delete_system_defaults_plan(
    engine: Engine, *, expected_version: int | None = None, actor: str | None = None
) -> Plan[bool]:
    """Remove the limits for everyone everywhere, and the outage policy with them. False if there were none."""
    return (yield from _edit_plan(engine, StoredLevel(), None, expected_version, actor))


# All levels


def get_limits_version_plan(engine: Engine, entity_id: str | None = None, resource: str | None = None) -> Plan[int]:
    """The version of the limits stored at exactly this level: of an entity, a resource or (neither) the system.

    0 if there are none.
    """
    return (yield from read_level_plan(engine, LimitLevel(entity_id, resource))).version


def read_level_plan(engine: Engine, level: LimitLevel) -> Plan[StoredLimits]:
    """The limits stored at exactly this level; [] if there are none."""
    return (yield from _read_plan(engine, level.stored(engine)))


def write_level_plan(
    engine: Engine,
    level: LimitLevel,
    limits: StoredLimits | None,
    *,
    expected_version: int | None = None,
    actor: str | None = None,
) -> Plan[bool]:
    """Store limits at a level, or (None) delete those that are there. False if there were none before."""
    value = None if limits is None else level_value(limits, limits.inherit) | _policy_value(limits.on_unavailable)
    return (yield from _edit_plan(engine, level.stored(engine), value, expected_version, actor))


def list_entity_levels_plan(engine: Engine, cursor: str | None = None) -> Plan[Page[StoredLevel]]:
    """All levels of entities that have limits, by stored id."""
    namespace = engine.namespace
    page = yield from ListRecords(keys.entities_limits_prefix(namespace), cursor, even_corrupt=True)
    return Page([StoredLevel.from_key(namespace, record.key) for record in page], page.cursor)


list_entity_levels = blocking(list_entity_levels_plan)
read_level, aread_level = blocking(read_level_plan), coroutine(read_level_plan)
write_level, awrite_level = blocking(write_level_plan), coroutine(write_level_plan)


def _read_plan(engine: Engine, level: StoredLevel) -> Plan[StoredLimits]:
    (record,) = yield from GetRecords([level.key(engine.namespace)])
    return stored_limits(record)


def _edit_plan(
    engine: Engine,
    level: StoredLevel,
    value: dict[str, Any] | None,
    expected_version: int | None,
    actor: str | None,
) -> Plan[bool]:
    (record,) = yield from write_limits_plan(engine, [Edit(level, value, expected_version)], actor=actor)
    return record is not None


def _policy_value(on_unavailable: OnUnavailable | None) -> dict[str, Any]:
    return {} if on_unavailable is None else {"on_unavailable": check_on_unavailable(on_unavailable)}


def _list_plan(prefix: str, cursor: str | None, limit: int) -> Plan[Page[str]]:
    if not isinstance(limit, int) or limit < 1:
        raise ValidationError(f"limit must be a whole number above zero, not {limit!r}")
    page = yield from ListRecords(prefix, cursor, limit, even_corrupt=True)  # only their keys are used
    return Page([keys.last_part(record.key) for record in page], page.cursor)
