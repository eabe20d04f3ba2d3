"""Limits as they are stored, on all levels, and changing them: first seen, then done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, get_args

from ....core.errors import ValidationError, VersionConflict
from ....core.limit import Limit, by_name
from ....limiter import OnUnavailable
from ...paging import cursor_of
from ..levels import Level
from ..pages import Answer, Context, Fields, Moved, Shown, Visit, link, page, read_cursor, whole_number
from ..words import limit_changes, words_of

_PER_PAGE = 50
_SPARE_ROWS = 2


@page("GET", "/limits")
async def limits(visit: Visit) -> Answer:
    """Of the system and of resources: those that are for everyone."""
    limiter = visit.limiter
    system = Level(None, None)
    resources = await limiter.list_resources_with_defaults(limit=_PER_PAGE, cursor=read_cursor(visit.query))
    found = await asyncio.gather(
        system.read(limiter), system.policy(limiter), *(Level(None, one).read(limiter) for one in resources)
    )
    context = {
        "system": found[0],
        "policy": found[1],
        "resources": list(zip(resources, found[2:])),
        "cursor": cursor_of(resources),
    }
    return Shown("limits.html", context)


@page("GET", "/limits/edit", "admin")
async def edit_form(visit: Visit) -> Answer:
    level = _level(visit.query)
    stored = await _stored(visit, level)
    return _form(level, [(limit.name, str(limit)) for limit in stored.limits], stored.policy, stored)


@page("POST", "/limits/edit", "admin")
async def edit(visit: Visit) -> Answer:
    """Three times: what was typed, what would change, and the change. If somebody else was faster, what they did."""
    level = _level(visit.form)
    rows, policy = _typed(visit.form, level)
    stored = await _stored(visit, level)
    try:
        seen = _seen(visit.form)
        wanted = _read(rows, policy)
    except ValidationError as error:
        return _form(level, rows, policy, stored, words_of(error), 422)
    if seen == stored.version and visit.form.get("step") == "confirm":
        if await _written(visit, level, wanted, policy, seen):
            return Moved(_back(level), "limits")
        stored = await _stored(visit, level)
    change: Context = {"level": level, "rows": rows, "policy": policy}
    change |= {"old_policy": stored.policy, "version": stored.version, "changes": limit_changes(stored.limits, wanted)}
    if seen != stored.version:
        return await _conflict(visit, level, change)
    return Shown("limits_preview.html", {**change, "below": await level.below(visit.limiter)})


@page("GET", "/limits/delete", "admin")
async def delete_form(visit: Visit) -> Answer:
    level = _level(visit.query)
    stored = await _stored(visit, level)
    context: Context = {"level": level, "stored": stored.limits, "version": stored.version, "back": _back(level)}
    return Shown("limits_delete.html", context, 200 if stored.limits else 404)


@page("POST", "/limits/delete", "admin")
async def delete(visit: Visit) -> Answer:
    level = _level(visit.form)
    try:
        await level.delete(visit.limiter, _seen(visit.form), visit.actor)
    except VersionConflict:
        stored = await _stored(visit, level)
        changes = limit_changes(stored.limits, [])
        change: Context = {"level": level, "rows": [], "policy": None, "version": stored.version, "changes": changes}
        return await _conflict(visit, level, change)
    visit.changed()
    return Moved(_back(level), "limits-deleted")


class _Stored(NamedTuple):
    limits: list[Limit]
    policy: str | None
    version: int


async def _stored(visit: Visit, level: Level) -> _Stored:
    """The version first: what is read after it may be newer than it says, and then the change is refused."""
    version = await level.version(visit.limiter)
    return _Stored(await level.read(visit.limiter), await level.policy(visit.limiter), version)


async def _written(visit: Visit, level: Level, wanted: Sequence[Limit], policy: str | None, seen: int) -> bool:
    try:
        await level.write(visit.limiter, wanted, policy, seen, visit.actor)
    except VersionConflict:
        return False
    visit.changed()
    return True


async def _conflict(visit: Visit, level: Level, change: Context) -> Shown:
    """Who was faster is said if it is written down."""
    events = await visit.limiter.get_audit_events(level.entity_id, limit=20)
    at_level = [one for one in events if (one.entity_id, one.resource) == (level.entity_id, level.resource)]
    event = next((one for one in at_level if "limits" in one.action or "defaults" in one.action), None)
    return Shown("limits_conflict.html", {**change, "event": event}, 409)


def _level(sent: Fields) -> Level:
    return Level(sent.or_none("entity"), sent.or_none("resource")).check()


def _seen(sent: Fields) -> int:
    """Which version the form was made of."""
    return whole_number(sent.get("version"), "version")


def _typed(sent: Fields, level: Level) -> tuple[list[tuple[str, str]], str | None]:
    """Rows of names and what they allow, without those that are empty, and the outage policy."""
    rows = [(name.strip(), spec.strip()) for name, spec in zip(sent.all("name"), sent.all("spec"))]
    return [row for row in rows if any(row)], sent.or_none("on_unavailable") if level.is_system else None


def _read(rows: Sequence[tuple[str, str]], policy: str | None) -> list[Limit]:
    if policy is not None and policy not in get_args(OnUnavailable):
        raise ValidationError(f"on_unavailable must be one of {', '.join(get_args(OnUnavailable))}, not {policy!r}")
    if not rows:
        raise ValidationError("there must be at least one limit; to have none here, delete them")
    for name, spec in rows:
        if not name or not spec:
            raise ValidationError(f"a limit needs a name and what it allows, and {name or spec!r} is alone")
    return list(by_name([Limit.parse(name, spec) for name, spec in rows]).values())


def _form(
    level: Level,
    rows: Sequence[tuple[str, str]],
    policy: str | None,
    stored: _Stored,
    problem: str = "",
    status: int = 200,
) -> Shown:
    context: Context = {
        "level": level,
        "rows": [*rows, *[("", "")] * _SPARE_ROWS],
        "policy": policy,
        "policies": get_args(OnUnavailable),
        "version": stored.version,
        "stored": stored.limits,
        "problem": problem,
        "back": _back(level),
    }
    return Shown("limits_form.html", context, status)


def _back(level: Level) -> str:
    return link("limits") if level.entity_id is None else link("entities", level.entity_id)
