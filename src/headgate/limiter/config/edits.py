"""Changing stored limits: at which level, from what to what, told to the audit, and in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...core.errors import VersionConflict
from ...core.limit import Limit
from ...core.names import StoredId, check_resource
from ...core.records import ABSENT, Change, Delete, Put, Record
from ...plan import GetRecords, Plan, WriteRecords
from .. import keys
from ..engine import Engine
from ..observe.audit import Action, told


class Level(NamedTuple):
    """Where limits are stored: for an entity (on a resource, or everywhere), for a resource, or for the system.

    `listed_at`: where an entity with limits of its own is listed.
    """

    key: str
    set: Action
    deleted: Action
    entity_id: StoredId | None = None
    resource: str | None = None
    listed_at: str | None = None


def entity_level(engine: Engine, entity_id: str, resource: str | None) -> Level:
    stored_id = engine.stored_id(entity_id)
    resource = None if resource is None else check_resource(resource)
    key = keys.entity_limits_key(engine.namespace, stored_id, resource)
    index = keys.custom_key(engine.namespace, resource, stored_id)
    return Level(key, "limits.set", "limits.deleted", stored_id, resource, index)


def resource_level(engine: Engine, resource: str) -> Level:
    key = keys.resource_limits_key(engine.namespace, check_resource(resource))
    return Level(key, "resource_defaults.set", "resource_defaults.deleted", resource=resource)


def system_level(engine: Engine) -> Level:
    return Level(keys.system_limits_key(engine.namespace), "system_defaults.set", "system_defaults.deleted")


def level_at(engine: Engine, entity_id: str | None, resource: str | None) -> Level:
    """Of an entity, a resource or (neither) the system."""
    if entity_id is not None:
        return entity_level(engine, entity_id, resource)
    return system_level(engine) if resource is None else resource_level(engine, resource)


class Edit(NamedTuple):
    """What is stored at a level becomes `value`, or goes (None)."""

    level: Level
    value: dict[str, Any] | None
    expected_version: int | None = None

    def changes(self, engine: Engine, record: Record | None, actor: str | None) -> list[Change]:
        """All that has to be written, which is nothing if nothing changes."""
        level, value, expected = self
        if expected is not None and expected != (record.version if record else ABSENT):
            raise VersionConflict(level.key)
        if not corrupt_value(record) and value == (record.value if record else None):
            return []
        changes: list[Change] = [Delete(level.key) if value is None else Put(level.key, value)]
        if level.listed_at is not None:
            changes.append(Delete(level.listed_at) if value is None else Put(level.listed_at, {}))
        changes += told(
            engine,
            level.deleted if value is None else level.set,
            entity_id=level.entity_id,
            resource=level.resource,
            before=corrupt_value(record) or (described(record.value) if record else None),
            after=None if value is None else described(value),
            actor=actor,
        )
        return changes


def known_version(record: Record | None) -> int | None:
    """The version to expect of a record that is to be replaced. One that is corrupt may have any."""
    if record is None:
        return ABSENT
    return None if record.flaw else record.version


def corrupt_value(record: Record | None) -> dict[str, Any] | None:
    """What the audit says that was there before."""
    return {"corrupt": record.flaw} if record and record.flaw else None


def described(value: Mapping[str, Any]) -> dict[str, Any]:
    """Stored limits as people write them."""
    return {**value, "limits": {limit["name"]: str(Limit.from_dict(limit)) for limit in value["limits"]}}


def write_limits_plan(
    engine: Engine, edits: Sequence[Edit], others: Sequence[Change] = (), *, actor: str | None = None
) -> Plan[list[Record | None]]:
    """Change stored limits, and move the namespace's revision on, so that buckets know the newer from the older. What
    was there before.

    The revision is a time in milliseconds: even if its record is lost, the next one is later than all before.
    """
    key = keys.revision_key(engine.namespace)
    while True:
        read = GetRecords([key, *(edit.level.key for edit in edits)], even_corrupt=True)  # they are overwritten
        revised, *before = yield from read
        changes = list(others)
        for edit, record in zip(edits, before):
            changes += edit.changes(engine, record, actor)
        if not changes:
            return before
        revision = max(engine.clock.now_ms(), revision_of(revised) + 1)
        try:
            yield from WriteRecords([*changes, Put(key, {"revision": revision}, known_version(revised))])
        except VersionConflict as conflict:
            if conflict.key == key:
                continue  # someone else changed limits in between
            raise
        engine.cache.clear()
        if others or any(edit.level.entity_id is not None for edit in edits):
            engine.cache.note_entities_have_their_own()  # a list may be late to know
        return before


def revision_of(record: Record | None) -> int:
    return int(record.value["revision"]) if record and not record.flaw else 0
