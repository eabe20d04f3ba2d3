"""The levels of limits, and how they merge: each limit comes from the most specific level that has its name.

Limits are stored at four levels: an entity on a resource, an entity, a resource, the system. Below them are the limits
that a limiter was made with. A level stored with `inherit=False` ends the search. Only False is written: a record
without `inherit`, such as one from before the option existed, inherits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ...core.errors import ValidationError
from ...core.limit import Limit, by_name
from ...core.names import StoredId, check_resource
from ...core.records import ABSENT, Record
from ...core.schedule import Schedule, Scheduled
from .. import keys

if TYPE_CHECKING:
    from ..acquire.options import OnUnavailable
    from ..engine import Engine
    from ..observe.audit import Action

Source: TypeAlias = Literal["entity", "entity_default", "resource", "system", "limiter"]
Value: TypeAlias = "Mapping[str, Any]"  # of a record

STORED: tuple[Source, ...] = ("entity", "entity_default", "resource", "system")
EVERYONES: tuple[Source, ...] = STORED[2:]


@dataclass(frozen=True, slots=True)
class LimitLevel:
    """A level at which limits are stored: an entity on a resource, an entity, a resource, or (neither) the system.

    The id is the one the caller uses; `stored` turns it into the one in the store.
    """

    entity_id: str | None = None
    resource: str | None = None

    @property
    def source(self) -> Source:
        """What `resolve_limits` calls this level."""
        if self.entity_id is not None:
            return "entity_default" if self.resource is None else "entity"
        return "system" if self.resource is None else "resource"

    @property
    def who(self) -> str:
        return "everyone" if self.entity_id is None else self.entity_id

    def __str__(self) -> str:
        """`acme on chat`, `everyone on every resource`."""
        return f"{self.who} on {'every resource' if self.resource is None else self.resource}"

    def as_dict(self) -> dict[str, Any]:
        return {"entity_id": self.entity_id, "resource": self.resource, "source": self.source}

    def stored(self, engine: Engine) -> StoredLevel:
        """Checked, with the id as the store knows it."""
        if self.entity_id is not None:
            return entity_level(engine, self.entity_id, self.resource)
        return StoredLevel() if self.resource is None else resource_level(self.resource)


@dataclass(frozen=True, slots=True)
class StoredLevel(LimitLevel):
    """A level whose id is the one in the store."""

    entity_id: StoredId | None = None

    def stored(self, engine: Engine) -> StoredLevel:
        """Itself: a hash must not be hashed again."""
        return self

    def key(self, namespace: str) -> str:
        """Of the record with its limits."""
        if self.entity_id is not None:
            return keys.entity_limits_key(namespace, self.entity_id, self.resource)
        if self.resource is not None:
            return keys.resource_limits_key(namespace, self.resource)
        return keys.system_limits_key(namespace)

    @classmethod
    def from_key(cls, namespace: str, key: str) -> StoredLevel:
        """The level whose key this is."""
        if key.startswith(prefix := keys.entities_limits_prefix(namespace)):
            entity_id, _, resource = key.removeprefix(prefix).partition("#")
            return cls(StoredId(entity_id), resource or None)
        if key.startswith(prefix := keys.resources_prefix(namespace)):
            return cls(resource=key.removeprefix(prefix))
        if key == keys.system_limits_key(namespace):
            return cls()
        raise ValueError(f"{key!r} is not the key of a level of {namespace!r}")

    def searched(self) -> list[StoredLevel | None]:
        """The levels searched for limits, in the order of STORED: this one and the more general ones. None: no such
        level, because there is no entity, or no resource."""
        entity_id, resource = self.entity_id, self.resource
        return [
            self if entity_id is not None and resource is not None else None,
            StoredLevel(entity_id) if entity_id is not None else None,
            StoredLevel(resource=resource) if resource is not None else None,
            StoredLevel(),
        ]

    def index_key(self, namespace: str) -> str | None:
        """Of the record that lists an entity with limits of its own."""
        return None if self.entity_id is None else keys.custom_key(namespace, self.resource, self.entity_id)

    @property
    def actions(self) -> tuple[Action, Action]:
        """What the audit trail calls storing limits here, and deleting them."""
        if self.entity_id is not None:
            return "limits.set", "limits.deleted"
        if self.resource is not None:
            return "resource_defaults.set", "resource_defaults.deleted"
        return "system_defaults.set", "system_defaults.deleted"


def entity_level(engine: Engine, entity_id: str, resource: str | None) -> StoredLevel:
    """Of an entity: None instead of an id is an error, and does not mean everyone."""
    return StoredLevel(engine.stored_id(entity_id), None if resource is None else check_resource(resource))


def resource_level(resource: str) -> StoredLevel:
    """Of a resource: None instead of a name is an error, and does not mean every resource."""
    return StoredLevel(resource=check_resource(resource))


class StoredLimits(list[Limit]):
    """The limits stored at one level: none if it is empty, and then `version` is 0.

    `inherit`: limits of other names come from the next level. `on_unavailable`: the outage policy, stored with the
    system's limits. `schedule`: when other limits hold instead of these; None: never.
    """

    def __init__(
        self,
        limits: Iterable[Limit] = (),
        *,
        inherit: bool = True,
        version: int = ABSENT,
        on_unavailable: OnUnavailable | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        super().__init__(limits)
        self.schedule = schedule
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
        schedule=schedule_in(value),
    )


class ResolvedLimits(tuple[list[Limit], "Source | None"]):
    """The limits in force for an entity on a resource; unpacks as `(limits, source)`.

    `source`: the most specific level that has any of them, None if there are none. `sources`: the level of each, by its
    name. `on_unavailable`: the stored outage policy.
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
    """Limits by name, those of the most specific level first; and the level of each, in the same order.

    Schedules have made them so since `since_ms` (0: there are none), and will until `until_ms`. `values` and `own` are
    what they were merged from, and `searched` the levels.
    """

    limits: dict[str, Limit]
    sources: tuple[Source, ...]
    since_ms: int = 0
    until_ms: int | None = None
    searched: Sequence[Source] = STORED
    values: tuple[Value | None, ...] = ()
    own: Mapping[str, Limit] = {}

    def at(self, ms: int) -> dict[str, Limit]:
        """The limits at another moment."""
        return merge(self.values, self.own, ms, self.searched).limits

    def resolved(self, on_unavailable: OnUnavailable | None) -> ResolvedLimits:
        return ResolvedLimits(self.limits.values(), self.sources, on_unavailable)


def merge(
    values: Iterable[Value | None], own: Mapping[str, Limit], now_ms: int, levels: Sequence[Source] = STORED
) -> Merged:
    """Merge the values of records as of `now_ms`, the most specific first, and a limiter's `own` limits below them."""
    values = tuple(values)
    limits: dict[str, Limit] = {}
    sources: list[Source] = []
    since_ms, until = 0, list[int]()
    for level, value in zip(levels, values):
        if value is None:
            continue
        now = limits_at(value, now_ms)
        since_ms = max(since_ms, now.since_ms)
        until += [now.until_ms] if now.until_ms else []
        for limit in now.limits:
            if limit.name not in limits:
                limits[limit.name] = limit
                sources.append(level)
        if not inherits(value):
            break
    else:
        for name, one in own.items():
            if name not in limits:
                limits[name] = one
                sources.append("limiter")
    return Merged(limits, tuple(sources), since_ms, min(until, default=None), levels, values, own)


def limits_at(value: Value, now_ms: int) -> Scheduled:
    """The limits of a level at a moment. `until_ms` is 0 if they do not depend on it."""
    schedule = schedule_in(value)
    return Scheduled(tuple(limits_in(value)), 0, 0) if schedule is None else schedule.at(now_ms)


def schedule_in(value: Value) -> Schedule | None:
    return Schedule.from_dict(value["schedule"], limits_in(value)) if value.get("schedule") else None


def limits_in(value: Value) -> list[Limit]:
    return [Limit.from_dict(limit) for limit in value["limits"]]


def inherits(value: Value) -> bool:
    return bool(value.get("inherit", True))


def level_value(limits: Iterable[Limit] | Schedule, inherit: bool = True) -> dict[str, Any]:
    """The record of a level, checked."""
    schedule = limits if isinstance(limits, Schedule) else getattr(limits, "schedule", None)
    named = by_name(limits.otherwise if isinstance(limits, Schedule) else limits)
    if not named:
        raise ValidationError("limits must not be empty; to remove stored limits, delete them")
    if not isinstance(inherit, bool):
        raise ValidationError(f"inherit must be True or False, not {inherit!r}")
    value: dict[str, Any] = {"limits": [limit.as_dict() for limit in named.values()]}
    if schedule is not None:
        value["schedule"] = schedule.as_dict()
    return value if inherit else value | {"inherit": False}
