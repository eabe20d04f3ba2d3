"""Limits as they are sent, and those that are stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from ..core.errors import ValidationError
from ..core.limit import Limit
from ..http.limits import read_limits
from .operations import Asked, operation
from .paging import cursor_of, read_cursor
from .schema import (
    CustomQuery,
    Deleted,
    LimitForm,
    LimitsForm,
    Names,
    PageQuery,
    PlaceForm,
    ResolvedLimits,
    StoredLimits,
    SystemForm,
    SystemLimits,
    VersionQuery,
)

_SLOT_FIELDS = {"name", "slots", "ttl_seconds"}


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
    if "slots" in given and given.keys() - _SLOT_FIELDS:
        raise ValidationError(f"limit {form.name!r} has slots, and a limit of tokens has none: it is one or the other")
    return Limit.from_dict(given)


def forms_of(limits: Iterable[Limit]) -> list[LimitForm]:
    return [msgspec.convert(limit.as_dict(), LimitForm) for limit in limits]


# Stored ones


def _version(sent: LimitsForm | VersionQuery) -> int | None:
    return None if sent.expected_version is None else int(sent.expected_version)


@operation("GET", "/v1/limits/resolve", "read")
async def resolve_limits(asked: Asked, query: PlaceForm) -> ResolvedLimits:
    """The limits that hold for an entity on a resource, and which level they are from."""
    limits, source = await asked.limiter.resolve_limits(query.entity_id, query.resource)
    return ResolvedLimits(forms_of(limits), source)  # type: ignore[arg-type]


@operation("GET", "/v1/limits/system", "read")
async def get_system_limits(asked: Asked) -> SystemLimits:
    """The limits of everyone everywhere who has no others, and what happens when the store is away."""
    version = await asked.limiter.get_limits_version()
    limits = await asked.limiter.get_system_defaults()
    policy = await asked.limiter.get_system_on_unavailable()
    return SystemLimits(limits=forms_of(limits), version=version, on_unavailable=policy)


@operation("PUT", "/v1/limits/system", "admin", problems=(409,))
async def set_system_limits(asked: Asked, body: SystemForm) -> SystemLimits:
    """Store the limits of everyone everywhere who has no others, and what happens when the store is away."""
    limits = limits_of(body.limits) or ()
    await asked.limiter.set_system_defaults(
        limits, body.on_unavailable, expected_version=_version(body), actor=asked.actor
    )
    return SystemLimits(limits=forms_of(limits), on_unavailable=body.on_unavailable)


@operation("DELETE", "/v1/limits/system", "admin", problems=(409,))
async def delete_system_limits(asked: Asked, query: VersionQuery) -> Deleted:
    """Delete the limits of everyone everywhere."""
    version = _version(query)
    return Deleted(await asked.limiter.delete_system_defaults(expected_version=version, actor=asked.actor))


@operation("GET", "/v1/limits/resources", "read")
async def list_resources(asked: Asked, query: PageQuery) -> Names:
    """The resources that have limits for everyone."""
    page = await asked.limiter.list_resources_with_defaults(limit=query.limit, cursor=read_cursor(query))
    return Names(list(page), cursor_of(page))


@operation("GET", "/v1/limits/resources/{resource:path}", "read")
async def get_resource_limits(asked: Asked, resource: str) -> StoredLimits:
    """The limits of everyone on a resource who has none of their own."""
    version = await asked.limiter.get_limits_version(resource=resource)
    return StoredLimits(limits=forms_of(await asked.limiter.get_resource_defaults(resource)), version=version)


@operation("PUT", "/v1/limits/resources/{resource:path}", "admin", problems=(409,))
async def set_resource_limits(asked: Asked, resource: str, body: LimitsForm) -> StoredLimits:
    """Store the limits of everyone on a resource who has none of their own."""
    limits = limits_of(body.limits) or ()
    await asked.limiter.set_resource_defaults(resource, limits, expected_version=_version(body), actor=asked.actor)
    return StoredLimits(limits=forms_of(limits))


@operation("DELETE", "/v1/limits/resources/{resource:path}", "admin", problems=(409,))
async def delete_resource_limits(asked: Asked, resource: str, query: VersionQuery) -> Deleted:
    """Delete the limits of everyone on a resource."""
    deleted = await asked.limiter.delete_resource_defaults(
        resource, expected_version=_version(query), actor=asked.actor
    )
    return Deleted(deleted)


@operation("GET", "/v1/limits/entities", "read")
async def list_entities_with_limits(asked: Asked, query: CustomQuery) -> Names:
    """The entities with limits of their own on a resource, or for every resource."""
    resource = None if query.resource is msgspec.UNSET else query.resource
    page = await asked.limiter.list_entities_with_custom_limits(resource, limit=query.limit, cursor=read_cursor(query))
    return Names(list(page), cursor_of(page))


@operation("GET", "/v1/limits/entities/{entity_id}", "read")
async def get_entity_limits(asked: Asked, entity_id: str) -> StoredLimits:
    """An entity's own limits for every resource."""
    version = await asked.limiter.get_limits_version(entity_id)
    return StoredLimits(limits=forms_of(await asked.limiter.get_limits(entity_id)), version=version)


@operation("PUT", "/v1/limits/entities/{entity_id}", "admin", problems=(409,))
async def set_entity_limits(asked: Asked, entity_id: str, body: LimitsForm) -> StoredLimits:
    """Store an entity's own limits for every resource."""
    limits = limits_of(body.limits) or ()
    await asked.limiter.set_limits(entity_id, limits, expected_version=_version(body), actor=asked.actor)
    return StoredLimits(limits=forms_of(limits))


@operation("DELETE", "/v1/limits/entities/{entity_id}", "admin", problems=(409,))
async def delete_entity_limits(asked: Asked, entity_id: str, query: VersionQuery) -> Deleted:
    """Delete an entity's own limits for every resource."""
    version = _version(query)
    return Deleted(await asked.limiter.delete_limits(entity_id, expected_version=version, actor=asked.actor))


@operation("GET", "/v1/limits/entities/{entity_id}/{resource:path}", "read")
async def get_entity_resource_limits(asked: Asked, entity_id: str, resource: str) -> StoredLimits:
    """An entity's own limits on a resource."""
    version = await asked.limiter.get_limits_version(entity_id, resource)
    return StoredLimits(limits=forms_of(await asked.limiter.get_limits(entity_id, resource)), version=version)


@operation("PUT", "/v1/limits/entities/{entity_id}/{resource:path}", "admin", problems=(409,))
async def set_entity_resource_limits(asked: Asked, entity_id: str, resource: str, body: LimitsForm) -> StoredLimits:
    """Store an entity's own limits on a resource."""
    limits = limits_of(body.limits) or ()
    await asked.limiter.set_limits(entity_id, limits, resource, expected_version=_version(body), actor=asked.actor)
    return StoredLimits(limits=forms_of(limits))


@operation("DELETE", "/v1/limits/entities/{entity_id}/{resource:path}", "admin", problems=(409,))
async def delete_entity_resource_limits(asked: Asked, entity_id: str, resource: str, query: VersionQuery) -> Deleted:
    """Delete an entity's own limits on a resource."""
    deleted = await asked.limiter.delete_limits(
        entity_id, resource, expected_version=_version(query), actor=asked.actor
    )
    return Deleted(deleted)
