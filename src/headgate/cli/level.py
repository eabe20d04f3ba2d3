"""The four levels at which limits are stored, and how options name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from ..core.limit import Limit
from ..limiter import SyncRateLimiter
from .options import Session

_OPTIONS = (
    click.option("--entity", "entity_id", metavar="ENTITY", help="The entity whose limits they are."),
    click.option(
        "--resource", metavar="RESOURCE", help="With an entity: its limits on this resource. Alone: everyone's on it."
    ),
    click.option("--system", is_flag=True, help="The limits of everyone everywhere who has no others."),
)


def level_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True)
class Level:
    """No entity: everyone. No resource: all of them. Neither: the system's defaults."""

    entity_id: str | None = None
    resource: str | None = None

    @classmethod
    def chosen(
        cls, session: Session, argument: str | None, option: str | None, resource: str | None, system: bool
    ) -> Level:
        """From what was typed; an entity may be an argument or the option --entity."""
        entity_ids = [session.stored_id(given) for given in (argument, option) if given]
        if len(entity_ids) > 1:
            raise click.UsageError(f"there are two entities, {entity_ids[0]!r} and {entity_ids[1]!r}: give one")
        entity_id = entity_ids[0] if entity_ids else None
        if system and (entity_id or resource):
            raise click.UsageError("--system is for everyone everywhere: it goes with no entity and no --resource")
        if not (system or entity_id or resource):
            raise click.UsageError("say whose limits: an entity (with --resource or not), --resource or --system")
        return cls(entity_id, resource)

    @property
    def source(self) -> str:
        """What resolve_limits() calls this level."""
        if self.entity_id is not None:
            return "entity_default" if self.resource is None else "entity"
        return "system" if self.resource is None else "resource"

    def __str__(self) -> str:
        return {
            "entity": f"{self.entity_id} on {self.resource}",
            "entity_default": f"{self.entity_id} on every resource",
            "resource": f"everyone on {self.resource}",
            "system": "everyone on every resource",
        }[self.source]

    def get(self, limiter: SyncRateLimiter) -> list[Limit]:
        if self.entity_id is not None:
            return limiter.get_limits(self.entity_id, self.resource)
        return limiter.get_system_defaults() if self.resource is None else limiter.get_resource_defaults(self.resource)

    def set(self, limiter: SyncRateLimiter, limits: list[Limit], on_unavailable: Any = None) -> None:
        if self.entity_id is not None:
            limiter.set_limits(self.entity_id, limits, self.resource)
        elif self.resource is not None:
            limiter.set_resource_defaults(self.resource, limits)
        else:
            limiter.set_system_defaults(limits, on_unavailable)

    def delete(self, limiter: SyncRateLimiter) -> bool:
        if self.entity_id is not None:
            return limiter.delete_limits(self.entity_id, self.resource)
        if self.resource is not None:
            return limiter.delete_resource_defaults(self.resource)
        return limiter.delete_system_defaults()
