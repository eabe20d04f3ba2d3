"""Limits in requests and responses, and the endpoints for stored limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec
from msgspec import UNSET, UnsetType

from ..core.calendar import MIDNIGHT, UTC
from ..core.errors import ValidationError, VersionConflict
from ..core.limit import Limit
from ..core.schedule import Schedule
from ..http.limits import read_limits
from ..limiter import ResolvedLimits, StoredLimits
from ..limiter.config.levels import LimitLevel
from ..limiter.config.limits import aread_level, awrite_level
from ..limiter.config.preview import apreview_level
from .operations import Asked, operation
from .reading import cursor_of, read_cursor
from .schema import LimitForm, Names, PageQuery, PlaceForm
from .stored_schema import (
    ChangeQuery,
    CustomQuery,
    DeletedReply,
    Effective,
    LimitsForm,
    ResolvedLimitsReply,
    ScheduleEntry,
    ScheduleForm,
    StoredLimitsReply,
    SystemForm,
    SystemLimitsReply,
)

_KINDS = (
    {"capacity", "refill_amount", "refill_period_seconds"},
    {"slots", "ttl_seconds"},
    {"amount", "per", "tz", "at", "on"},
    {"amount", "cron", "tz"},
    {"amount", "seconds_from_first_use"},
)


def limits_of(forms: Sequence[str | LimitForm] | None) -> tuple[Limit, ...] | None:
    if forms is None:
        return None
    if all(isinstance(form, str) for form in forms):
        return _read(tuple(forms))
    return read_limits([form if isinstance(form, str) else _limit(form) for form in forms])


@lru_cache(4096)
def _read(texts: tuple[str, ...]) -> tuple[Limit, ...]:
    return read_limits(texts)


def _limit(form: LimitForm) -> Limit:
    given = msgspec.to_builtins(form)
    if isinstance(form.on, float) and form.on.is_integer():
        given["on"] = int(form.on)  # in JSON, 15.0 is an integer too
    own = given.keys() - {"name", "alert_at"}
    if not any(own <= kind for kind in _KINDS):
        raise ValidationError(f"limit {form.name!r} has fields of different kinds of limits: {', '.join(sorted(own))}")
    if "amount" in given and not own & {"per", "cron", "seconds_from_first_use"}:
        raise ValidationError(f"limit {form.name!r} lacks its window: send per, cron or seconds_from_first_use")
    return Limit.from_dict({"tz": UTC, "at": MIDNIGHT} | given)


def forms_of(limits: Iterable[Limit]) -> list[LimitForm]:
    return [msgspec.convert(limit.as_dict(), LimitForm) for limit in limits]


def schedule_of(form: ScheduleForm | None, otherwise: Iterable[Limit]) -> Schedule | None:
    if form is None:
        return None
    return Schedule([(entry.hours, _what(entry)) for entry in form.entries], otherwise=otherwise, tz=form.tz)


def _what(entry: ScheduleEntry) -> tuple[Limit, ...] | float:
    limits = None if entry.limits is UNSET else limits_of(entry.limits)
    if (limits is None) == (entry.factor is UNSET):
        raise ValidationError(f"{entry.hours!r} needs either limits or a factor, like 0.5")
    return float(entry.factor) if limits is None else limits  # type: ignore[arg-type]  # it is not UNSET


def _schedule_form(schedule: Schedule | None) -> ScheduleForm | UnsetType:
    return UNSET if schedule is None else msgspec.convert(schedule.as_dict(), ScheduleForm)


# Stored limits


async def _change(
    asked: Asked, level: LimitLevel, wanted: StoredLimits | None, sent: LimitsForm | ChangeQuery
) -> tuple[bool, Effective]:
    """Whether limits were stored before, and what the change does, or would do.

    The answer describes the change that was made: if the level is changed in between, it is read again.
    """
    expected = None if sent.expected_version is None else int(sent.expected_version)
    while True:
        seen = await apreview_level(asked.limiter, level, wanted)
        if expected not in (None, seen.version):
            raise VersionConflict(level.stored(asked.limiter.engine).key(asked.limiter.namespace))
        try:
            if not sent.preview:
                await awrite_level(asked.limiter, level, wanted, expected_version=seen.version, actor=asked.actor)
            return seen.version > 0, Effective(_resolved(seen.before), _resolved(seen.after), seen.dropped)
        except VersionConflict:
            if expected is not None:
                raise


def _resolved(found: ResolvedLimits) -> ResolvedLimitsReply:
    return ResolvedLimitsReply(forms_of(found.limits), found.source, found.sources, found.on_unavailable)


async def _get(asked: Asked, level: LimitLevel) -> StoredLimitsReply:
    found = await aread_level(asked.limiter, level)
    return StoredLimitsReply(
        limits=forms_of(found),
        inherit=found.inherit,
        schedule=_schedule_form(found.schedule),
        version=found.version,
    )


async def _set(asked: Asked, level: LimitLevel, body: LimitsForm) -> StoredLimitsReply:
    limits = limits_of(body.limits) or ()
    schedule = schedule_of(body.schedule, limits)
    wanted = StoredLimits(limits, inherit=body.inherit, schedule=schedule)
    _, effective = await _change(asked, level, wanted, body)
    return StoredLimitsReply(
        limits=forms_of(limits), inherit=body.inherit, schedule=_schedule_form(schedule), effective=effective
    )


async def _delete(asked: Asked, level: LimitLevel, query: ChangeQuery) -> DeletedReply:
    was_there, effective = await _change(asked, level, None, query)
    return DeletedReply(was_there and not query.preview, effective)


@operation("GET", "/v1/limits/resolve", "read")
async def resolve_limits(asked: Asked, query: PlaceForm) -> ResolvedLimitsReply:
    """Get the limits that apply to an entity on a resource, and the level of each."""
    return _resolved(await asked.limiter.resolve_limits(query.entity_id, query.resource))


@operation("GET", "/v1/limits/system", "read")
async def get_system_limits(asked: Asked) -> SystemLimitsReply:
    """The limits of everyone everywhere, and what happens when the store is away."""
    found = await aread_level(asked.limiter, LimitLevel())
    return SystemLimitsReply(
        limits=forms_of(found),
        inherit=found.inherit,
        schedule=_schedule_form(found.schedule),
        version=found.version,
        on_unavailable=found.on_unavailable,
    )


@operation("PUT", "/v1/limits/system", "admin", problems=(409,))
async def set_system_limits(asked: Asked, body: SystemForm) -> SystemLimitsReply:
    """Store the system limits, and the policy for when the store is unavailable."""
    limits = limits_of(body.limits) or ()
    schedule = schedule_of(body.schedule, limits)
    wanted = StoredLimits(limits, inherit=body.inherit, on_unavailable=body.on_unavailable, schedule=schedule)
    _, effective = await _change(asked, LimitLevel(), wanted, body)
    return SystemLimitsReply(
        limits=forms_of(limits),
        inherit=body.inherit,
        schedule=_schedule_form(schedule),
        on_unavailable=body.on_unavailable,
        effective=effective,
    )


@operation("DELETE", "/v1/limits/system", "admin", problems=(409,))
async def delete_system_limits(asked: Asked, query: ChangeQuery) -> DeletedReply:
    """Delete the limits of everyone everywhere."""
    return await _delete(asked, LimitLevel(), query)


@operation("GET", "/v1/limits/resources", "read")
async def list_resources(asked: Asked, query: PageQuery) -> Names:
    """List the resources with limits for all entities."""
    page = await asked.limiter.list_resources_with_defaults(limit=query.limit, cursor=read_cursor(query))
    return Names(list(page), cursor_of(page))


@operation("GET", "/v1/limits/resources/{resource:path}", "read")
async def get_resource_limits(asked: Asked, resource: str) -> StoredLimitsReply:
    """The limits of everyone on a resource."""
    return await _get(asked, LimitLevel(resource=resource))


@operation("PUT", "/v1/limits/resources/{resource:path}", "admin", problems=(409,))
async def set_resource_limits(asked: Asked, resource: str, body: LimitsForm) -> StoredLimitsReply:
    """Store the limits of everyone on a resource."""
    return await _set(asked, LimitLevel(resource=resource), body)


@operation("DELETE", "/v1/limits/resources/{resource:path}", "admin", problems=(409,))
async def delete_resource_limits(asked: Asked, resource: str, query: ChangeQuery) -> DeletedReply:
    """Delete the limits of everyone on a resource."""
    return await _delete(asked, LimitLevel(resource=resource), query)


@operation("GET", "/v1/limits/entities", "read")
async def list_entities_with_limits(asked: Asked, query: CustomQuery) -> Names:
    """List the entities with their own limits on a resource, or on all resources."""
    resource = None if query.resource is UNSET else query.resource
    page = await asked.limiter.list_entities_with_custom_limits(resource, limit=query.limit, cursor=read_cursor(query))
    return Names(list(page), cursor_of(page))


@operation("GET", "/v1/limits/entities/{entity_id}", "read")
async def get_entity_limits(asked: Asked, entity_id: str) -> StoredLimitsReply:
    """An entity's own limits for every resource."""
    return await _get(asked, LimitLevel(entity_id))


@operation("PUT", "/v1/limits/entities/{entity_id}", "admin", problems=(409,))
async def set_entity_limits(asked: Asked, entity_id: str, body: LimitsForm) -> StoredLimitsReply:
    """Store an entity's own limits for every resource."""
    return await _set(asked, LimitLevel(entity_id), body)


@operation("DELETE", "/v1/limits/entities/{entity_id}", "admin", problems=(409,))
async def delete_entity_limits(asked: Asked, entity_id: str, query: ChangeQuery) -> DeletedReply:
    """Delete an entity's own limits for every resource."""
    return await _delete(asked, LimitLevel(entity_id), query)


@operation("GET", "/v1/limits/entities/{entity_id}/{resource:path}", "read")
async def get_entity_resource_limits(asked: Asked, entity_id: str, resource: str) -> StoredLimitsReply:
    """An entity's own limits on a resource."""
    return await _get(asked, LimitLevel(entity_id, resource))


@operation("PUT", "/v1/limits/entities/{entity_id}/{resource:path}", "admin", problems=(409,))
async def set_entity_resource_limits(
    asked: Asked, entity_id: str, resource: str, body: LimitsForm
) -> StoredLimitsReply:
    """Store an entity's own limits on a resource."""
    return await _set(asked, LimitLevel(entity_id, resource), body)


@operation("DELETE", "/v1/limits/entities/{entity_id}/{resource:path}", "admin", problems=(409,))
async def delete_entity_resource_limits(
    asked: Asked, entity_id: str, resource: str, query: ChangeQuery
) -> DeletedReply:
    """Delete an entity's own limits on a resource."""
    return await _delete(asked, LimitLevel(entity_id, resource), query)
