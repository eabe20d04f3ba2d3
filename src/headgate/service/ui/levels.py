"""The four levels on which limits are stored, read and changed in one way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...core.limit import Limit
from ...core.names import check_entity_id, check_resource
from ...limiter import OnUnavailable, RateLimiter

_SOME = 5


@dataclass(frozen=True, slots=True)
class Level:
    """Of an entity on a resource, of an entity, of a resource, or, with neither, of the system."""

    entity_id: str | None
    resource: str | None

    def check(self) -> Level:
        if self.entity_id is not None:
            check_entity_id(self.entity_id)
        if self.resource is not None:
            check_resource(self.resource)
        return self

    @property
    def is_system(self) -> bool:
        return self.entity_id is None and self.resource is None

    async def read(self, limiter: RateLimiter) -> list[Limit]:
        if self.entity_id is not None:
            return await limiter.get_limits(self.entity_id, self.resource)
        if self.resource is not None:
            return await limiter.get_resource_defaults(self.resource)
        return await limiter.get_system_defaults()

    async def policy(self, limiter: RateLimiter) -> OnUnavailable | None:
        return await limiter.get_system_on_unavailable() if self.is_system else None

    async def version(self, limiter: RateLimiter) -> int:
        return await limiter.get_limits_version(self.entity_id, self.resource)

    async def write(
        self, limiter: RateLimiter, limits: Sequence[Limit], policy: Any, version: int, actor: str | None
    ) -> None:
        """VersionConflict if somebody else was faster."""
        if self.entity_id is not None:
            await limiter.set_limits(self.entity_id, limits, self.resource, expected_version=version, actor=actor)
        elif self.resource is not None:
            await limiter.set_resource_defaults(self.resource, limits, expected_version=version, actor=actor)
        else:
            await limiter.set_system_defaults(limits, policy, expected_version=version, actor=actor)

    async def delete(self, limiter: RateLimiter, version: int, actor: str | None) -> None:
        """VersionConflict if somebody else was faster."""
        if self.entity_id is not None:
            await limiter.delete_limits(self.entity_id, self.resource, expected_version=version, actor=actor)
        elif self.resource is not None:
            await limiter.delete_resource_defaults(self.resource, expected_version=version, actor=actor)
        else:
            await limiter.delete_system_defaults(expected_version=version, actor=actor)

    async def below(self, limiter: RateLimiter) -> list[str]:
        """Some of those who do not care, since they have limits of their own."""
        if self.entity_id is not None:
            return []
        if self.resource is not None:
            return list(await limiter.list_entities_with_custom_limits(self.resource, limit=_SOME))
        return list(await limiter.list_resources_with_defaults(limit=_SOME))
