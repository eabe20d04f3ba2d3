"""Changing stored limits: the records and audit events of a change, written in one step, with a new revision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...core.errors import VersionConflict
from ...core.records import ABSENT, Change, Delete, Put, Record
from ...core.written import spelled_hours, write_limits
from ...plan import GetRecords, Plan, WriteRecords
from .. import keys
from ..engine import Engine
from ..observe.audit import audit_event
from .levels import StoredLevel, limits_in, schedule_in


class Edit(NamedTuple):
    """A change at a level: `value` is stored there, or (None) what is there is deleted."""

    level: StoredLevel
    value: dict[str, Any] | None
    expected_version: int | None = None

    def changes(self, engine: Engine, record: Record | None, actor: str | None) -> list[Change]:
        """All that has to be written, which is nothing if nothing changes."""
        key, value = self.level.key(engine.namespace), self.value
        if self.expected_version not in (None, record.version if record else ABSENT):
            raise VersionConflict(key)
        if not corrupt_value(record) and value == (record.value if record else None):
            return []
        changes = [_put_or_delete(key, value)]
        index_key = self.level.index_key(engine.namespace)
        if index_key is not None:
            changes.append(_put_or_delete(index_key, None if value is None else {}))
        return [*changes, *self._events(engine, record, actor)]

    def _events(self, engine: Engine, record: Record | None, actor: str | None) -> Sequence[Put]:
        set_, deleted = self.level.actions
        return audit_event(
            engine,
            deleted if self.value is None else set_,
            entity_id=self.level.entity_id,
            resource=self.level.resource,
            before=corrupt_value(record) or (described(record.value) if record else None),
            after=None if self.value is None else described(self.value),
            actor=actor,
        )


def _put_or_delete(key: str, value: dict[str, Any] | None) -> Change:
    return Delete(key) if value is None else Put(key, value)


def known_version(record: Record | None) -> int | None:
    """The version to expect of a record that is to be replaced: any, if it is corrupt."""
    if record is None:
        return ABSENT
    return None if record.flaw else record.version


def corrupt_value(record: Record | None) -> dict[str, Any] | None:
    """What the audit trail says was there before, if it was corrupt."""
    return {"corrupt": record.flaw} if record and record.flaw else None


def described(value: Mapping[str, Any]) -> dict[str, Any]:
    """Stored limits as people write them."""
    schedule = schedule_in(value)
    hours = {} if schedule is None else {"schedule": spelled_hours(schedule)}
    return {**value, "limits": write_limits(limits_in(value)), **hours}


def write_limits_plan(
    engine: Engine, edits: Sequence[Edit], others: Sequence[Change] = (), *, actor: str | None = None
) -> Plan[list[Record | None]]:
    """Change stored limits and raise the namespace's revision, by which buckets tell newer limits from older ones.
    Returns the records as they were.

    The revision is a time in milliseconds: even if its record is lost, the next one is higher than all before.
    """
    key = keys.revision_key(engine.namespace)
    while True:
        read = GetRecords(
            [key, *(edit.level.key(engine.namespace) for edit in edits)], even_corrupt=True
        )  # they are overwritten
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
                continue  # limits were changed in between
            raise
        engine.cache.clear()
        if others or any(edit.level.entity_id is not None for edit in edits):
            engine.cache.note_entities_have_their_own()  # a list may be stale
        return before


def revision_of(record: Record | None) -> int:
    return int(record.value["revision"]) if record and not record.flaw else 0
