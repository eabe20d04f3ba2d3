"""Applying a difference: many changes at a time, each only if nobody has changed the same in the meantime.

Whoever applies writes the record `applied` with everything it writes, and only as long as nobody else has written it
since the difference was made. So of two who apply at once one stops, with an error that says so, even if it looked when
the other was only half done. Applying again goes on from there, as it does after a crash.
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
from ..limiter.observe.audit import Action, told
from ..plan import DeleteBuckets, GetRecords, ListBuckets, ListRecords, Plan
from ..stores.contract import MAX_CHANGES
from .difference import Diff, Difference
from .stored import applied_key, key_at, level_at

_OWN = 2  # in each write: the revision, and the record of who applies
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
    """Somebody else changed the same while a declaration was applied. What was done until then is done."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(key)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} in the meantime: look at the difference again, and apply it again"


def apply_plan(
    engine: Engine,
    diff: Diff,
    *,
    actor: str | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Plan[int]:
    """Do what a difference says, and return how many changes that were. `progress` is told how many of how many are
    done.

    ApplyConflict if somebody else has changed the same since it was made; applying anew goes on from there.
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
    """What is written at once: limits, other records, and what must still be as it was read."""

    edits: list[Edit] = field(default_factory=list)
    others: list[Change] = field(default_factory=list)
    checks: dict[str, Check] = field(default_factory=dict)
    removed: list[StoredId] = field(default_factory=list)
    count: int = 0

    def changes(self) -> list[Change]:
        """No record twice: one that is written is not checked beside."""
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
    place, value, version = difference.place, difference.value, difference.version
    if place.kind in ("system", "resource", "limits"):
        return _Batch(edits=[Edit(level_at(engine, place), value, version)], count=1)
    key = key_at(engine, place)
    changes: list[Change] = [Delete(key, version) if value is None else Put(key, value, version)]
    step = _Batch(others=changes, count=1)
    if place.kind == "entity":
        entity_id = StoredId(place.entity_id)
        _follow(engine, step, entity_id, difference.before, difference.after)
        if value is None:
            step.removed.append(entity_id)
        elif (difference.before or {}).get("parent_id") != value["parent_id"]:
            step.checks = _checks_above(engine, diff, entity_id, versions)
        versions[entity_id] = version + 1
    step.others += _event(engine, difference, actor)
    return step


def _follow(
    engine: Engine, step: _Batch, entity_id: StoredId, before: dict[str, Any] | None, after: dict[str, Any] | None
) -> None:
    """The list of the parent's children."""
    old, new = ((value or {}).get("parent_id") for value in (before, after))
    if old == new:
        return
    if old is not None:
        step.others.append(Delete(keys.child_key(engine.namespace, old, entity_id)))
    if new is not None:
        step.others.append(Put(keys.child_key(engine.namespace, new, entity_id), {}))


def _checks_above(engine: Engine, diff: Diff, entity_id: StoredId, versions: dict[str, int]) -> dict[str, Check]:
    """All above must stay where they are while somebody is put below them."""
    checks = {}
    above = diff.parents.get(entity_id)
    while above is not None:
        key = keys.entity_key(engine.namespace, StoredId(above))
        checks[key] = Check(key, versions[above])
        above = diff.parents.get(above)
    return checks


def _event(engine: Engine, difference: Difference, actor: str | None) -> Sequence[Put]:
    place, before, after = difference.place, difference.before, difference.after
    action = _ACTIONS[place.kind, difference.kind]
    return told(engine, action, entity_id=place.entity_id or None, before=before, after=after, actor=actor)


def _check_childless_plan(engine: Engine, batch: _Batch) -> Plan[None]:
    """Nobody has been put below those that are removed, but for those that go with this batch."""
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
    """What somebody else has changed: of all that, another declaration explains most."""
    (applied,) = yield from GetRecords([mine.key])
    if applied is not None and applied.version != mine.expected:
        return f"another declaration was applied by {applied.value['actor']}"
    for difference in diff:
        if key_at(engine, difference.place) == key:
            return f"{difference.place} was changed by somebody else"
    return f"{keys.last_part(key)!r}, above what is to be changed, was changed by somebody else"
