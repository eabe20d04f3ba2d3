"""What a file of limits declares: limits at all levels, entities, plans and rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from ..core.limit import Limit
from ..core.names import StoredId
from ..core.schedule import Schedule
from ..core.written import write_limits, write_schedule
from ..limiter import OnUnavailable, keys
from ..limiter.config.levels import StoredLevel

Limits: TypeAlias = "Mapping[str, Limit]"  # by name
Kind: TypeAlias = Literal["limits", "entity", "plans", "rules"]


class DeclaredLimits(dict[str, Limit]):
    """The limits of a level by name. `inherit`: limits of other names come from the next level, as for a plain dict.
    `schedule`: when other limits hold instead of these; None: never."""

    def __init__(self, limits: Mapping[str, Limit], *, inherit: bool = True, schedule: Schedule | None = None) -> None:
        super().__init__(limits)
        self.inherit = inherit
        self.schedule = schedule

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and (self.inherit, self.schedule) == (inherits(other), scheduled(other))

    def __ne__(self, other: object) -> bool:
        return not self == other


def inherits(limits: object) -> bool:
    return getattr(limits, "inherit", True)


def scheduled(limits: object) -> Schedule | None:
    return getattr(limits, "schedule", None)


@dataclass(frozen=True, slots=True)
class DeclaredEntity:
    """An entity and its own limits by resource; None is its default for the other resources."""

    name: str | None = None
    parent_id: str | None = None
    cascade: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str | None, Limits] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        on_resources = {resource: _limits(limits) for resource, limits in self.limits.items() if resource is not None}
        return _without_none(
            name=self.name,
            parent=self.parent_id,
            cascade=self.cascade or None,
            metadata=dict(self.metadata) or None,
            **(_limits(self.limits[None]) if None in self.limits else {}),
            resources=on_resources or None,
        )


@dataclass(frozen=True, slots=True)
class Declaration:
    """The limits, entities, plans and rules of a namespace, as declared in a file or exported from a store.

    `plans` and `rules`: the sections of a file of rules, as written there; None: the declaration has no such section.
    `file` and `lines`: the file it was read from, and the line of each entity.
    """

    namespace: str | None = None
    system: Limits | None = None
    on_unavailable: OnUnavailable | None = None
    resources: Mapping[str, Limits] = field(default_factory=dict)
    entities: Mapping[str, DeclaredEntity] = field(default_factory=dict)
    plans: Mapping[str, Any] | None = None
    rules: list[Any] | None = None
    file: str | None = field(default=None, compare=False)
    lines: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """As it is written in a file."""
        system = None
        if self.system is not None:
            system = _without_none(**_limits(self.system), on_unavailable=self.on_unavailable)
        return _without_none(
            namespace=self.namespace,
            system=system,
            resources={resource: _limits(limits) for resource, limits in self.resources.items()} or None,
            entities={entity_id: entity.as_dict() for entity_id, entity in self.entities.items()} or None,
            plans=self.plans,
            rules=self.rules,
        )


def _limits(limits: Limits) -> dict[str, Any]:
    alone = {} if inherits(limits) else {"inherit": False}
    schedule = scheduled(limits)
    return {"limits": write_limits(limits.values()) if schedule is None else write_schedule(schedule), **alone}


def _without_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


class DeclaredItem(NamedTuple):
    """One item of a declaration: the limits at a level, an entity (that of the level), the plans or the rules."""

    kind: Kind
    level: StoredLevel = StoredLevel()

    @property
    def entity_id(self) -> StoredId | None:
        return self.level.entity_id

    def __str__(self) -> str:
        if self.kind == "limits":
            return f"limits of {self.level}"
        return f"entity {self.entity_id}" if self.kind == "entity" else self.kind

    def as_dict(self) -> dict[str, Any]:
        of_everyone = self.kind == "limits" and self.entity_id is None
        what = self.level.source if of_everyone else self.kind
        return {"what": what, "entity_id": self.entity_id, "resource": self.level.resource}

    def key(self, namespace: str) -> str:
        """Of its record."""
        if self.kind == "limits":
            return self.level.key(namespace)
        if self.entity_id is not None:
            return keys.entity_key(namespace, self.entity_id)
        return keys.rules_key(namespace) if self.kind == "rules" else keys.plans_key(namespace)


def entity_item(entity_id: str) -> DeclaredItem:
    """Of an entity by its stored id."""
    return DeclaredItem("entity", StoredLevel(StoredId(entity_id)))


SYSTEM, RULES, TIERS = DeclaredItem("limits"), DeclaredItem("rules"), DeclaredItem("plans")
