"""Stored limits at all levels, and changing them: a form, a preview, the change."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias, get_args

from ....core.calendar import zone_of
from ....core.errors import CorruptState, ValidationError, VersionConflict
from ....core.limit import Limit, by_name
from ....limiter import LimitsPreview, OnUnavailable, RateLimiter, ResolvedLimits, StoredLimits
from ....limiter.config.levels import LimitLevel
from ....limiter.config.limits import aread_level, awrite_level
from ....limiter.config.preview import apreview_level
from ...reading import cursor_of
from ..hours import read_entries, read_schedule, spelled_entries, spelled_level
from ..pages import Answer, Context, Fields, Redirect, Shown, Visit, link, page, read_cursor, whole_number
from ..words import effective_changes, line_changes, words_of

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
    rows = _rows(level, stored, held)
    inherited = [f"{name}={spec}" for name, spec, source in rows if source != level.source]
    hours, tz = _stored_hours(stored)
    named = [(name, spec) for name, spec, _ in rows]
    return _form(level, _Typed(named, stored.inherit, inherited, stored.on_unavailable, hours, tz), stored, held)


@page("POST", "/limits/edit", "admin")
async def edit(visit: Visit) -> Answer:
    """In three steps: the form, the preview, the change. If the level was changed meanwhile, a page that shows it."""
    level = _level(visit.form)
    stored = await aread_level(visit.limiter, level)
    typed = _typed(visit.form, level, stored)
    try:
        seen = _seen(visit.form)
        wanted = _read(typed)
    except ValidationError as error:
        return _form(level, typed, stored, await _held(visit, level, stored), error, 422)
    preview = await apreview_level(visit.limiter, level, wanted)
    if seen == stored.version and _agreed(visit.form, preview):
        if await _changed(visit, level, wanted, seen):
            return Redirect(_back(level), "limits")
        stored, preview = await aread_level(visit.limiter, level), await apreview_level(visit.limiter, level, wanted)
    change = _change(level, preview, stored, wanted) | {"version": stored.version}
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
    stored, preview = await aread_level(visit.limiter, level), await apreview_level(visit.limiter, level, None)
    return await _conflict(visit, level, _change(level, preview, stored, None) | {"version": preview.version})


async def _delete_form(visit: Visit, level: LimitLevel) -> Shown:
    stored = await aread_level(visit.limiter, level)  # first: if what is read next is newer, the change is refused
    change = _change(level, await apreview_level(visit.limiter, level, None), stored, None)
    context = change | {"version": stored.version, "back": _back(level)}
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


def _change(level: LimitLevel, preview: LimitsPreview, stored: StoredLimits, wanted: StoredLimits | None) -> Context:
    """`lines`: of the schedule, if there is one before or after."""
    scheduled = stored.schedule or (wanted and wanted.schedule)
    return {
        "level": level,
        "stored": stored,
        "wanted": wanted,
        "changes": effective_changes(preview.before, preview.after),
        "lines": line_changes(spelled_level(stored), spelled_level(wanted)) if scheduled else [],
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

Field: TypeAlias = "int | str | None"  # the number of a row, "hours" or "tz"
Row: TypeAlias = "tuple[str, str, str | None]"  # name, spec and level


class WrongField(ValidationError):
    """What was typed into one field cannot be used."""

    def __init__(self, field: Field, words: str) -> None:
        super().__init__(words)
        self.field = field


@contextmanager
def _reading(field: Field) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise WrongField(field, words_of(error)) from None


class _Typed(NamedTuple):
    """Rows of names and specs. `inherited`: those that were inherited when the form was made, as `name=spec`."""

    rows: Sequence[tuple[str, str]]
    inherit: bool
    inherited: Collection[str]
    policy: Any
    hours: str
    tz: str

    def own(self, at_hours: Collection[str]) -> list[int]:
        """The rows to store at this level: all but inherited ones that were not edited, and have no other hours."""
        still = self.inherited if self.inherit else ()
        return [
            number for number, (name, spec) in enumerate(self.rows) if name in at_hours or f"{name}={spec}" not in still
        ]


def _typed(sent: Fields, level: LimitLevel, stored: StoredLimits) -> _Typed:
    """Without rows that are empty."""
    rows = [(name.strip(), spec.strip()) for name, spec in zip(sent.all("name"), sent.all("spec"))]
    policy = sent.or_none("on_unavailable") if level.source == "system" else None
    hours, tz = ("\n".join(sent.all("hours")), sent.get("tz")) if sent.all("hours") else _stored_hours(stored)
    inherit = sent.get("inherit") != "no"
    return _Typed([row for row in rows if any(row)], inherit, sent.all("inherited"), policy, hours, tz)


def _stored_hours(stored: StoredLimits) -> tuple[str, str]:
    schedule = stored.schedule
    return ("", "") if schedule is None else ("\n".join(spelled_entries(schedule)), schedule.tz)


def _read(typed: _Typed) -> StoredLimits:
    policy = typed.policy
    if policy is not None and policy not in get_args(OnUnavailable):
        raise ValidationError(f"on_unavailable must be one of {', '.join(get_args(OnUnavailable))}, not {policy!r}")
    limits: list[Limit] = []
    for number, (name, spec) in enumerate(typed.rows):
        with _reading(number):
            if not name or not spec:
                raise ValidationError(
                    f"a limit needs a name and a spec like 100/minute: {name or spec!r} lacks one of them"
                )
            limits.append(Limit.parse(name, spec))
    with _reading("hours"):
        entries = read_entries(typed.hours)
    found: dict[str, Limit] = {}
    for number in typed.own({limit.name for _, what in entries if not isinstance(what, float) for limit in what}):
        with _reading(number):
            found = by_name([*found.values(), limits[number]])
    if not found:
        raise ValidationError(
            "at least one limit must not be inherited: change one, or add one; to store none here, delete them"
        )
    with _reading("tz"):
        zone_of(typed.tz if typed.tz and entries else "UTC")
    with _reading("hours"):
        schedule = read_schedule(entries, found.values(), typed.tz)
    return StoredLimits(found.values(), inherit=typed.inherit, on_unavailable=policy, schedule=schedule)


def _rows(level: LimitLevel, stored: StoredLimits, held: ResolvedLimits) -> list[Row]:
    """The limits in force. Those of this level as they are outside of the hours of its schedule."""
    own = {limit.name: limit for limit in stored}
    in_force = [(limit, held.sources[limit.name]) for limit in held.limits]
    shown = [(own[limit.name] if source == level.source else limit, source) for limit, source in in_force]
    return [(limit.name, str(limit), source) for limit, source in shown]


def _form(
    level: LimitLevel,
    typed: _Typed,
    stored: StoredLimits,
    held: ResolvedLimits,
    problem: ValidationError | None = None,
    status: int = 200,
) -> Shown:
    sources = {(name, spec): source for name, spec, source in _rows(level, stored, held)}
    rows = [(name, spec, sources.get((name, spec))) for name, spec in typed.rows]
    context: Context = {
        "level": level,
        "rows": [*rows, *[("", "", None)] * _SPARE_ROWS],
        "inherit": typed.inherit,
        "inherited": typed.inherited,
        "policy": typed.policy,
        "policies": get_args(OnUnavailable),
        "hours": typed.hours,
        "tz": typed.tz,
        "version": stored.version,
        "stored": stored,
        "problem": "" if problem is None else words_of(problem),
        "wrong": problem.field if isinstance(problem, WrongField) else None,
        "back": _back(level),
    }
    return Shown("limits_form.html", context, status)


def _back(level: LimitLevel) -> str:
    return link("limits") if level.entity_id is None else link("entities", level.entity_id)
