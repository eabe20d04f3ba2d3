"""What `acquire` and `acquire_many` return: it takes when it is entered, and ends the leases when it is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar

from ...core.errors import RateLimitExceeded
from ...core.limit import Limit
from ..leases.lease import BaseLease, Lease, SyncLease
from ..misuse import AsyncOnly, NotEntered, SyncOnly
from ..vendor.dimensions import Dimensions, asks_of, leave_all_plan
from .decision import Decision
from .options import PLAIN, OnError, Options

L = TypeVar("L", bound=BaseLease)


class _Acquire(NotEntered, Generic[L]):
    written = "acquire()"
    __slots__ = ("_arguments", "_engine", "_lease", "_on_error")

    _lease: L

    def __init__(self, engine: Any, arguments: tuple[Any, ...], on_error: OnError) -> None:
        self._engine = engine
        self._arguments = arguments
        self._on_error = on_error

    def _at_once(self) -> L | None:
        """The usual acquire from a store in this process, without a Decision. None if the engine has to decide."""
        engine = self._engine
        entity_id, resource, consume, limits, options = self._arguments
        if engine.take is None or options is not PLAIN or not engine.warm or engine.observers.active:
            return None
        known = engine.known(entity_id, resource, consume, limits)
        if known is None:
            return None
        chain, parts = known
        answer = engine.take(chain.keys, parts, engine.clock_ms())
        if not answer.allowed:
            return self._entered(Decision(engine, chain, parts, answer))  # which raises
        self._lease = engine.lease_class(engine, chain, parts, self._on_error)
        return self._lease

    def _entered(self, decision: Decision[Any]) -> L:
        lease = decision._take_lease(self._on_error)
        if lease is None:
            raise RateLimitExceeded(decision.statuses)
        self._lease = lease
        return self._lease


class AsyncAcquire(AsyncOnly, _Acquire[Lease]):
    __slots__ = ()

    async def __aenter__(self) -> Lease:
        return self._at_once() or self._entered(await self._engine.decide(*self._arguments))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._lease._nothing_to_do(error):
            await self._lease._leave(error)


class SyncAcquire(SyncOnly, _Acquire[SyncLease]):
    __slots__ = ()

    def __enter__(self) -> SyncLease:
        return self._at_once() or self._entered(self._engine.decide(*self._arguments))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._lease._nothing_to_do(error):
            self._lease._leave(error)


class _AcquireMany(NotEntered, Generic[L]):
    written = "acquire_many()"

    def __init__(
        self,
        engine: Any,
        consume: Dimensions,
        limits: Mapping[str, Iterable[Limit]] | None,
        options: Options,
        on_error: OnError,
    ) -> None:
        self._engine = engine
        self._asks = asks_of(engine, consume, limits)
        self._options = options
        self._on_error = on_error
        self._leases: dict[str, L] = {}

    def _entered(self, decision: Decision[Any]) -> dict[str, L]:
        if not decision.allowed:
            raise RateLimitExceeded(decision.statuses)
        self._leases = dict(zip(self._asks, decision.leases))
        for lease in self._leases.values():
            lease._on_error = self._on_error
        return self._leases


class AsyncAcquireMany(AsyncOnly, _AcquireMany[Lease], AbstractAsyncContextManager[dict[str, Lease]]):
    async def __aenter__(self) -> dict[str, Lease]:
        return self._entered(await self._engine.decide_group([*self._asks.values()], self._options))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._engine.run(leave_all_plan(self._leases.values(), error))


class SyncAcquireMany(SyncOnly, _AcquireMany[SyncLease], AbstractContextManager[dict[str, SyncLease]]):
    def __enter__(self) -> dict[str, SyncLease]:
        return self._entered(self._engine.decide_group([*self._asks.values()], self._options))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._engine.run(leave_all_plan(self._leases.values(), error))
