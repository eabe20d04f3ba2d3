"""Applying a difference: in batches, each written only if the stored data is still what the difference was made of.

Every batch also writes the record `applied`, on the condition that no other process has written it since the difference
was made. So of two concurrent applies one stops with an error, even if it read what the other had only half written.
Applying again continues from there, as it does after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import VersionConflict
from ..core.names import StoredId, bucket_key
from ..core.records import Change, Check, Delete, Put
from ..limiter import keys
from ..limiter.config.edits import Edit, write_limits_plan
from ..limiter.engine import Engine
from ..limiter.observe.audit import Action, audit_event
from ..plan import DeleteBuckets, GetRecords, ListBuckets, ListRecords, Plan
from ..stores.contract import MAX_CHANGES
from .difference import Diff, Difference
from .stored import applied_key

_OWN = 2  # in each write: the revision, and the record `applied`
_ACTIONS: Mapping[tuple[str, str], Action] = {
    ("entity", "created"): "entity.created",
    ("entity", "changed"): "entity.updated",
    ("entity", "removed"): "entity.deleted",
    ("plans", "created"): "plans.set",
    ("plans", "changed"): "plans.set",
    ("plans", "removed"): "plans.deleted",
    ("rules", "created"): "rules.set",
    ("rules", "changed"): "rules.set",
    ("rules", "removed"): "rules.deleted",
}
_EDIT = 4  # limits, their index, and an event in two places


class ApplyConflict(VersionConflict):
    """The same data was changed while a declaration was applied. The changes made until then stay."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(key)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} in the meantime: check the difference, and apply it again"


def apply_plan(
    engine: Engine,
    diff: Diff,
    *,
    actor: str | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Plan[int]:
    """Apply a difference, and return the number of changes. `progress` is called with how many of how many are done.

    ApplyConflict if the same data was changed since the difference was made. Make it again and apply it to continue.
    """
    done = 0
    versions = dict(diff.versions)
    applied = diff.applied
    for batch in _batches(engine, diff, versions, actor):
        yield from _check_childless_plan(engine, batch)
        by = {"at_ms": engine.clock.now_ms(), "actor": actor or engine.actor}
        mine = Put(applied_key(engine.namespace), by, applied)
        try:
            yield from write_limits_plan(engine, batch.edits, [mine, *batch.changes()], actor=actor)
        except VersionConflict as conflict:
            what = yield from _changed_plan(engine, diff, conflict.key, mine)
            raise ApplyConflict(conflict.key, what) from None
        applied += 1
        done += batch.count
        for entity_id in batch.removed:
            yield from _delete_buckets_plan(engine, entity_id)
        if progress is not None:
            progress(done, len(diff))
    return done


@dataclass(slots=True)
class _Batch:
    """What is written at once: limits, other records, and checks that some records are still as they were read."""

    edits: list[Edit] = field(default_factory=list)
    others: list[Change] = field(default_factory=list)
    checks: dict[str, Check] = field(default_factory=dict)
    removed: list[StoredId] = field(default_factory=list)
    count: int = 0

    def changes(self) -> list[Change]:
        """No record twice: one that is written is not checked as well."""
        written = {change.key for change in self.others}
        return [*self.others, *(check for key, check in self.checks.items() if key not in written)]

    def has_room_for(self, other: _Batch) -> bool:
        edits, others = len(self.edits) + len(other.edits), len(self.others) + len(other.others)
        checks = len(self.checks.keys() | other.checks.keys())
        return _OWN + _EDIT * edits + others + checks <= MAX_CHANGES

    def add(self, other: _Batch) -> None:
        self.edits += other.edits
        self.others += other.others
        self.checks |= {key: check for key, check in other.checks.items() if key not in self.checks}
        self.removed += other.removed
        self.count += other.count


def _batches(engine: Engine, diff: Diff, versions: dict[str, int], actor: str | None) -> Iterator[_Batch]:
    batch = _Batch()
    for difference in diff:
        step = _step(engine, diff, difference, versions, actor)
        if not batch.has_room_for(step):
            yield batch
            batch = _Batch()
        batch.add(step)
    if batch.count:
        yield batch


def _step(engine: Engine, diff: Diff, difference: Difference, versions: dict[str, int], actor: str | None) -> _Batch:
    item, value, version = difference.item, difference.value, difference.version
    if item.kind == "limits":
        return _Batch(edits=[Edit(item.level, value, version)], count=1)
    key = item.key(engine.namespace)
    changes: list[Change] = [Delete(key, version) if value is None else Put(key, value, version)]
    step = _Batch(others=changes, count=1)
    if item.entity_id is not None:
        entity_id = item.entity_id
        _move(engine, step, entity_id, difference.before, difference.after)
        if value is None:
            step.removed.append(entity_id)
        elif (difference.before or {}).get("parent_id") != value["parent_id"]:
            step.checks = _checks_above(engine, diff, entity_id, versions)
        versions[entity_id] = version + 1
    step.others += _event(engine, difference, actor)
    return step


def _move(
    engine: Engine, step: _Batch, entity_id: StoredId, before: dict[str, Any] | None, after: dict[str, Any] | None
) -> None:
    """Update the lists of children of the old parent and the new one."""
    old, new = ((value or {}).get("parent_id") for value in (before, after))
    if old == new:
        return
    if old is not None:
        step.others.append(Delete(keys.child_key(engine.namespace, old, entity_id)))
    if new is not None:
        step.others.append(Put(keys.child_key(engine.namespace, new, entity_id), {}))


def _checks_above(engine: Engine, diff: Diff, entity_id: StoredId, versions: dict[str, int]) -> dict[str, Check]:
    """The ancestors must not move while an entity is put below them."""
    checks = {}
    above = diff.parents.get(entity_id)
    while above is not None:
        key = keys.entity_key(engine.namespace, StoredId(above))
        checks[key] = Check(key, versions[above])
        above = diff.parents.get(above)
    return checks


def _event(engine: Engine, difference: Difference, actor: str | None) -> Sequence[Put]:
    item, before, after = difference.item, difference.before, difference.after
    action = _ACTIONS[item.kind, difference.kind]
    return audit_event(engine, action, entity_id=item.entity_id, before=before, after=after, actor=actor)


def _check_childless_plan(engine: Engine, batch: _Batch) -> Plan[None]:
    """The removed entities have no children, except those that are removed in the same batch."""
    written = {change.key for change in batch.others}
    for entity_id in batch.removed:
        prefix = keys.children_prefix(engine.namespace, entity_id)
        for child in (yield from ListRecords(prefix, limit=MAX_CHANGES, even_corrupt=True)):
            if child.key not in written:
                raise ApplyConflict(child.key, f"{keys.last_part(child.key)!r} was put below {entity_id!r}")


def _delete_buckets_plan(engine: Engine, entity_id: StoredId) -> Plan[None]:
    cursor: str | None = None
    while True:
        rows = yield from ListBuckets(engine.namespace, entity_id=entity_id, cursor=cursor)
        resources = [row.resource for row in rows] + [error.resource for error in rows.corrupt]
        if resources:
            yield from DeleteBuckets([bucket_key(engine.namespace, entity_id, resource) for resource in resources])
        cursor = rows.cursor
        if cursor is None:
            return


def _changed_plan(engine: Engine, diff: Diff, key: str, mine: Put) -> Plan[str]:
    """What was changed meanwhile. If another declaration was applied, that explains all of it."""
    (applied,) = yield from GetRecords([mine.key])
    if applied is not None and applied.version != mine.expected:
        return f"another declaration was applied by {applied.value['actor']}"
    for difference in diff:
        if difference.item.key(engine.namespace) == key:
            return f"{difference.item} changed"
    return f"{keys.last_part(key)!r}, an ancestor of a changed entity, changed"
