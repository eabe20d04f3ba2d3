"""What the engine asks of the limiter and of the application: the steps of its plan, and the two ways to take them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import EntityNotFound, LimiterClosed, NamespaceNotFound, RateLimiterUnavailable, ValidationError
from ..core.records import Record
from ..limiter import Ask, Decision, OnUnavailable, RateLimiter, SyncRateLimiter
from ..limiter.chain import ONE_OF_EACH
from ..plan import Call as Step
from ..plan import GetRecords, Once, Plan

AWAY = (RateLimiterUnavailable, NamespaceNotFound, LimiterClosed)  # no step can be taken, whatever it is


@dataclass(frozen=True, slots=True)
class Decide(Step[Decision[Any]]):
    ask: Ask
    on_unavailable: OnUnavailable | None


@dataclass(frozen=True, slots=True)
class DecideEach(Step[list[Decision[Any]]]):
    asks: Sequence[Ask | Sequence[Ask]]
    on_unavailable: OnUnavailable | None


@dataclass(frozen=True, slots=True)
class Await(Step[Any]):
    """What a coroutine function of the application's has returned."""

    awaitable: Awaitable[Any]


@dataclass(frozen=True, slots=True)
class ReadMetadata(Step[dict[str, Any]]):
    """Of an entity; empty if there is none."""

    entity_id: str


@dataclass(frozen=True, slots=True)
class ReadLimits(Step[list[str]]):
    """The names of the limits stored for an entity on a resource."""

    entity_id: str
    resource: str


@dataclass(frozen=True, slots=True)
class ReadRecords(Step["list[Record | None]"]):
    keys: Sequence[str]

    def once(self) -> Once[list[Record | None]]:
        """In one call to the store, for all who ask at the same time."""
        return Once(("records", *self.keys), self._plan)

    def _plan(self) -> Plan[list[Record | None]]:
        return (yield from GetRecords(self.keys))


class SyncSteps:
    def __init__(self, limiter: SyncRateLimiter) -> None:
        if not isinstance(limiter, SyncRateLimiter):
            raise ValidationError(f"limiter must be a SyncRateLimiter here, where threads are served, not {limiter!r}")
        self._limiter = limiter

    def decide(self, ask: Ask, on_unavailable: OnUnavailable | None) -> Decision[Any]:
        entity_id, resource, consume, limits = ask
        consume = ONE_OF_EACH if consume is None else consume
        return self._limiter.try_acquire(entity_id, resource, consume, limits, on_unavailable=on_unavailable)

    def perform(self, step: Step[Any]) -> Any:
        limiter = self._limiter
        if isinstance(step, Decide):
            return self.decide(step.ask, step.on_unavailable)
        if isinstance(step, DecideEach):
            return limiter.try_acquire_each(step.asks, on_unavailable=step.on_unavailable)
        if isinstance(step, ReadLimits):
            return [limit.name for limit in limiter.resolve_limits(step.entity_id, step.resource)[0]]
        if isinstance(step, ReadMetadata):
            try:
                return limiter.get_entity(step.entity_id).metadata
            except EntityNotFound:
                return {}
        if isinstance(step, ReadRecords):
            return limiter._perform(step.once())
        assert isinstance(step, Await)
        if inspect.iscoroutine(step.awaitable):
            step.awaitable.close()
        raise ValidationError("a coroutine function was given for an identity, a plan or a cost: nobody awaits it here")


class AsyncSteps:
    def __init__(self, limiter: RateLimiter) -> None:
        if not isinstance(limiter, RateLimiter):
            raise ValidationError(f"limiter must be a RateLimiter here, where tasks are served, not {limiter!r}")
        self._limiter = limiter

    async def decide(self, ask: Ask, on_unavailable: OnUnavailable | None) -> Decision[Any]:
        entity_id, resource, consume, limits = ask
        consume = ONE_OF_EACH if consume is None else consume
        return await self._limiter.try_acquire(entity_id, resource, consume, limits, on_unavailable=on_unavailable)

    async def perform(self, step: Step[Any]) -> Any:
        limiter = self._limiter
        if isinstance(step, Decide):
            return await self.decide(step.ask, step.on_unavailable)
        if isinstance(step, DecideEach):
            return await limiter.try_acquire_each(step.asks, on_unavailable=step.on_unavailable)
        if isinstance(step, ReadLimits):
            return [limit.name for limit in (await limiter.resolve_limits(step.entity_id, step.resource))[0]]
        if isinstance(step, ReadMetadata):
            try:
                return (await limiter.get_entity(step.entity_id)).metadata
            except EntityNotFound:
                return {}
        if isinstance(step, ReadRecords):
            return await limiter._perform(step.once())
        assert isinstance(step, Await)
        return await step.awaitable
