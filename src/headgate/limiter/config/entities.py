"""Entities: create, read, update, delete. An update fails if the entity was changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.errors import EntityExists, EntityNotFound, ValidationError, VersionConflict
from ...core.names import StoredId, bucket_key, check_entity_id
from ...core.records import ABSENT, Change, Check, Delete, Entity, Page, Put, Record
from ...core.text import check_document, check_text, readable
from ...plan import DeleteBuckets, GetRecords, ListBuckets, ListRecords, Plan, WriteRecords
from ...stores.contract import MAX_CHANGES
from .. import keys
from ..engine import Engine
from ..observe.audit import audit_event
from .edits import corrupt_value, described, known_version, write_limits_plan
from .levels import StoredLimits, inherits, stored_limits
from .limits import MAX_ANCESTORS

MAX_NAME_CHARACTERS = 256
MAX_METADATA_BYTES = 64 * 1024


class Unchanged:
    """The default of the arguments of update_entity(): not given."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = Unchanged()


def create_entity_plan(
    engine: Engine,
    entity_id: str,
    *,
    name: str | None = None,
    parent_id: str | None = None,
    cascade: bool = False,
    metadata: dict[str, Any] | None = None,
    actor: str | None = None,
) -> Plan[Entity]:
    """Create an entity. With `cascade`, what it acquires also counts for every ancestor.

    Limits work without this: create an entity only to give it a parent, a name or metadata.
    """
    entity_id, parent_id = engine.stored_id(entity_id), _stored_parent(engine, parent_id)
    value = entity_value(name, parent_id, cascade, metadata)
    key = keys.entity_key(engine.namespace, entity_id)
    changes: list[Change] = [Put(key, value, ABSENT)]
    if parent_id is not None:
        changes += yield from _check_parent_plan(engine, entity_id, parent_id)
        changes.append(Put(keys.child_key(engine.namespace, parent_id, entity_id), {}))
    changes += audit_event(engine, "entity.created", entity_id=entity_id, after=value, actor=actor)
    try:
        yield from WriteRecords(changes)
    except VersionConflict as conflict:
        if conflict.key == key:
            raise EntityExists(entity_id) from None
        raise
    engine.cache.clear()
    engine.cache.note_entities_have_their_own()  # a list may be stale
    return _entity(Record(key, value, ABSENT + 1))


def get_entity_plan(engine: Engine, entity_id: str) -> Plan[Entity]:
    """An entity by its id, or EntityNotFound."""
    return _entity((yield from _read_plan(engine, engine.stored_id(entity_id))))


def update_entity_plan(
    engine: Engine,
    entity_id: str,
    *,
    name: str | Unchanged | None = UNCHANGED,
    parent_id: str | Unchanged | None = UNCHANGED,
    cascade: bool | Unchanged = UNCHANGED,
    metadata: dict[str, Any] | Unchanged = UNCHANGED,
    expected_version: int | None = None,
    actor: str | None = None,
) -> Plan[Entity]:
    """Change the given properties, and keep the others. VersionConflict if the version is not `expected_version`."""
    entity_id = engine.stored_id(entity_id)
    if not isinstance(parent_id, Unchanged):
        parent_id = _stored_parent(engine, parent_id)
    record = yield from _read_plan(engine, entity_id)
    if expected_version not in (None, record.version):
        raise VersionConflict(record.key)
    given = {"name": name, "parent_id": parent_id, "cascade": cascade, "metadata": metadata}
    # Values that stay are not checked again: older versions may have accepted them, and they must not block updates.
    changed = {field: _CHECKS[field](new) for field, new in given.items() if not isinstance(new, Unchanged)}
    value = record.value | changed
    if value == record.value:
        return _entity(record)
    changes: list[Change] = [Put(record.key, value, record.version)]
    old_parent, new_parent = record.value["parent_id"], value["parent_id"]
    if new_parent != old_parent:
        if old_parent is not None:
            changes.append(Delete(keys.child_key(engine.namespace, old_parent, entity_id)))
        if new_parent is not None:
            changes += yield from _check_parent_plan(engine, entity_id, new_parent)
            changes.append(Put(keys.child_key(engine.namespace, new_parent, entity_id), {}))
    changes += audit_event(engine, "entity.updated", entity_id=entity_id, before=record.value, after=value, actor=actor)
    yield from WriteRecords(changes)
    engine.cache.clear()
    engine.cache.note_entities_have_their_own()  # a list may be stale
    return _entity(Record(record.key, value, record.version + 1))


def delete_entity_plan(engine: Engine, entity_id: str, *, actor: str | None = None) -> Plan[None]:
    """Delete an entity, its stored limits and its buckets. Delete or move its children first.

    The entity and its limits are deleted at once; if it has very many limits, they are deleted first.
    """
    namespace, entity_id = engine.namespace, engine.stored_id(entity_id)
    record = yield from _read_plan(engine, entity_id, even_corrupt=True)
    children = yield from ListRecords(keys.children_prefix(namespace, entity_id), limit=3, even_corrupt=True)
    if children:
        some = ", ".join(keys.last_part(child.key) for child in children)
        raise ValidationError(
            f"entity {entity_id!r} has children ({some}): delete them or give them another parent first"
        )
    changes: list[Change] = [Delete(record.key, known_version(record))]
    parent_id = record.value.get("parent_id")
    if isinstance(parent_id, str):
        changes.append(Delete(keys.child_key(namespace, StoredId(parent_id), entity_id)))
    stored = yield from _stored_limits_plan(engine, entity_id, even_corrupt=True)
    before = {**(corrupt_value(record) or record.value), **_described(stored)}
    changes += audit_event(engine, "entity.deleted", entity_id=entity_id, before=before, actor=actor)
    room = MAX_CHANGES - 1 - len(changes)  # one is the revision
    limits = yield from _delete_limits_plan(engine, record, stored, room)
    yield from write_limits_plan(engine, [], [*changes, *limits])
    cursor: str | None = None
    while True:
        rows = yield from ListBuckets(namespace, entity_id=entity_id, cursor=cursor)
        resources = [row.resource for row in rows] + [error.resource for error in rows.corrupt]
        yield from DeleteBuckets([bucket_key(namespace, entity_id, resource) for resource in resources])
        cursor = rows.cursor
        if cursor is None:
            return


def _stored_limits_plan(engine: Engine, entity_id: StoredId, *, even_corrupt: bool = False) -> Plan[list[Record]]:
    found: list[Record] = []
    cursor: str | None = None
    while True:
        page = yield from ListRecords(
            keys.entity_limits_prefix(engine.namespace, entity_id), cursor, even_corrupt=even_corrupt
        )
        for error in page.corrupt:
            raise error
        found += page
        cursor = page.cursor
        if cursor is None:
            return found


def _described(stored: list[Record]) -> dict[str, Any]:
    """All limits of an entity, by resource."""
    limits = {keys.last_part(one.key): corrupt_value(one) or described(one.value)["limits"] for one in stored}
    alone = {keys.last_part(one.key): False for one in stored if not inherits(one.value)}
    return {"limits": limits, **({"inherit": alone} if alone else {})}


def _delete_limits_plan(engine: Engine, entity: Record, stored: list[Record], room: int) -> Plan[list[Change]]:
    """Delete an entity's limits while its record is unchanged. Returns those left to delete, at most `room`."""
    entity_id = keys.last_id(entity.key)
    doomed: list[Change] = []
    for one in stored:
        resource = keys.last_part(one.key)
        doomed += [Delete(one.key), Delete(keys.custom_key(engine.namespace, resource, entity_id))]
    at_once = MAX_CHANGES - 2
    while len(doomed) > room:
        unchanged = [] if entity.flaw else [Check(entity.key, entity.version)]
        yield from write_limits_plan(engine, [], [*unchanged, *doomed[:at_once]])
        doomed = doomed[at_once:]
    return doomed


def get_own_limits_plan(engine: Engine, entity_id: str) -> Plan[dict[str | None, StoredLimits]]:
    """An entity's own limits by resource; None is its default for all resources."""
    stored = yield from _stored_limits_plan(engine, engine.stored_id(entity_id))
    return {keys.last_part(record.key) or None: stored_limits(record) for record in stored}


def list_entities_plan(
    engine: Engine, *, prefix: str = "", limit: int = 100, cursor: str | None = None
) -> Plan[Page[Entity]]:
    """The entities that were created, by id; with `prefix`, those whose stored ids start with it."""
    start = prefix and check_entity_id(prefix, "prefix")
    page = yield from ListRecords(f"{keys.entities_prefix(engine.namespace)}{start}", cursor, limit)
    return Page([_entity(record) for record in page], page.cursor, page.corrupt)


def get_children_plan(
    engine: Engine, parent_id: str, *, limit: int = 100, cursor: str | None = None
) -> Plan[Page[Entity]]:
    """The children of an entity."""
    parent_id = engine.stored_id(parent_id, "parent_id")
    yield from _read_plan(engine, parent_id)
    prefix = keys.children_prefix(engine.namespace, parent_id)
    page = yield from ListRecords(prefix, cursor, limit, even_corrupt=True)
    ids = [keys.last_id(record.key) for record in page]
    found = yield from GetRecords([keys.entity_key(engine.namespace, one) for one in ids], even_corrupt=True)
    records = [record for record in found if record is not None]
    corrupt = [record.error for record in records if record.flaw]
    return Page([_entity(record) for record in records if not record.flaw], page.cursor, corrupt)


def _stored_parent(engine: Engine, parent_id: str | None) -> StoredId | None:
    return None if parent_id is None else engine.stored_id(parent_id, "parent_id")


def _read_plan(engine: Engine, entity_id: StoredId, *, even_corrupt: bool = False) -> Plan[Record]:
    (record,) = yield from GetRecords([keys.entity_key(engine.namespace, entity_id)], even_corrupt)
    if record is None:
        raise EntityNotFound(entity_id)
    return record


def _check_parent_plan(engine: Engine, entity_id: StoredId, parent_id: StoredId) -> Plan[list[Check]]:
    """The parent must exist, and the chain above it must be short enough and without a cycle.

    Returns the checks to write with the change.
    """
    path = [entity_id]
    checks: list[Check] = []
    above: StoredId | None = parent_id
    while above is not None:
        if above in path:
            raise ValidationError(f"parent_id {parent_id!r} makes a cycle: {' -> '.join([*path, above])}")
        if len(path) > MAX_ANCESTORS:
            raise ValidationError(f"parent_id {parent_id!r} gives {entity_id!r} more than {MAX_ANCESTORS} ancestors")
        (found,) = yield from GetRecords([keys.entity_key(engine.namespace, above)])
        if found is None:
            raise EntityNotFound(above, f"the parent of {path[-1]!r}")
        checks.append(Check(found.key, found.version))
        path.append(above)
        above = found.value["parent_id"]
    return checks


def entity_value(name: Any, parent_id: StoredId | None, cascade: Any, metadata: Any) -> dict[str, Any]:
    """The record of an entity, checked."""
    given = {"name": name, "parent_id": parent_id, "cascade": cascade, "metadata": metadata}
    return {field: _CHECKS[field](value) for field, value in given.items()}


def _check_name(name: Any) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARACTERS:
        raise ValidationError(f"name must be a string of at most {MAX_NAME_CHARACTERS} characters, not {name!r}")
    return check_text(name, "name")


def _check_cascade(cascade: Any) -> bool:
    if not isinstance(cascade, bool):
        raise ValidationError(f"cascade must be True or False, not {cascade!r}")
    return cascade


def _check_metadata(metadata: Any) -> dict[str, Any]:
    return {} if metadata is None else check_document(metadata, "metadata", MAX_METADATA_BYTES)


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "name": _check_name,
    "parent_id": lambda parent_id: parent_id,
    "cascade": _check_cascade,
    "metadata": _check_metadata,
}


def _entity(record: Record) -> Entity:
    return Entity(entity_id=keys.last_part(record.key), version=record.version, **readable(record.value))
