"""The limiter for threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, wraps
from inspect import cleandoc
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from ..core.decide import Answer, Parts, Request
from ..core.errors import PartlyAnswered, RateLimiterUnavailable, RateLimitExceeded
from ..core.limit import DEFAULT_TTL_SECONDS, Limit
from ..plan import Call, Nap, Settle, SettleAll, SettleEach, SettleHere, SingleFlight, Sleep, StoreCall, Whole, run
from ..stores import InProcessStore, open_store
from .acquire.batch import Ask, Asks, Taken, check_asks, decided_at_once, known_members, named, outcomes, take_each_plan
from .acquire.chain import ONE_OF_EACH, Chain
from .acquire.coalesce import MAX_BATCH, ThreadCoalescer, settle_each
from .acquire.decision import Decision, JointDecision
from .acquire.decorator import Cost, Key, Limited, LimitSpec, check_kind
from .acquire.funnel import PLAIN, Options, Outcome, Wish, away_plan, told_plan
from .acquire.slot_queue import SlotQueues
from .base import BaseLimiter, OnError, OnUnavailable, check_on_error
from .clock import GLANCE_SECONDS, SystemClock, sleep_on
from .config import namespaces
from .leases.held_slots import HeldSlots
from .leases.lease import SyncLease
from .leases.renewal import ThreadRenewal
from .misuse import NotEntered, SyncOnly
from .observe.watchers import Deciding, outcome_of
from .single_flight import ThreadSingleFlight
from .sync_methods import BlockingMethods
from .vendor import dimensions
from .vendor.dimensions import Wishes

P = ParamSpec("P")
T = TypeVar("T")


class SyncRateLimiter(SyncOnly, BlockingMethods, BaseLimiter):
    __doc__ = f"""Rate limits for threads: RateLimiter's methods without await. Thread-safe.

{cleandoc(BaseLimiter.__doc__ or "")}"""

    def _open(self) -> None:
        self._store = open_store(self.url, self._store_timeout)
        self._store.usage_ms = self.usage_ms
        self._single_flight = ThreadSingleFlight(10 * self._store_timeout)
        self._slot_queues = SlotQueues(
            threading.Event, shared=not self._store.in_process, hearing=getattr(self._store, "hearing", None)
        )
        self._renewal: ThreadRenewal = ThreadRenewal(self)
        self._settle: Callable[[Request], Answer]
        if self._store.in_process:
            self._settle = lambda request: self._ask((request,), self._now_ms())[0]
        elif self._coalesce:
            self._settle = ThreadCoalescer(self._settle_batch).settle
        else:
            self._settle = self._settle_alone

    def _wire(self) -> None:
        store, watchers = self._store, self._watchers
        self._decide = self._decide_watched if watchers else self._decide_unwatched
        self._take_each = self._take_each_watched if watchers else self._take_each_unwatched
        self._ask = watchers.settling(store.settle) if watchers else store.settle
        if store.in_process:
            take = cast(InProcessStore, store).take
            self._take = watchers.taking(take) if watchers else take

    def _now_ms(self) -> int | None:
        return None if self._store.own_clock and not self._clock_given else self._clock.now_ms()

    def _settle_batch(self, batch: Sequence[Request]) -> list[Answer]:
        return self._guarded(self._ask, batch, self._now_ms())

    def _settle_alone(self, request: Request) -> Answer:
        try:
            return self._settle_batch((request,))[0]
        except PartlyAnswered as partly:
            raise partly.first from None

    def _guarded(self, method: Callable[..., T], *arguments: Any) -> T:
        """Ask the store, unless it is known to be away."""
        self._breaker.check()
        try:
            result = method(*arguments)
        except BaseException as error:
            self._breaker.ended(error)
            raise
        self._breaker.worked()
        return result

    def _perform(self, call: Call[Any]) -> Any:
        self._check_open()
        if isinstance(call, Settle):
            return self._settle(call.request)
        if isinstance(call, SettleAll):
            return self._settle_all(call.batch)
        if isinstance(call, SettleEach):
            return settle_each(self._settle_batch, call.batch)
        if isinstance(call, SettleHere):
            return self._fallback.settle(call.request, self._clock.now_ms())
        if isinstance(call, Nap):
            return self._nap(call)
        if isinstance(call, SingleFlight):
            return self._single_flight.run(call.key, lambda: run(call.plan(), self._perform))
        if isinstance(call, Whole):
            return run(call.plan(), self._perform)
        if isinstance(call, Sleep):
            return sleep_on(self._clock, call.seconds)
        assert isinstance(call, StoreCall)
        if self._must_enter(call):
            self._perform(
                SingleFlight(("enter", call.writes), partial(namespaces.enter_plan, self, register=call.writes))
            )
        return self._guarded(getattr(self._store, call.method), *call.arguments(self._now_ms()))

    def _settle_all(self, batch: Sequence[Request]) -> list[Answer]:
        answers: list[Answer] = []
        for start in range(0, len(batch), MAX_BATCH):
            answers += self._settle_batch(batch[start : start + MAX_BATCH])
        return answers

    def _nap(self, nap: Nap) -> None:
        nap.bell.wait(nap.seconds if isinstance(self._clock, SystemClock) else min(nap.seconds, GLANCE_SECONDS))
        nap.bell.clear()

    def _make_lease(
        self, chain: Chain, parts: Parts | None, on_error: str, hold: HeldSlots | None = None, *, degraded: bool = False
    ) -> SyncLease:
        return SyncLease(self, chain, parts, on_error, hold, degraded=degraded)

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
        on_lost: Callable[[SyncLease], object] | None = None,
    ) -> AbstractContextManager[SyncLease]:
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
        on_lost: Callable[[SyncLease], object] | None = None,
    ) -> Decision[SyncLease]:
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
        return self._decide(entity_id, resource, consume, limits, options)

    def _decide_watched(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, Any],
        limits: Iterable[Limit] | None,
        options: Options,
    ) -> Decision[SyncLease]:
        with Deciding(self._watchers, [(self._stored_id(entity_id), resource)]) as deciding:
            decision = self._decide_unwatched(entity_id, resource, consume, limits, options)
            deciding.over([outcome_of(decision.allowed, decision.degraded)])
            return decision

    def _decide_unwatched(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, Any],
        limits: Iterable[Limit] | None,
        options: Options,
    ) -> Decision[SyncLease]:
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
                        return Decision(self, chain, parts, self._settle(chain.request(parts)))
                    except RateLimiterUnavailable as away:
                        plan = away_plan(self, away, chain, entity_id, resource, consume, limits, options)
                        return self._decision(run(plan, self._perform), options)
        plan = told_plan(self, entity_id, resource, consume, limits, options)
        return self._decision(run(plan, self._perform), options)

    def _decision(self, outcome: Outcome, options: Options) -> Decision[SyncLease]:
        chain, parts, degraded = outcome.chain, outcome.parts, outcome.degraded
        decision: Decision[SyncLease] = Decision(
            self, chain, parts, outcome.answer, outcome.max_wait_ms, degraded, outcome.error
        )
        if outcome.hold is not None:
            decision._lease = self._make_lease(chain, parts, "rollback", outcome.hold, degraded=degraded)
        elif options.on_lost is not None and decision.lease is not None:
            decision.lease._on_lost = options.on_lost  # for slots that it may take later
        return decision

    def try_acquire_each(self, asks: Asks, *, on_unavailable: OnUnavailable | None = None) -> list[Decision[SyncLease]]:
        """Many decisions in one call to the store, each by itself, as if asked for one after the other.

        An element that is a list of asks passes or fails as a whole; its decision has a lease for each (`leases`).
        One whose stored state is corrupt does not pass, and its decision says why (`error`).
        """
        return self._take_each(check_asks(asks), on_unavailable)

    def _take_each_watched(
        self, asks: Sequence[Ask | Sequence[Ask]], on_unavailable: OnUnavailable | None
    ) -> list[Decision[SyncLease]]:
        with Deciding(self._watchers, named(self, asks)) as deciding:
            decisions = self._take_each_unwatched(asks, on_unavailable)
            deciding.over(outcomes(asks, decisions))
            return decisions

    def _take_each_unwatched(
        self, asks: Sequence[Ask | Sequence[Ask]], on_unavailable: OnUnavailable | None
    ) -> list[Decision[SyncLease]]:
        members = None if on_unavailable or self._take is None else known_members(self, asks)
        if members is not None:
            return decided_at_once(self, members)
        options = PLAIN if on_unavailable is None else Options(on_unavailable=on_unavailable)
        return [self._each(one) for one in run(take_each_plan(self, asks, options), self._perform)]

    def _each(self, taken: Taken) -> Decision[SyncLease]:
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
        on_lost: Callable[[SyncLease], object] | None = None,
    ) -> AbstractContextManager[SyncLease]:
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
        on_lost: Callable[[SyncLease], object] | None = None,
    ) -> AbstractContextManager[dict[str, SyncLease]]:
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

    def close(self) -> None:
        """Let go of the store. Idempotent."""
        if not self._closed:
            self._closed = True
            self._renewal.close(self._store_timeout)
            self._store.close()

    def __enter__(self) -> SyncRateLimiter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Acquire(NotEntered, SyncOnly, AbstractContextManager[SyncLease]):
    written = "acquire()"

    def __init__(self, limiter: SyncRateLimiter, wish: Wish, options: Options, on_error: OnError) -> None:
        self._limiter = limiter
        self._wish = wish
        self._options = options
        self._on_error = on_error
        self._lease: SyncLease | None = None

    def __enter__(self) -> SyncLease:
        decision = self._limiter._decide(*self._wish, self._options)
        self._lease = decision._take_lease(self._on_error)
        if self._lease is None:
            raise RateLimitExceeded(decision.statuses)
        return self._lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._lease is not None
        self._lease.__exit__(kind, error, traceback)


class _AcquireMany(NotEntered, SyncOnly, AbstractContextManager[dict[str, SyncLease]]):
    written = "acquire_many()"

    def __init__(
        self,
        limiter: SyncRateLimiter,
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
        self._leases: dict[str, SyncLease] = {}

    def __enter__(self) -> dict[str, SyncLease]:
        plan = dimensions.take_many_plan(self._limiter, self._consume, self._limits, self._options)
        outcomes = run(plan, self._limiter._perform)
        self._leases = {
            dimension: self._limiter._make_lease(
                outcome.chain, outcome.parts, self._on_error, outcome.hold, degraded=outcome.degraded
            )
            for dimension, outcome in outcomes.items()
        }
        return self._leases

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        run(dimensions.leave_all_plan(self._leases.values(), error), self._limiter._perform)
