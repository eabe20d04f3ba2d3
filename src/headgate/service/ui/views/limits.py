"""Stored limits at all levels, and changing them: a form, a preview, the change."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, get_args

from ....core.errors import CorruptState, ValidationError, VersionConflict
from ....core.limit import Limit, by_name
from ....limiter import LimitsPreview, OnUnavailable, RateLimiter, ResolvedLimits, StoredLimits
from ....limiter.config.levels import LimitLevel
from ....limiter.config.limits import aread_level, awrite_level
from ....limiter.config.preview import apreview_level
from ...reading import cursor_of
from ..pages import Answer, Context, Fields, Redirect, Shown, Visit, link, page, read_cursor, whole_number
from ..words import effective_changes, words_of

_PER_PAGE = 50
_SPARE_ROWS = 2
_SOME = 5


@page("GET", "/limits")
async def limits(visit: Visit) -> Answer:
    """The limits of everyone: those of the system and of resources."""
    limiter = visit.limiter
    resources = await limiter.list_resources_with_defaults(limit=_PER_PAGE, cursor=read_cursor(visit.query))
    levels = [LimitLevel(), *(LimitLevel(resource=resource) for resource in resources)]
    corrupt: list[CorruptState] = []
    system, *found = await asyncio.gather(*(_known(limiter, level, corrupt) for level in levels))
    context = {
        "system": system,
        "resources": list(zip(resources, found)),
        "cursor": cursor_of(resources),
        "corrupt": corrupt,
    }
    return Shown("limits.html", context)


async def _known(limiter: RateLimiter, level: LimitLevel, corrupt: list[CorruptState]) -> StoredLimits:
    """A corrupt level is reported, and the others are shown."""
    try:
        return await aread_level(limiter, level)
    except CorruptState as error:
        corrupt.append(error)
        return StoredLimits()


@page("GET", "/limits/edit", "admin")
async def edit_form(visit: Visit) -> Answer:
    """Filled with the limits in force now, from any level."""
    level = _level(visit.query)
    stored = await aread_level(visit.limiter, level)
    held = await _held(visit, level, stored)
    inherited = [f"{limit.name}={limit}" for limit in held.limits if held.sources[limit.name] != level.source]
    rows = [(limit.name, str(limit)) for limit in held.limits]
    return _form(level, _Typed(rows, stored.inherit, inherited, stored.on_unavailable), stored, held)


@page("POST", "/limits/edit", "admin")
async def edit(visit: Visit) -> Answer:
    """In three steps: the form, the preview, the change. If the level was changed meanwhile, a page that shows it."""
    level = _level(visit.form)
    typed = _typed(visit.form, level)
    stored = await aread_level(visit.limiter, level)
    try:
        seen = _seen(visit.form)
        wanted = _read(typed)
    except ValidationError as error:
        return _form(level, typed, stored, await _held(visit, level, stored), words_of(error), 422)
    preview = await apreview_level(visit.limiter, level, wanted)
    if seen == stored.version and _agreed(visit.form, preview):
        if await _changed(visit, level, wanted, seen):
            return Redirect(_back(level), "limits")
        stored, preview = await aread_level(visit.limiter, level), await apreview_level(visit.limiter, level, wanted)
    change = _change(level, preview, wanted) | {"stored": stored, "version": stored.version}
    if seen != stored.version:
        return await _conflict(visit, level, change)
    return Shown("limits_preview.html", {**change, "below": await _below(visit.limiter, level)})


@page("GET", "/limits/delete", "admin")
async def delete_form(visit: Visit) -> Answer:
    return await _delete_form(visit, _level(visit.query))


@page("POST", "/limits/delete", "admin")
async def delete(visit: Visit) -> Answer:
    level, seen = _level(visit.form), _seen(visit.form)
    preview = await apreview_level(visit.limiter, level, None)
    if seen == preview.version and not _agreed(visit.form, preview):
        return await _delete_form(visit, level)
    if await _changed(visit, level, None, seen):
        return Redirect(_back(level), "limits-deleted")
    preview = await apreview_level(visit.limiter, level, None)
    return await _conflict(visit, level, _change(level, preview, None) | {"version": preview.version})


async def _delete_form(visit: Visit, level: LimitLevel) -> Shown:
    stored = await aread_level(visit.limiter, level)  # first: if what is read next is newer, the change is refused
    change = _change(level, await apreview_level(visit.limiter, level, None), None)
    context = change | {"stored": stored, "version": stored.version, "back": _back(level)}
    return Shown("limits_delete.html", context, 200 if stored else 404)


# What is stored, what is in force, and what would be


async def _held(visit: Visit, level: LimitLevel, stored: StoredLimits) -> ResolvedLimits:
    """The limits in force now at a level."""
    return (await apreview_level(visit.limiter, level, stored or None)).before


async def _below(limiter: RateLimiter, level: LimitLevel) -> list[str]:
    """Some entities or resources with limits of their own, which take precedence over these."""
    if level.entity_id is not None:
        return []
    if level.resource is not None:
        return list(await limiter.list_entities_with_custom_limits(level.resource, limit=_SOME))
    return list(await limiter.list_resources_with_defaults(limit=_SOME))


def _change(level: LimitLevel, preview: LimitsPreview, wanted: StoredLimits | None) -> Context:
    return {
        "level": level,
        "wanted": wanted,
        "changes": effective_changes(preview.before, preview.after),
        "dropped": preview.dropped,
    }


def _agreed(sent: Fields, preview: LimitsPreview) -> bool:
    """Whether the preview was confirmed, with all the limits that the change would drop."""
    return sent.get("step") == "confirm" and preview.dropped.keys() <= set(sent.all("dropped"))


async def _changed(visit: Visit, level: LimitLevel, wanted: StoredLimits | None, seen: int) -> bool:
    try:
        await awrite_level(visit.limiter, level, wanted, expected_version=seen, actor=visit.actor)
    except VersionConflict:
        return False
    visit.changed()
    return True


async def _conflict(visit: Visit, level: LimitLevel, change: Context) -> Shown:
    """With the audit event of the other change, if there is one."""
    events = await visit.limiter.get_audit_events(level.entity_id, limit=20)
    at_level = [one for one in events if (one.entity_id, one.resource) == (level.entity_id, level.resource)]
    event = next((one for one in at_level if "limits" in one.action or "defaults" in one.action), None)
    return Shown("limits_conflict.html", {**change, "event": event}, 409)


def _level(sent: Fields) -> LimitLevel:
    return LimitLevel(sent.or_none("entity"), sent.or_none("resource"))


def _seen(sent: Fields) -> int:
    """The version that the form was made from."""
    return whole_number(sent.get("version"), "version")


# The fields of the form


class _Typed(NamedTuple):
    """Rows of names and specs. `inherited`: those that were inherited when the form was made, as `name=spec`."""

    rows: Sequence[tuple[str, str]]
    inherit: bool
    inherited: Collection[str]
    policy: Any

    def own(self) -> list[tuple[str, str]]:
        """The rows to store at this level: all but inherited ones that were not edited."""
        still = self.inherited if self.inherit else ()
        return [(name, spec) for name, spec in self.rows if f"{name}={spec}" not in still]


def _typed(sent: Fields, level: LimitLevel) -> _Typed:
    """Without rows that are empty."""
    rows = [(name.strip(), spec.strip()) for name, spec in zip(sent.all("name"), sent.all("spec"))]
    policy = sent.or_none("on_unavailable") if level.source == "system" else None
    return _Typed([row for row in rows if any(row)], sent.get("inherit") != "no", sent.all("inherited"), policy)


def _read(typed: _Typed) -> StoredLimits:
    policy, rows = typed.policy, typed.own()
    if policy is not None and policy not in get_args(OnUnavailable):
        raise ValidationError(f"on_unavailable must be one of {', '.join(get_args(OnUnavailable))}, not {policy!r}")
    if not rows:
        raise ValidationError(
            "at least one limit must not be inherited: change one, or add one; to store none here, delete them"
        )
    for name, spec in rows:
        if not name or not spec:
            raise ValidationError(
                f"a limit needs a name and a spec like 100/minute: {name or spec!r} lacks one of them"
            )
    named = by_name([Limit.parse(name, spec) for name, spec in rows])
    return StoredLimits(named.values(), inherit=typed.inherit, on_unavailable=policy)


def _form(
    level: LimitLevel, typed: _Typed, stored: StoredLimits, held: ResolvedLimits, problem: str = "", status: int = 200
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


def _back(level: LimitLevel) -> str:
    return link("limits") if level.entity_id is None else link("entities", level.entity_id)
