"""The four levels on which limits are stored, read and changed in one way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..core.limit import Limit
from ..core.names import check_entity_id, check_resource
from ..limiter import LimitsPreview, OnUnavailable, RateLimiter, StoredLimits
from ..limiter.config.levels import Source

_SOME = 5


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a level is to have. `policy`: the system's for outages."""

    limits: Sequence[Limit]
    inherit: bool = True
    policy: OnUnavailable | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """Of an entity on a resource, of an entity, of a resource, or, with neither, of the system."""

    entity_id: str | None = None
    resource: str | None = None

    def check(self) -> Level:
        if self.entity_id is not None:
            check_entity_id(self.entity_id)
        if self.resource is not None:
            check_resource(self.resource)
        return self

    @property
    def is_system(self) -> bool:
        return self.entity_id is None and self.resource is None

    @property
    def source(self) -> Source:
        """What `resolve_limits` calls this level."""
        if self.entity_id is not None:
            return "entity_default" if self.resource is None else "entity"
        return "system" if self.resource is None else "resource"

    async def read(self, limiter: RateLimiter) -> StoredLimits:
        if self.entity_id is not None:
            return await limiter.get_limits(self.entity_id, self.resource)
        if self.resource is not None:
            return await limiter.get_resource_defaults(self.resource)
        return await limiter.get_system_defaults()

    async def preview(self, limiter: RateLimiter, wanted: Wanted | None) -> LimitsPreview:
        """What would hold with them; None: without any."""
        if wanted is None:
            return await limiter.preview_limits(self.entity_id, self.resource)
        return await limiter.preview_limits(
            self.entity_id, self.resource, wanted.limits, inherit=wanted.inherit, on_unavailable=wanted.policy
        )

    async def change(self, limiter: RateLimiter, wanted: Wanted | None, version: int, actor: str | None) -> None:
        """Store, or (None) delete. VersionConflict if somebody else was faster."""
        if wanted is None:
            await self._delete(limiter, version, actor)
        else:
            await self._set(limiter, wanted, version, actor)

    async def _set(self, limiter: RateLimiter, wanted: Wanted, version: int, actor: str | None) -> None:
        how: dict[str, Any] = {"inherit": wanted.inherit, "expected_version": version, "actor": actor}
        if self.entity_id is not None:
            await limiter.set_limits(self.entity_id, wanted.limits, self.resource, **how)
        elif self.resource is not None:
            await limiter.set_resource_defaults(self.resource, wanted.limits, **how)
        else:
            await limiter.set_system_defaults(wanted.limits, wanted.policy, **how)

    async def _delete(self, limiter: RateLimiter, version: int, actor: str | None) -> None:
        if self.entity_id is not None:
            await limiter.delete_limits(self.entity_id, self.resource, expected_version=version, actor=actor)
        elif self.resource is not None:
            await limiter.delete_resource_defaults(self.resource, expected_version=version, actor=actor)
        else:
            await limiter.delete_system_defaults(expected_version=version, actor=actor)

    async def below(self, limiter: RateLimiter) -> list[str]:
        """Some of those with limits of their own, which hold instead of these."""
        if self.entity_id is not None:
            return []
        if self.resource is not None:
            return list(await limiter.list_entities_with_custom_limits(self.resource, limit=_SOME))
        return list(await limiter.list_resources_with_defaults(limit=_SOME))
