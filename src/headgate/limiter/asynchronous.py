"""The limiter for tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from inspect import cleandoc
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from ..core.decide import Answer, Parts, Request
from ..core.errors import RateLimiterUnavailable, RateLimitExceeded, Unanswered
from ..core.limit import DEFAULT_TTL_SECONDS, Limit
from ..plan import (
    Call,
    Nap,
    Settle,
    SettleAll,
    SettleEach,
    SettleHere,
    SingleFlight,
    Sleep,
    StoreCall,
    Whole,
    arun,
    to_the_end,
)
from ..stores import CancelledLate, InProcessStore, OffloadedStore, open_async_store
from .acquire.batch import (
    Ask,
    Asks,
    Taken,
    check_asks,
    decided,
    decided_at_once,
    known_members,
    named,
    outcomes,
    settled_each_plan,
    take_each_plan,
)
from .acquire.chain import ONE_OF_EACH, Chain
from .acquire.coalesce import MAX_BATCH, TaskCoalescer, settle_each
from .acquire.decision import Decision, JointDecision
from .acquire.decorator import Cost, Key, Limited, LimitSpec, check_kind
from .acquire.funnel import PLAIN, Options, Outcome, Wish, away_plan, told_plan
from .acquire.slot_queue import SlotQueues
from .async_methods import CoroutineMethods
from .base import BaseLimiter, OnError, OnUnavailable, check_on_error
from .clock import GLANCE_SECONDS, SystemClock, asleep_on, rings
from .config import namespaces
from .leases.held_slots import HeldSlots
from .leases.lease import Lease
from .leases.renewal import TaskRenewal
from .misuse import AsyncOnly, NotEntered, Pending, returns_coroutine
from .observe.watchers import Deciding, outcome_of
from .single_flight import TaskSingleFlight
from .vendor import dimensions
from .vendor.dimensions import Wishes

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class RateLimiter(AsyncOnly, CoroutineMethods, BaseLimiter):
    __doc__ = f"""Rate limits for tasks.

{cleandoc(BaseLimiter.__doc__ or "")}"""

    def _open(self) -> None:
        store = self._store = open_async_store(self.url, self._store_timeout)
        store.usage_ms = self.usage_ms
        self._single_flight = TaskSingleFlight()
        in_process = isinstance(store, OffloadedStore) and store.in_process
        self._slot_queues = SlotQueues(asyncio.Event, shared=not in_process, hearing=getattr(store, "hearing", None))
        self._renewal: TaskRenewal = TaskRenewal(self)
        self._others: set[asyncio.Task[Any]] = set()
        self._enter: Callable[[], object] = asyncio.get_running_loop
        self._drain: Callable[[float], Coroutine[Any, Any, None]] | None = None
        self._settle: Callable[[Request], Coroutine[Any, Any, Answer]]
        self._settle_each: Callable[[Sequence[Request]], Coroutine[Any, Any, list[Answer | Unanswered]]]
        if isinstance(store, OffloadedStore) and store.in_process:
            self._settle = _at_once(lambda request: self._ask_here((request,), self._now_ms())[0])
            self._settle_each = _at_once(
                lambda batch: settle_each(lambda some: self._ask_here(some, self._now_ms()), batch)
            )
        else:
            coalescer = TaskCoalescer(self._settle_batch, together=self._coalesce)
            self._settle, self._settle_each = coalescer.settle, coalescer.settle_each
            self._enter, self._drain = coalescer.enter, coalescer.drain

    def _wire(self) -> None:
        store, watchers = self._store, self._watchers
        self._decide = self._decide_watched if watchers else self._decide_unwatched
        self._take_each = self._take_each_watched if watchers else self._take_each_unwatched
        self._ask = watchers.settling_later(store.settle) if watchers else store.settle
        if isinstance(store, OffloadedStore) and store.in_process:
            here = cast(InProcessStore, store.blocking)
            self._ask_here = watchers.settling(here.settle) if watchers else here.settle
            self._take = watchers.taking(here.take) if watchers else here.take

    def _now_ms(self) -> int | None:
        return None if self._store.own_clock and not self._clock_given else self._clock.now_ms()

    async def _settle_batch(self, batch: Sequence[Request]) -> list[Answer]:
        return await self._guarded(self._ask, batch, self._now_ms())

    async def _guarded(self, method: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Ask the store, unless it is known to be away."""
        self._breaker.check()
        try:
            result = await method(*arguments)
        except BaseException as error:
            self._breaker.ended(error)
            raise
        self._breaker.worked()
        return result

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._others.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._others.discard)

    async def _perform(self, call: Call[Any]) -> Any:
        self._check_open()
        if isinstance(call, Settle):
            return await self._settle(call.request)
        if isinstance(call, SettleAll):
            return await self._settle_all(call.batch)
        if isinstance(call, SettleEach):
            return await self._settle_each(call.batch)
        if isinstance(call, SettleHere):
            return self._fallback.settle(call.request, self._clock.now_ms())
        if isinstance(call, Nap):
            return await self._nap(call)
        if isinstance(call, SingleFlight):
            return await self._single_flight.run(call.key, lambda: arun(call.plan(), self._perform))
        if isinstance(call, Whole):
            return await to_the_end(arun(call.plan(), self._perform))
        if isinstance(call, Sleep):
            return await asleep_on(self._clock, call.seconds)
        assert isinstance(call, StoreCall)
        self._enter()
        if self._must_enter(call):
            await self._perform(
                SingleFlight(("enter", call.writes), partial(namespaces.enter_plan, self, register=call.writes))
            )
        return await self._guarded(getattr(self._store, call.method), *call.arguments(self._now_ms()))

    async def _settle_all(self, batch: Sequence[Request]) -> list[Answer]:
        answers: list[Answer] = []
        try:
            for start in range(0, len(batch), MAX_BATCH):
                answers += await self._settle_batch(batch[start : start + MAX_BATCH])
        except CancelledLate as late:
            raise late.own from None
        return answers

    async def _nap(self, nap: Nap) -> None:
        seconds = nap.seconds if isinstance(self._clock, SystemClock) else min(nap.seconds, GLANCE_SECONDS)
        await rings(nap.bell, seconds)
        nap.bell.clear()

    def _make_lease(
        self, chain: Chain, parts: Parts | None, on_error: str, hold: HeldSlots | None = None, *, degraded: bool = False
    ) -> Lease:
        return Lease(self, chain, parts, on_error, hold, degraded=degraded)

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
        record_lease: bool = False,
        restore_on_expiry: bool = False,
        lease_ttl: float = DEFAULT_TTL_SECONDS,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> AbstractAsyncContextManager[Lease]:
        """Take from every limit named in `consume`, or raise RateLimitExceeded; give back if the body raises.

        `max_wait`: wait up to so many seconds for the tokens, first come, first served.
        `on_error="keep"`: keep what was taken even if the body raises.
        `record_lease`: let the store know of the lease for as long as it lives; if it dies, `reconcile()` finds it
        `lease_ttl` seconds later, and gives back its tokens if `restore_on_expiry`.
        `on_lost`: called with the lease if it lost its slots (or its record), for others hold them now.
        """
        check_on_error(on_error)
        wish = (entity_id, resource, consume, limits)
        options = PLAIN
        if (
            max_wait != 0
            or on_unavailable is not None
            or record_lease
            or restore_on_expiry
            or lease_ttl is not DEFAULT_TTL_SECONDS
            or on_lost is not None
        ):
            options = Options(max_wait, on_unavailable, record_lease, restore_on_expiry, lease_ttl, on_lost)
        return _Acquire(self, wish, options, on_error)

    @returns_coroutine
    def try_acquire(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, Any],
        limits: Iterable[Limit] | None = None,
        *,
        max_wait: float = 0,
        on_unavailable: OnUnavailable | None = None,
        record_lease: bool = False,
        restore_on_expiry: bool = False,
        lease_ttl: float = DEFAULT_TTL_SECONDS,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> Coroutine[Any, Any, Decision[Lease]]:
        """The same as a question: a refusal is a falsy Decision, not an exception, and there is no body to fail.

        A lease that holds slots has to be ended: `decision.lease.commit()`.
        """
        options = PLAIN
        if (
            max_wait != 0
            or on_unavailable is not None
            or record_lease
            or restore_on_expiry
            or lease_ttl is not DEFAULT_TTL_SECONDS
            or on_lost is not None
        ):
            options = Options(max_wait, on_unavailable, record_lease, restore_on_expiry, lease_ttl, on_lost)
        return Pending(self._decide(entity_id, resource, consume, limits, options), "try_acquire")

    async def _decide_watched(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, Any],
        limits: Iterable[Limit] | None,
        options: Options,
    ) -> Decision[Lease]:
        with Deciding(self._watchers, [(self._stored_id(entity_id), resource)]) as deciding:
            decision = await self._decide_unwatched(entity_id, resource, consume, limits, options)
            deciding.over([outcome_of(decision.allowed, decision.degraded)])
            return decision

    async def _decide_unwatched(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, Any],
        limits: Iterable[Limit] | None,
        options: Options,
    ) -> Decision[Lease]:
        if options is PLAIN and not self._closed and not self._watched:
            # The short cut past the plan, for the acquire that most acquires are.
            chain = self._cache.get(entity_id, resource)
            if chain is not None:
                if limits is not None:
                    chain = chain.under(limits)
                parts = chain.parts(consume)
                if not chain.shape.has_slots:
                    if self._take is not None:
                        return Decision(self, chain, parts, self._take(chain.keys, parts, self._clock.now_ms()))
                    try:
                        return Decision(self, chain, parts, await self._settle(chain.request(parts)))
                    except RateLimiterUnavailable as away:
                        plan = away_plan(self, away, chain, entity_id, resource, consume, limits, options)
                        return self._decision(await arun(plan, self._perform), options)
        plan = told_plan(self, entity_id, resource, consume, limits, options)
        return self._decision(await arun(plan, self._perform), options)

    def _decision(self, outcome: Outcome, options: Options) -> Decision[Lease]:
        chain, parts, degraded = outcome.chain, outcome.parts, outcome.degraded
        decision: Decision[Lease] = Decision(
            self, chain, parts, outcome.answer, outcome.max_wait_ms, degraded, outcome.error
        )
        if outcome.hold is not None:
            decision._lease = self._make_lease(chain, parts, "rollback", outcome.hold, degraded=degraded)
        elif options.on_lost is not None and decision.lease is not None:
            decision.lease._on_lost = options.on_lost  # for slots that it may take later
        return decision

    @returns_coroutine
    def try_acquire_each(
        self, asks: Asks, *, on_unavailable: OnUnavailable | None = None
    ) -> Coroutine[Any, Any, list[Decision[Lease]]]:
        """Many decisions in one call to the store, each by itself, as if asked for one after the other.

        An element that is a list of asks passes or fails as a whole; its decision has a lease for each (`leases`).
        One whose stored state is corrupt does not pass, and its decision says why (`error`).
        """
        return Pending(self._take_each(check_asks(asks), on_unavailable), "try_acquire_each")

    async def _take_each_watched(
        self, asks: Sequence[Ask | Sequence[Ask]], on_unavailable: OnUnavailable | None
    ) -> list[Decision[Lease]]:
        with Deciding(self._watchers, named(self, asks)) as deciding:
            decisions = await self._take_each_unwatched(asks, on_unavailable)
            deciding.over(outcomes(asks, decisions))
            return decisions

    async def _take_each_unwatched(
        self, asks: Sequence[Ask | Sequence[Ask]], on_unavailable: OnUnavailable | None
    ) -> list[Decision[Lease]]:
        members = None if on_unavailable else known_members(self, asks)
        if members is not None and self._take is not None:
            return decided_at_once(self, members)
        if members:
            results = await self._settle_each([chain.request(parts) for chain, parts in members])
            plan = settled_each_plan(self, asks, members, results)
            return decided(self, members, results) or [self._each(one) for one in await arun(plan, self._perform)]
        options = PLAIN if on_unavailable is None else Options(on_unavailable=on_unavailable)
        return [self._each(one) for one in await arun(take_each_plan(self, asks, options), self._perform)]

    def _each(self, taken: Taken) -> Decision[Lease]:
        if len(taken.members) == 1:
            return self._decision(taken.whole, PLAIN)
        return JointDecision(self, taken.whole, taken.members)

    def slot(
        self,
        dimension: str,
        consume: Mapping[str, Any] | None = None,
        *,
        timeout: float = 30,
        limits: Iterable[Limit] | None = None,
        on_error: OnError = "rollback",
        on_unavailable: OnUnavailable | None = None,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> AbstractAsyncContextManager[Lease]:
        """`acquire` for a vendor's quota, `"openai#gpt-4o"`, that waits up to `timeout` seconds for its turn.

        Without `consume`: one of every limit there is.
        """
        return self.acquire(
            *dimensions.dimension_of(self, dimension),
            ONE_OF_EACH if consume is None else consume,
            limits,
            max_wait=timeout,
            on_error=on_error,
            on_unavailable=on_unavailable,
            on_lost=on_lost,
        )

    def acquire_many(
        self,
        consume: Wishes,
        *,
        limits: Mapping[str, Iterable[Limit]] | None = None,
        max_wait: float = 0,
        on_error: OnError = "rollback",
        on_unavailable: OnUnavailable | None = None,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> AbstractAsyncContextManager[dict[str, Lease]]:
        """`acquire` over several dimensions, all or nothing: `{"openai#gpt-4o": {"rpm": 1, "tpm": 500}, ...}`.

        It gives a lease for each of them. None instead of amounts, or dimensions alone: one of every limit there is.
        """
        check_on_error(on_error)
        options = Options(max_wait, on_unavailable, on_lost=on_lost)
        return _AcquireMany(self, consume, limits, options, on_error)

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

    async def close(self) -> None:
        """Let go of the store. Idempotent."""
        if not self._closed:
            self._closed = True
            try:
                await self._renewal.close()
                if self._drain is not None:
                    await self._drain(2 * self._store_timeout)
            finally:  # if we are cancelled too
                await self._store.close()

    async def __aenter__(self) -> RateLimiter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _at_once(settle: Callable[[R], T]) -> Callable[[R], Coroutine[Any, Any, T]]:
    async def settled(request: R) -> T:
        return settle(request)

    return settled


class _Acquire(NotEntered, AsyncOnly, AbstractAsyncContextManager[Lease]):
    written = "acquire()"

    def __init__(self, limiter: RateLimiter, wish: Wish, options: Options, on_error: OnError) -> None:
        self._limiter = limiter
        self._wish = wish
        self._options = options
        self._on_error = on_error
        self._lease: Lease | None = None

    async def __aenter__(self) -> Lease:
        decision = await self._limiter._decide(*self._wish, self._options)
        self._lease = decision._take_lease(self._on_error)
        if self._lease is None:
            raise RateLimitExceeded(decision.statuses)
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._lease is not None
        await self._lease.__aexit__(kind, error, traceback)


class _AcquireMany(NotEntered, AsyncOnly, AbstractAsyncContextManager[dict[str, Lease]]):
    written = "acquire_many()"

    def __init__(
        self,
        limiter: RateLimiter,
        consume: Wishes,
        limits: Mapping[str, Iterable[Limit]] | None,
        options: Options,
        on_error: OnError,
    ) -> None:
        self._limiter = limiter
        self._consume = consume
        self._limits = limits
        self._options = options
        self._on_error = on_error
        self._leases: dict[str, Lease] = {}

    async def __aenter__(self) -> dict[str, Lease]:
        plan = dimensions.take_many_plan(self._limiter, self._consume, self._limits, self._options)
        outcomes = await arun(plan, self._limiter._perform)
        self._leases = {
            dimension: self._limiter._make_lease(
                outcome.chain, outcome.parts, self._on_error, outcome.hold, degraded=outcome.degraded
            )
            for dimension, outcome in outcomes.items()
        }
        return self._leases

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await arun(dimensions.leave_all_plan(self._leases.values(), error), self._limiter._perform)
