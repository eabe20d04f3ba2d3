"""Limits as they are stored, on all levels, and changing them: first seen, then done."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, get_args

from ....core.errors import CorruptState, ValidationError, VersionConflict
from ....core.limit import Limit, by_name
from ....limiter import LimitsPreview, OnUnavailable, RateLimiter, ResolvedLimits, StoredLimits
from ...levels import Level, Wanted
from ...reading import cursor_of
from ..pages import Answer, Context, Fields, Shown, Visit, link, page, read_cursor, whole_number
from ..pages import Redirect as Moved
from ..words import effective_changes, words_of

_PER_PAGE = 50
_SPARE_ROWS = 2


@page("GET", "/limits")
async def limits(visit: Visit) -> Answer:
    """Of the system and of resources: those that are for everyone."""
    limiter = visit.limiter
    resources = await limiter.list_resources_with_defaults(limit=_PER_PAGE, cursor=read_cursor(visit.query))
    levels = [Level(), *(Level(resource=resource) for resource in resources)]
    corrupt: list[CorruptState] = []
    system, *found = await asyncio.gather(*(_known(limiter, level, corrupt) for level in levels))
    context = {
        "system": system,
        "resources": list(zip(resources, found)),
        "cursor": cursor_of(resources),
        "corrupt": corrupt,
    }
    return Shown("limits.html", context)


async def _known(limiter: RateLimiter, level: Level, corrupt: list[CorruptState]) -> StoredLimits:
    """A corrupt level is told, and the others are shown."""
    try:
        return await level.read(limiter)
    except CorruptState as error:
        corrupt.append(error)
        return StoredLimits()


@page("GET", "/limits/edit", "admin")
async def edit_form(visit: Visit) -> Answer:
    """Filled with what holds now, whatever level it is from."""
    level = _level(visit.query)
    stored = await level.read(visit.limiter)
    held = await _held(visit, level, stored)
    inherited = [f"{limit.name}={limit}" for limit in held.limits if held.sources[limit.name] != level.source]
    rows = [(limit.name, str(limit)) for limit in held.limits]
    return _form(level, _Typed(rows, stored.inherit, inherited, stored.on_unavailable), stored, held)


@page("POST", "/limits/edit", "admin")
async def edit(visit: Visit) -> Answer:
    """Three times: what was typed, what would change, and the change. If somebody else was faster, what they did."""
    level = _level(visit.form)
    typed = _typed(visit.form, level)
    stored = await level.read(visit.limiter)
    try:
        seen = _seen(visit.form)
        wanted = _read(typed)
    except ValidationError as error:
        return _form(level, typed, stored, await _held(visit, level, stored), words_of(error), 422)
    preview = await level.preview(visit.limiter, wanted)
    if seen == stored.version and _agreed(visit.form, preview):
        if await _changed(visit, level, wanted, seen):
            return Moved(_back(level), "limits")
        stored, preview = await level.read(visit.limiter), await level.preview(visit.limiter, wanted)
    change = _change(level, preview, wanted) | {"stored": stored, "version": stored.version}
    if seen != stored.version:
        return await _conflict(visit, level, change)
    return Shown("limits_preview.html", {**change, "below": await level.below(visit.limiter)})


@page("GET", "/limits/delete", "admin")
async def delete_form(visit: Visit) -> Answer:
    return await _delete_form(visit, _level(visit.query))


@page("POST", "/limits/delete", "admin")
async def delete(visit: Visit) -> Answer:
    level, seen = _level(visit.form), _seen(visit.form)
    preview = await level.preview(visit.limiter, None)
    if seen == preview.version and not _agreed(visit.form, preview):
        return await _delete_form(visit, level)
    if await _changed(visit, level, None, seen):
        return Moved(_back(level), "limits-deleted")
    preview = await level.preview(visit.limiter, None)
    return await _conflict(visit, level, _change(level, preview, None) | {"version": preview.version})


async def _delete_form(visit: Visit, level: Level) -> Shown:
    stored = await level.read(visit.limiter)  # first: what is read after it may be newer, and then it is refused
    change = _change(level, await level.preview(visit.limiter, None), None)
    context = change | {"stored": stored, "version": stored.version, "back": _back(level)}
    return Shown("limits_delete.html", context, 200 if stored else 404)


# What is stored, what holds, and what would


async def _held(visit: Visit, level: Level, stored: StoredLimits) -> ResolvedLimits:
    """What holds now at a level."""
    as_it_is = Wanted(stored, stored.inherit, stored.on_unavailable) if stored else None
    return (await level.preview(visit.limiter, as_it_is)).before


def _change(level: Level, preview: LimitsPreview, wanted: Wanted | None) -> Context:
    return {
        "level": level,
        "wanted": wanted,
        "changes": effective_changes(preview.before, preview.after),
        "dropped": preview.dropped,
    }


def _agreed(sent: Fields, preview: LimitsPreview) -> bool:
    """Whether somebody has seen what would happen, and wants it: also that these names would no longer hold."""
    return sent.get("step") == "confirm" and preview.dropped.keys() <= set(sent.all("dropped"))


async def _changed(visit: Visit, level: Level, wanted: Wanted | None, seen: int) -> bool:
    try:
        await level.change(visit.limiter, wanted, seen, visit.actor)
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


# What was typed


class _Typed(NamedTuple):
    """Rows of names and what they allow. `inherited`: those that were, as `name=spec`, when the form was made."""

    rows: Sequence[tuple[str, str]]
    inherit: bool
    inherited: Collection[str]
    policy: Any

    def own(self) -> list[tuple[str, str]]:
        """All but those that were inherited, and are to be, and are left as they were."""
        still = self.inherited if self.inherit else ()
        return [(name, spec) for name, spec in self.rows if f"{name}={spec}" not in still]


def _typed(sent: Fields, level: Level) -> _Typed:
    """Without rows that are empty."""
    rows = [(name.strip(), spec.strip()) for name, spec in zip(sent.all("name"), sent.all("spec"))]
    policy = sent.or_none("on_unavailable") if level.is_system else None
    return _Typed([row for row in rows if any(row)], sent.get("inherit") != "no", sent.all("inherited"), policy)


def _read(typed: _Typed) -> Wanted:
    policy, rows = typed.policy, typed.own()
    if policy is not None and policy not in get_args(OnUnavailable):
        raise ValidationError(f"on_unavailable must be one of {', '.join(get_args(OnUnavailable))}, not {policy!r}")
    if not rows:
        raise ValidationError(
            "there must be at least one limit that is not inherited: change one, or add one; to have none of its own "
            "here, delete them"
        )
    for name, spec in rows:
        if not name or not spec:
            raise ValidationError(f"a limit needs a name and what it allows, and {name or spec!r} is alone")
    named = by_name([Limit.parse(name, spec) for name, spec in rows])
    return Wanted(list(named.values()), typed.inherit, policy)


def _form(
    level: Level, typed: _Typed, stored: StoredLimits, held: ResolvedLimits, problem: str = "", status: int = 200
) -> Shown:
    sources = {(limit.name, str(limit)): held.sources[limit.name] for limit in held.limits}
    rows = [(name, spec, sources.get((name, spec))) for name, spec in typed.rows]
    context: Context = {
        "level": level,
        "rows": [*rows, *[("", "", None)] * _SPARE_ROWS],
        "inherit": typed.inherit,
        "inherited": typed.inherited,
        "policy": typed.policy,
        "policies": get_args(OnUnavailable),
        "version": stored.version,
        "stored": stored,
        "problem": problem,
        "back": _back(level),
    }
    return Shown("limits_form.html", context, status)


def _back(level: Level) -> str:
    return link("limits") if level.entity_id is None else link("entities", level.entity_id)
