"""The limits in force before and after a change of stored limits, without making the change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...core.limit import Limit
from ...core.names import StoredId
from ...core.records import Record
from ...core.schedule import Schedule
from ...plan import GetRecords, ListRecords, Plan
from .. import keys
from ..acquire.options import OnUnavailable
from ..bind import blocking, coroutine
from ..engine import Engine
from .levels import (
    LimitLevel,
    ResolvedLimits,
    StoredLevel,
    StoredLimits,
    Value,
    inherits,
    level_value,
    merge,
    stored_limits,
)

_AT_ONCE = 50  # resources that are read in one call

Dropped: TypeAlias = "dict[str, list[str | None]]"


@dataclass(frozen=True, slots=True)
class LimitsPreview:
    """The limits in force at a level, before and after a change.

    `before`, `after`: for the entity on the resource. An entity's default is shown on a resource without stored limits,
    and the levels of everyone for an entity without stored limits.
    `dropped`: limits that would no longer apply, each with the resources concerned; None stands for resources without
    stored limits. An acquire that consumes such a name fails from then on.
    `version`: of the level. Pass it as `expected_version` to make exactly the change that was previewed.
    """

    before: ResolvedLimits
    after: ResolvedLimits
    dropped: Dropped
    version: int


def preview_limits_plan(
    engine: Engine,
    entity_id: str | None = None,
    resource: str | None = None,
    limits: Iterable[Limit] | Schedule | None = None,
    *,
    inherit: bool = True,
    on_unavailable: OnUnavailable | None = None,
) -> Plan[LimitsPreview]:
    """The effect of storing these limits for an entity, a resource or (neither) the system; None: of deleting them."""
    value = None if limits is None else level_value(limits, inherit) | {"on_unavailable": on_unavailable}
    level = LimitLevel(entity_id, resource).stored(engine)
    levels = level.searched()
    at = levels.index(level)
    records = yield from _read_plan(engine.namespace, levels)
    before, after = _both(engine, records, at, value)
    dropped: Dropped = {name: [level.resource] for name in _gone(before, after)}
    current = records[at]
    if level.entity_id is not None and level.resource is None and _may_drop_more(current, value):
        yield from _on_resources_plan(engine, level.entity_id, records, value, dropped)
    return LimitsPreview(before, after, dropped, stored_limits(current).version)


def preview_level_plan(engine: Engine, level: LimitLevel, limits: StoredLimits | None) -> Plan[LimitsPreview]:
    """The effect of storing these limits at a level, or (None) of deleting its limits."""
    how: dict[str, Any] = {"inherit": limits.inherit, "on_unavailable": limits.on_unavailable} if limits else {}
    return (yield from preview_limits_plan(engine, level.entity_id, level.resource, limits, **how))


preview_level, apreview_level = blocking(preview_level_plan), coroutine(preview_level_plan)


def _read_plan(namespace: str, levels: Sequence[StoredLevel | None]) -> Plan[list[Record | None]]:
    there = [level for level in levels if level is not None]
    found = dict(zip(there, (yield from GetRecords([level.key(namespace) for level in there]))))
    return [None if level is None else found[level] for level in levels]


def _both(
    engine: Engine, records: Sequence[Record | None], at: int, value: Value | None
) -> tuple[ResolvedLimits, ResolvedLimits]:
    """Before, and with this value at one of the levels."""
    values: list[Value | None] = [record.value if record else None for record in records]
    changed: list[Any] = [*values[:at], value, *values[at + 1 :]]
    before, after = (
        merge(some, engine.limits, engine.clock.now_ms()).resolved((some[-1] or {}).get("on_unavailable"))
        for some in (values, changed)
    )
    return before, after


def _gone(before: ResolvedLimits, after: ResolvedLimits) -> list[str]:
    return [name for name in before.sources if name not in after.sources]


def _may_drop_more(record: Record | None, value: Value | None) -> bool:
    """Whether a change of an entity's default may drop names on some resources only: those of the resource itself, and
    those of the system if the resource does not inherit them."""
    stops = value is not None and not inherits(value)
    if record is None:
        return stops
    names, left = ({limit["name"] for limit in level["limits"]} for level in (record.value, value or {"limits": []}))
    return bool(names - left) or (stops and inherits(record.value))


def _on_resources_plan(
    engine: Engine, entity_id: StoredId, records: Sequence[Record | None], value: Value | None, dropped: Dropped
) -> Plan[None]:
    """The same for each resource with limits."""
    _, default, _, system = records
    prefix = keys.resources_prefix(engine.namespace)
    cursor: str | None = None
    while True:
        page = yield from ListRecords(prefix, cursor, _AT_ONCE)
        resources = [keys.last_part(one.key) for one in page]
        own = yield from GetRecords([StoredLevel(entity_id, one).key(engine.namespace) for one in resources])
        for everyones, mine in zip(page, own):
            for name in _gone(*_both(engine, [mine, default, everyones, system], 1, value)):
                dropped.setdefault(name, []).append(keys.last_part(everyones.key))
        cursor = page.cursor
        if cursor is None:
            return
