"""The limiter for threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from ..core.decide import Answer, Parts, Request
from ..core.errors import RateLimiterUnavailable, RateLimitExceeded
from ..core.limit import Limit
from ..plan import Call, Once, Settle, Sleep, StoreCall, run
from ..stores import InProcessStore, open_store
from . import config, entities, life, overview, reconcile, tokens
from .base import BaseLimiter, OnError, OnUnavailable, check_on_error
from .bind import blocking
from .chain import Chain
from .clock import sleep_on
from .coalesce import ThreadCoalescer, settler
from .decision import Decision
from .decorator import Cost, Key, Limited, LimitSpec, check_kind
from .lease import SyncLease
from .once import ThreadOnce

P = ParamSpec("P")
T = TypeVar("T")


class SyncRateLimiter(BaseLimiter):
    __doc__ = f"Rate limits for threads: RateLimiter's methods without await. Thread-safe.\n\n    {BaseLimiter.__doc__}"

    def _open(self) -> None:
        self._store = open_store(self.url, self._store_timeout)
        self._once = ThreadOnce()
        self._settle: Callable[[Request], Answer]
        if self._store.in_process:
            self._take = cast(InProcessStore, self._store).take
            self._settle = settler(self._store.settle, self._now_ms)
        elif self._coalesce:
            self._settle = ThreadCoalescer(self._settle_batch).settle
        else:
            self._settle = settler(self._store.settle, self._now_ms)

    def _now_ms(self) -> int | None:
        return None if self._store.own_clock and not self._clock_given else self._clock.now_ms()

    def _settle_batch(self, batch: Sequence[Request]) -> list[Answer]:
        return self._store.settle(batch, self._now_ms())

    def _perform(self, call: Call[Any]) -> Any:
        self._check_open()
        if isinstance(call, Settle):
            return self._settle(call.request)
        if isinstance(call, Once):
            return self._once.run(call.key, lambda: run(call.plan(), self._perform))
        if isinstance(call, Sleep):
            return sleep_on(self._clock, call.seconds)
        assert isinstance(call, StoreCall)
        return getattr(self._store, call.method)(*call.arguments(self._now_ms()))

    def _make_lease(self, chain: Chain, parts: Parts | None, on_error: str) -> SyncLease:
        return SyncLease(self, chain, parts, on_error)

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
    ) -> AbstractContextManager[SyncLease]:
        """Take from every limit named in `consume`, or raise RateLimitExceeded; give back if the body raises.

        `max_wait`: wait up to so many seconds for the tokens, first come, first served.
        `on_error="keep"`: keep what was taken even if the body raises.
        """
        check_on_error(on_error)
        arguments = (entity_id, resource, consume, limits)
        return _Acquire(self, arguments, {"max_wait": max_wait, "on_unavailable": on_unavailable}, on_error)

    def try_acquire(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, Any],
        limits: Iterable[Limit] | None = None,
        *,
        max_wait: float = 0,
        on_unavailable: OnUnavailable | None = None,
    ) -> Decision[SyncLease]:
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
                    return Decision(self, chain, parts, self._settle(chain.request(parts)))
                except RateLimiterUnavailable:
                    if self._policy(chain, None) != "allow":
                        raise
                    return Decision(self, chain)
        plan = tokens.take_plan(self, entity_id, resource, consume, limits, max_wait, on_unavailable)
        outcome = run(plan, self._perform)
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
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Decorate a function: each call acquires `cost` under `spec`, for the entity that `key` names.

        `key` and `cost` may be functions of the call's arguments. The resource is the function's name.
        """

        def decorate(function: Callable[P, T]) -> Callable[P, T]:
            check_kind(function, coroutine=False)
            limited = Limited(function, spec, key, cost, resource)

            @wraps(function)
            def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
                with self.acquire(**limited.arguments(args, kwargs), max_wait=max_wait, on_error=on_error):
                    return function(*args, **kwargs)

            return wrapper

        return decorate

    available = blocking(tokens.available_plan)
    time_until_available = blocking(tokens.time_until_available_plan)
    adjust = blocking(tokens.adjust_plan)
    penalize = blocking(tokens.penalize_plan)
    reset = blocking(tokens.reset_plan)

    create_entity = blocking(entities.create_entity_plan)
    get_entity = blocking(entities.get_entity_plan)
    update_entity = blocking(entities.update_entity_plan)
    delete_entity = blocking(entities.delete_entity_plan)
    get_children = blocking(entities.get_children_plan)

    set_limits = blocking(config.set_limits_plan)
    get_limits = blocking(config.get_limits_plan)
    delete_limits = blocking(config.delete_limits_plan)
    list_entities_with_custom_limits = blocking(config.list_entities_with_custom_limits_plan)
    set_resource_defaults = blocking(config.set_resource_defaults_plan)
    get_resource_defaults = blocking(config.get_resource_defaults_plan)
    delete_resource_defaults = blocking(config.delete_resource_defaults_plan)
    list_resources_with_defaults = blocking(config.list_resources_with_defaults_plan)
    set_system_defaults = blocking(config.set_system_defaults_plan)
    get_system_defaults = blocking(config.get_system_defaults_plan)
    get_system_on_unavailable = blocking(config.get_system_on_unavailable_plan)
    delete_system_defaults = blocking(config.delete_system_defaults_plan)
    resolve_limits = blocking(config.resolve_limits_plan)

    get_buckets = blocking(overview.get_buckets_plan)
    get_resource_capacity = blocking(overview.get_resource_capacity_plan)

    reconcile = blocking(reconcile.reconcile_plan)
    setup = blocking(life.setup_plan)
    ping = blocking(life.ping_plan)

    def close(self) -> None:
        """Let go of the store. Idempotent."""
        if not self._closed:
            self._closed = True
            self._store.close()

    def __enter__(self) -> SyncRateLimiter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Acquire(AbstractContextManager[SyncLease]):
    def __init__(
        self, limiter: SyncRateLimiter, arguments: tuple[Any, ...], options: dict[str, Any], on_error: OnError
    ) -> None:
        self._limiter = limiter
        self._arguments = arguments
        self._options = options
        self._on_error = on_error
        self._lease: SyncLease | None = None

    def __enter__(self) -> SyncLease:
        decision = self._limiter.try_acquire(*self._arguments, **self._options)
        self._lease = decision._take_lease(self._on_error)
        if self._lease is None:
            raise RateLimitExceeded(decision.statuses)
        return self._lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._lease is not None
        self._lease.__exit__(kind, error, traceback)
