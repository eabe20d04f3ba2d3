"""What a file of limits says, and a place in a namespace that it says it of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from ..core.limit import Limit
from ..limiter import OnUnavailable

Limits: TypeAlias = "Mapping[str, Limit]"  # by name
Kind: TypeAlias = Literal["system", "resource", "entity", "limits", "plans", "rules"]


class DeclaredLimits(dict[str, Limit]):
    """The limits of a level by name. `inherit`: others come from the next level, as those of a plain dict do."""

    def __init__(self, limits: Mapping[str, Limit], *, inherit: bool = True) -> None:
        super().__init__(limits)
        self.inherit = inherit

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and self.inherit == inherits(other)

    def __ne__(self, other: object) -> bool:
        return not self == other


def inherits(limits: object) -> bool:
    return getattr(limits, "inherit", True)


@dataclass(frozen=True, slots=True)
class DeclaredEntity:
    """An entity, and the limits it has of its own: by resource, and under None its default for the others."""

    name: str | None = None
    parent_id: str | None = None
    cascade: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str | None, Limits] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        on_resources = {resource: _limits(limits) for resource, limits in self.limits.items() if resource is not None}
        return _without_nothing(
            name=self.name,
            parent=self.parent_id,
            cascade=self.cascade or None,
            metadata=dict(self.metadata) or None,
            **(_limits(self.limits[None]) if None in self.limits else {}),
            resources=on_resources or None,
        )


@dataclass(frozen=True, slots=True)
class Declaration:
    """All that a namespace is to have, or has.

    `plans` and `rules` are the sections of a file of rules, as they are there; None: nothing is said of them.
    `file` and `lines`: where it was read, and on which line each entity is.
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
            system = _without_nothing(**_limits(self.system), on_unavailable=self.on_unavailable)
        return _without_nothing(
            namespace=self.namespace,
            system=system,
            resources={resource: _limits(limits) for resource, limits in self.resources.items()} or None,
            entities={entity_id: entity.as_dict() for entity_id, entity in self.entities.items()} or None,
            plans=self.plans,
            rules=self.rules,
        )


def _limits(limits: Limits) -> dict[str, Any]:
    alone = {} if inherits(limits) else {"inherit": False}
    return {"limits": {name: str(limit) for name, limit in limits.items()}, **alone}


def _without_nothing(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


class Place(NamedTuple):
    """Of what something is said: the system, a resource, an entity, the limits of one (on a resource), plans, rules."""

    kind: Kind
    entity_id: str = ""
    resource: str | None = None

    def __str__(self) -> str:
        if self.kind == "resource":
            return f"resource {self.resource}"
        if self.kind == "entity":
            return f"entity {self.entity_id}"
        if self.kind == "limits":
            return f"limits of {self.entity_id}{'' if self.resource is None else f' on {self.resource}'}"
        return self.kind
