"""The limiter for tasks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from ..core.decide import Answer, Parts, Request
from ..core.errors import RateLimiterUnavailable, RateLimitExceeded
from ..core.limit import Limit
from ..plan import Call, Once, Settle, Sleep, StoreCall, arun
from ..stores import InProcessStore, OffloadedStore, open_async_store
from . import config, entities, life, overview, reconcile, tokens
from .base import BaseLimiter, OnError, OnUnavailable, check_on_error
from .bind import coroutine
from .chain import Chain
from .clock import asleep_on
from .coalesce import TaskCoalescer, settler
from .decision import Decision
from .decorator import Cost, Key, Limited, LimitSpec, check_kind
from .lease import Lease
from .once import TaskOnce

P = ParamSpec("P")
T = TypeVar("T")


class RateLimiter(BaseLimiter):
    __doc__ = f"Rate limits for tasks.\n\n    {BaseLimiter.__doc__}"

    def _open(self) -> None:
        store = self._store = open_async_store(self.url, self._store_timeout)
        self._once = TaskOnce()
        self._settle: Callable[[Request], Coroutine[Any, Any, Answer]]
        if isinstance(store, OffloadedStore) and store.in_process:
            self._take = cast(InProcessStore, store.blocking).take
            self._settle = _at_once(settler(store.blocking.settle, self._now_ms))
        else:
            self._settle = TaskCoalescer(self._settle_batch, together=self._coalesce).settle

    def _now_ms(self) -> int | None:
        return None if self._store.own_clock and not self._clock_given else self._clock.now_ms()

    async def _settle_batch(self, batch: Sequence[Request]) -> list[Answer]:
        return await self._store.settle(batch, self._now_ms())

    async def _perform(self, call: Call[Any]) -> Any:
        self._check_open()
        if isinstance(call, Settle):
            return await self._settle(call.request)
        if isinstance(call, Once):
            return await self._once.run(call.key, lambda: arun(call.plan(), self._perform))
        if isinstance(call, Sleep):
            return await asleep_on(self._clock, call.seconds)
        assert isinstance(call, StoreCall)
        return await getattr(self._store, call.method)(*call.arguments(self._now_ms()))

    def _make_lease(self, chain: Chain, parts: Parts | None, on_error: str) -> Lease:
        return Lease(self, chain, parts, on_error)

    def acquire(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, Any],
        limits: Iterable[Limit] | None = None,
        *,
        max_wait: float = 0,
        on_error: OnError = "rollback",
        on_unavailable: OnUnavailable | None = None,
    ) -> AbstractAsyncContextManager[Lease]:
        """Take from every limit named in `consume`, or raise RateLimitExceeded; give back if the body raises.

        `max_wait`: wait up to so many seconds for the tokens, first come, first served.
        `on_error="keep"`: keep what was taken even if the body raises.
        """
        check_on_error(on_error)
        arguments = (entity_id, resource, consume, limits)
        return _Acquire(self, arguments, {"max_wait": max_wait, "on_unavailable": on_unavailable}, on_error)

    async def try_acquire(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, Any],
        limits: Iterable[Limit] | None = None,
        *,
        max_wait: float = 0,
        on_unavailable: OnUnavailable | None = None,
    ) -> Decision[Lease]:
        """The same as a question: a refusal is a falsy Decision, not an exception, and there is no body to fail."""
        if max_wait == 0 and on_unavailable is None and not self._closed:
            # The short cut past the plan, for the acquire that most acquires are.
            chain = self._cache.get(entity_id, resource)
            if chain is not None:
                if limits is not None:
                    chain = chain.under(limits)
                parts = chain.parts(consume)
                if self._take is not None:
                    return Decision(self, chain, parts, self._take(chain.keys, parts, self._clock.now_ms()))
                try:
                    return Decision(self, chain, parts, await self._settle(chain.request(parts)))
                except RateLimiterUnavailable:
                    if self._policy(chain, None) != "allow":
                        raise
                    return Decision(self, chain)
        plan = tokens.take_plan(self, entity_id, resource, consume, limits, max_wait, on_unavailable)
        outcome = await arun(plan, self._perform)
        return Decision(self, outcome.chain, outcome.parts, outcome.answer, outcome.max_wait_ms)

    def limit(
        self,
        spec: LimitSpec,
        *,
        key: Key = "everyone",
        cost: Cost = 1,
        resource: str | None = None,
        max_wait: float = 0,
        on_error: OnError = "rollback",
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """Decorate a function: each call acquires `cost` under `spec`, for the entity that `key` names.

        `key` and `cost` may be functions of the call's arguments. The resource is the function's name.
        """

        def decorate(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
            check_kind(function, coroutine=True)
            limited = Limited(function, spec, key, cost, resource)

            @wraps(function)
            async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
                async with self.acquire(**limited.arguments(args, kwargs), max_wait=max_wait, on_error=on_error):
                    return await function(*args, **kwargs)

            return wrapper

        return decorate

    available = coroutine(tokens.available_plan)
    time_until_available = coroutine(tokens.time_until_available_plan)
    adjust = coroutine(tokens.adjust_plan)
    penalize = coroutine(tokens.penalize_plan)
    reset = coroutine(tokens.reset_plan)

    create_entity = coroutine(entities.create_entity_plan)
    get_entity = coroutine(entities.get_entity_plan)
    update_entity = coroutine(entities.update_entity_plan)
    delete_entity = coroutine(entities.delete_entity_plan)
    get_children = coroutine(entities.get_children_plan)

    set_limits = coroutine(config.set_limits_plan)
    get_limits = coroutine(config.get_limits_plan)
    delete_limits = coroutine(config.delete_limits_plan)
    list_entities_with_custom_limits = coroutine(config.list_entities_with_custom_limits_plan)
    set_resource_defaults = coroutine(config.set_resource_defaults_plan)
    get_resource_defaults = coroutine(config.get_resource_defaults_plan)
    delete_resource_defaults = coroutine(config.delete_resource_defaults_plan)
    list_resources_with_defaults = coroutine(config.list_resources_with_defaults_plan)
    set_system_defaults = coroutine(config.set_system_defaults_plan)
    get_system_defaults = coroutine(config.get_system_defaults_plan)
    get_system_on_unavailable = coroutine(config.get_system_on_unavailable_plan)
    delete_system_defaults = coroutine(config.delete_system_defaults_plan)
    resolve_limits = coroutine(config.resolve_limits_plan)

    get_buckets = coroutine(overview.get_buckets_plan)
    get_resource_capacity = coroutine(overview.get_resource_capacity_plan)

    reconcile = coroutine(reconcile.reconcile_plan)
    setup = coroutine(life.setup_plan)
    ping = coroutine(life.ping_plan)

    async def close(self) -> None:
        """Let go of the store. Idempotent."""
        if not self._closed:
            self._closed = True
            await self._store.close()

    async def __aenter__(self) -> RateLimiter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _at_once(settle: Callable[[Request], Answer]) -> Callable[[Request], Coroutine[Any, Any, Answer]]:
    async def settled(request: Request) -> Answer:
        return settle(request)

    return settled


class _Acquire(AbstractAsyncContextManager[Lease]):
    def __init__(
        self, limiter: RateLimiter, arguments: tuple[Any, ...], options: dict[str, Any], on_error: OnError
    ) -> None:
        self._limiter = limiter
        self._arguments = arguments
        self._options = options
        self._on_error = on_error
        self._lease: Lease | None = None

    async def __aenter__(self) -> Lease:
        decision = await self._limiter.try_acquire(*self._arguments, **self._options)
        self._lease = decision._take_lease(self._on_error)
        if self._lease is None:
            raise RateLimitExceeded(decision.statuses)
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._lease is not None
        await self._lease.__aexit__(kind, error, traceback)
