"""Levels of limits, and what they come to together: each limit from the most specific level that has its name.

An entity on a resource, an entity, a resource, the system: these are stored. Below them are the limits that a limiter
was made with. A level stored with `inherit=False` is the last one looked at. Only that is written down: a level that
says nothing of it inherits, as do all that were stored before there was a choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ...core.errors import ValidationError
from ...core.limit import Limit, by_name
from ...core.records import ABSENT, Record

if TYPE_CHECKING:
    from ..acquire.options import OnUnavailable

Source: TypeAlias = Literal["entity", "entity_default", "resource", "system", "limiter"]
Value: TypeAlias = "Mapping[str, Any]"  # of a record

STORED: tuple[Source, ...] = ("entity", "entity_default", "resource", "system")
EVERYONES: tuple[Source, ...] = STORED[2:]


class StoredLimits(list[Limit]):
    """The limits stored at one level: none if it is empty, and then `version` is 0.

    `inherit`: limits of other names come from the next level. `on_unavailable`: the system's outage policy.
    """

    def __init__(
        self,
        limits: Iterable[Limit] = (),
        *,
        inherit: bool = True,
        version: int = ABSENT,
        on_unavailable: OnUnavailable | None = None,
    ) -> None:
        super().__init__(limits)
        self.inherit = inherit
        self.version = version
        self.on_unavailable = on_unavailable


def stored_limits(record: Record | None) -> StoredLimits:
    if record is None:
        return StoredLimits()
    value = record.value
    return StoredLimits(
        limits_in(value),
        inherit=inherits(value),
        version=record.version,
        on_unavailable=value.get("on_unavailable"),
    )


class ResolvedLimits(tuple[list[Limit], "Source | None"]):
    """What holds for an entity on a resource: unpacks as `(limits, source)`.

    `source`: the most specific level that has any of them, None if there are none. `sources`: by limit name, the level
    that it is from. `on_unavailable`: the stored outage policy.
    """

    sources: dict[str, Source]
    on_unavailable: OnUnavailable | None

    def __new__(
        cls, limits: Iterable[Limit], sources: Iterable[Source], on_unavailable: OnUnavailable | None = None
    ) -> ResolvedLimits:
        limits, sources = list(limits), list(sources)
        self = super().__new__(cls, (limits, sources[0] if sources else None))
        self.sources = {limit.name: source for limit, source in zip(limits, sources)}
        self.on_unavailable = on_unavailable
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.limits, list(self.sources.values()), self.on_unavailable

    @property
    def limits(self) -> list[Limit]:
        return self[0]

    @property
    def source(self) -> Source | None:
        return self[1]


class Merged(NamedTuple):
    """Limits by name, the most specific level's first, and the level of each, in the same order."""

    limits: dict[str, Limit]
    sources: tuple[Source, ...]

    def resolved(self, on_unavailable: OnUnavailable | None) -> ResolvedLimits:
        return ResolvedLimits(self.limits.values(), self.sources, on_unavailable)


def merge(values: Iterable[Value | None], own: Mapping[str, Limit], levels: Sequence[Source] = STORED) -> Merged:
    """What the values of records come to, the most specific first, and below them a limiter's `own` limits."""
    limits: dict[str, Limit] = {}
    sources: list[Source] = []
    for level, value in zip(levels, values):
        if value is None:
            continue
        for limit in value["limits"]:
            if limit["name"] not in limits:
                limits[limit["name"]] = Limit.from_dict(limit)
                sources.append(level)
        if not inherits(value):
            break
    else:
        for name, one in own.items():
            if name not in limits:
                limits[name] = one
                sources.append("limiter")
    return Merged(limits, tuple(sources))


def limits_in(value: Value) -> list[Limit]:
    return [Limit.from_dict(limit) for limit in value["limits"]]


def inherits(value: Value) -> bool:
    return bool(value.get("inherit", True))


def level_value(limits: Iterable[Limit], inherit: bool = True) -> dict[str, Any]:
    """The record of a level, checked."""
    named = by_name(limits)
    if not named:
        raise ValidationError("limits must not be empty; to remove stored limits, delete them")
    if not isinstance(inherit, bool):
        raise ValidationError(f"inherit must be True or False, not {inherit!r}")
    value: dict[str, Any] = {"limits": [limit.as_dict() for limit in named.values()]}
    return value if inherit else value | {"inherit": False}
