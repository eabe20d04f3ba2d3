"""What the engine asks of the limiter and of the application: the steps of its plan, and the two ways to take them."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..core.errors import EntityNotFound, LimiterClosed, NamespaceNotFound, RateLimiterUnavailable, ValidationError
from ..core.limit import Limit
from ..core.records import Record
from ..limiter import Ask, Decision, OnUnavailable, RateLimiter, SyncRateLimiter
from ..limiter.acquire.chain import ONE_OF_EACH
from ..plan import Call as Step
from ..plan import GetRecords, Plan, SingleFlight, arun, run
from .flights import Flights, in_thread

AWAY = (RateLimiterUnavailable, NamespaceNotFound, LimiterClosed)  # no step can be taken, whatever it is


@dataclass(frozen=True, slots=True)
class Decide(Step[Decision[Any]]):
    ask: Ask
    on_unavailable: OnUnavailable | None


@dataclass(frozen=True, slots=True)
class DecideEach(Step[list[Decision[Any]]]):
    """`instead`: a limiter that decides in the place of the engine's."""

    asks: Sequence[Ask | Sequence[Ask]]
    on_unavailable: OnUnavailable | None
    instead: Any = None


@dataclass(frozen=True, slots=True)
class Look(Step[None]):
    """Whether an ask could be decided: it raises what deciding would, and takes nothing."""

    ask: Ask


@dataclass(frozen=True, slots=True)
class End(Step[None]):
    """Of leases. Slots are free again; tokens stay taken."""

    leases: Iterable[Any]


@dataclass(frozen=True, slots=True)
class Await(Step[Any]):
    """What a coroutine function of the application's has returned."""

    awaitable: Awaitable[Any]


@dataclass(frozen=True, slots=True)
class CallApart(Step[Any]):
    """What a function of the application's returns, which may take long."""

    function: Callable[[Any], Any]
    argument: Any


@dataclass(frozen=True, slots=True)
class FindOut(Step[Any]):
    """What a plan finds out, if that does not take too long; for all who want to know the same at the same time.

    `apart`: it has to do with the application, and may hang.
    """

    flights: Flights
    key: Hashable
    plan: Callable[[], Plan[Any]]
    apart: bool


@dataclass(frozen=True, slots=True)
class ReadMetadata(Step[dict[str, Any]]):
    """Of an entity; empty if there is none."""

    entity_id: str


@dataclass(frozen=True, slots=True)
class ReadLimits(Step[list[Limit]]):
    """The limits stored for an entity on a resource."""

    entity_id: str
    resource: str


@dataclass(frozen=True, slots=True)
class ReadRecords(Step["list[Record | None]"]):
    keys: Sequence[str]

    def once(self) -> SingleFlight[list[Record | None]]:
        """In one call to the store, for all who ask at the same time."""
        return SingleFlight(("records", *self.keys), self._plan)

    def _plan(self) -> Plan[list[Record | None]]:
        return (yield from GetRecords(self.keys))


class SyncSteps:
    """`apart`: whether functions that may hang are called in threads of their own."""

    def __init__(self, limiter: SyncRateLimiter, *, apart: bool = True) -> None:
        if not isinstance(limiter, SyncRateLimiter):
            raise ValidationError(f"limiter must be a SyncRateLimiter here, where threads are served, not {limiter!r}")
        self._limiter = limiter
        self._apart = apart
        self._ways: dict[type[Step[Any]], Callable[[Any], Any]] = {
            Decide: lambda step: self.decide(step.ask, step.on_unavailable),
            DecideEach: self._decide_each,
            Look: self._look,
            End: lambda step: self.end(step.leases),
            Await: self._await,
            CallApart: lambda step: step.function(step.argument),
            FindOut: self._find_out,
            ReadMetadata: self._read_metadata,
            ReadLimits: lambda step: limiter.resolve_limits(step.entity_id, step.resource)[0],
            ReadRecords: lambda step: limiter.engine.perform(step.once()),
        }

    def perform(self, step: Step[Any]) -> Any:
        return self._ways[type(step)](step)

    def decide(self, ask: Ask, on_unavailable: OnUnavailable | None) -> Decision[Any]:
        entity_id, resource, consume, limits = ask
        consume = ONE_OF_EACH if consume is None else consume
        return self._limiter.try_acquire(entity_id, resource, consume, limits, on_unavailable=on_unavailable)

    def _decide_each(self, step: DecideEach) -> list[Decision[Any]]:
        limiter: SyncRateLimiter = step.instead or self._limiter
        return limiter.try_acquire_each(step.asks, on_unavailable=step.on_unavailable)

    def _look(self, step: Look) -> None:
        entity_id, resource, consume, limits = step.ask
        if consume is None:
            self._limiter.available(entity_id, resource, limits)
        else:
            self._limiter.time_until_available(entity_id, resource, consume, limits)

    @staticmethod
    def end(leases: Iterable[Any]) -> None:
        for lease in leases:
            lease.__exit__(None, None, None)

    def _find_out(self, step: FindOut) -> Any:
        place = (os.getpid(), step.key)  # a thread that works in the parent does not go through a fork
        return step.flights.run(place, lambda: run(step.plan(), self.perform), apart=step.apart and self._apart)

    def _read_metadata(self, step: ReadMetadata) -> dict[str, Any]:
        try:
            return self._limiter.get_entity(step.entity_id).metadata
        except EntityNotFound:
            return {}

    def _await(self, step: Await) -> Any:
        if asyncio.iscoroutine(step.awaitable):
            step.awaitable.close()
        raise ValidationError("a coroutine function was given for an identity, a plan or a cost: nobody awaits it here")


class AsyncSteps:
    def __init__(self, limiter: RateLimiter) -> None:
        if not isinstance(limiter, RateLimiter):
            raise ValidationError(f"limiter must be a RateLimiter here, where tasks are served, not {limiter!r}")
        self._limiter = limiter
        self._ways: dict[type[Step[Any]], Callable[[Any], Awaitable[Any]]] = {
            Decide: lambda step: self.decide(step.ask, step.on_unavailable),
            DecideEach: self._decide_each,
            Look: self._look,
            End: lambda step: self.end(step.leases),
            Await: lambda step: step.awaitable,
            CallApart: self._call_apart,
            FindOut: self._find_out,
            ReadMetadata: self._read_metadata,
            ReadLimits: self._read_limits,
            ReadRecords: lambda step: limiter.engine.perform(step.once()),
        }

    async def perform(self, step: Step[Any]) -> Any:
        return await self._ways[type(step)](step)

    async def decide(self, ask: Ask, on_unavailable: OnUnavailable | None) -> Decision[Any]:
        entity_id, resource, consume, limits = ask
        consume = ONE_OF_EACH if consume is None else consume
        return await self._limiter.try_acquire(entity_id, resource, consume, limits, on_unavailable=on_unavailable)

    async def _decide_each(self, step: DecideEach) -> list[Decision[Any]]:
        limiter: RateLimiter = step.instead or self._limiter
        return await limiter.try_acquire_each(step.asks, on_unavailable=step.on_unavailable)

    async def _look(self, step: Look) -> None:
        entity_id, resource, consume, limits = step.ask
        if consume is None:
            await self._limiter.available(entity_id, resource, limits)
        else:
            await self._limiter.time_until_available(entity_id, resource, consume, limits)

    @staticmethod
    async def end(leases: Iterable[Any]) -> None:
        for lease in leases:
            await lease.__aexit__(None, None, None)

    async def _call_apart(self, step: CallApart) -> Any:
        if inspect.iscoroutinefunction(step.function):
            return step.function(step.argument)
        return await asyncio.wrap_future(in_thread(partial(step.function, step.argument)))

    async def _find_out(self, step: FindOut) -> Any:
        return await step.flights.arun(step.key, lambda: arun(step.plan(), self.perform))

    async def _read_metadata(self, step: ReadMetadata) -> dict[str, Any]:
        try:
            return (await self._limiter.get_entity(step.entity_id)).metadata
        except EntityNotFound:
            return {}

    async def _read_limits(self, step: ReadLimits) -> list[Limit]:
        return (await self._limiter.resolve_limits(step.entity_id, step.resource))[0]
