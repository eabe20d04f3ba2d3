"""The engine for threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

from ..core.decide import Answer, Request
from ..core.errors import HeadgateError, PartlyAnswered, RateLimiterUnavailable, Unanswered
from ..core.limit import Limit
from ..plan import (
    Call,
    Nap,
    Plan,
    Settle,
    SettleAll,
    SettleEach,
    SettleHere,
    SingleFlight,
    Sleep,
    StoreCall,
    Whole,
    run,
)
from ..stores import InProcessStore, open_store
from ..stores.contract import Store
from .acquire.coalesce import MAX_BATCH, settle_each
from .acquire.decision import Decision
from .acquire.funnel import conclude_plan, decide_plan
from .acquire.group import Ask, Member, as_groups, named
from .acquire.options import PLAIN, OnUnavailable, Options
from .acquire.prefetch import ahead_plan, beside_plan
from .acquire.slot_queue import SlotQueues
from .acquire.thread_coalescer import ThreadCoalescer
from .clock import GLANCE_SECONDS, SystemClock, sleep_on
from .config import namespaces
from .engine import Engine, settled_groups
from .leases.lease import SyncLease
from .leases.renewal import ThreadRenewal
from .single_flight import ThreadSingleFlight

T = TypeVar("T")


class ThreadEngine(Engine):
    store: Store
    lease_class = SyncLease

    def open(self) -> None:
        store = self.store = open_store(self.url, self.store_timeout)
        store.usage_ms = self.usage_ms
        self.new_bell = threading.Event
        self._single_flight = ThreadSingleFlight(10 * self.store_timeout)
        self.slot_queues = SlotQueues(
            self.new_bell, shared=not store.in_process, notifications=getattr(store, "notifications", None)
        )
        self.renewal = ThreadRenewal(self)
        self._settle: Callable[[Request], Answer]
        if store.in_process:
            self._settle = lambda request: self._ask((request,), self.now_ms())[0]
        elif self.coalesce:
            self._settle = ThreadCoalescer(self._settle_batch).settle
        else:
            self._settle = self._settle_alone

    def wire(self) -> None:
        store, observers = self.store, self.observers
        self._ask = observers.settling(store.settle) if observers.watched else store.settle
        if store.in_process:
            take = cast(InProcessStore, store).take
            self.take = observers.taking(take) if observers.watched else take

    # Performing the calls of plans

    def run(self, plan: Plan[T]) -> T:
        return run(plan, self.perform)

    def perform(self, call: Call[Any]) -> Any:
        self.check_open()
        if self.slices is not None:
            return run(beside_plan(self.slices, call), self._perform)
        return self._perform(call)

    def _perform(self, call: Call[Any]) -> Any:
        perform: Callable[..., Any] = self._PERFORM.get(type(call), ThreadEngine._call_store)
        return perform(self, call)

    def _settle_one(self, call: Settle) -> Answer:
        answer = self._settle(call.request)
        self.note_crossings((call.request,), (answer,))
        return answer

    def _settle_all(self, call: SettleAll) -> list[Answer]:
        answers: list[Answer] = []
        for start in range(0, len(call.batch), MAX_BATCH):
            answers += self._settle_batch(call.batch[start : start + MAX_BATCH])
        self.note_crossings(call.batch, answers)
        return answers

    def _settle_many(self, call: SettleEach) -> list[Answer | Unanswered]:
        results = settle_each(self._settle_batch, call.batch)
        self.note_crossings(call.batch, results)
        return results

    def _settle_here(self, call: SettleHere) -> Answer:
        return self.fallback.settle(call.request, self.clock.now_ms())

    def _nap(self, nap: Nap) -> None:
        nap.bell.wait(nap.seconds if isinstance(self.clock, SystemClock) else min(nap.seconds, GLANCE_SECONDS))
        nap.bell.clear()

    def _sleep(self, call: Sleep) -> None:
        sleep_on(self.clock, call.seconds)

    def _share(self, call: SingleFlight[Any]) -> Any:
        return self._single_flight.run(call.key, lambda: self.run(call.plan()))

    def _to_the_end(self, call: Whole[Any]) -> Any:
        return self.run(call.plan())

    def _call_store(self, call: StoreCall[Any]) -> Any:
        if self.must_enter(call):
            enter = partial(namespaces.enter_plan, self, register=call.writes)
            self.perform(SingleFlight(("enter", call.writes), enter))
        return self._guarded(getattr(self.store, call.method), *call.arguments(self.now_ms()))

    _PERFORM: ClassVar[dict[type[Call[Any]], Callable[..., Any]]] = {
        Settle: _settle_one,
        SettleAll: _settle_all,
        SettleEach: _settle_many,
        SettleHere: _settle_here,
        Nap: _nap,
        Sleep: _sleep,
        SingleFlight: _share,
        Whole: _to_the_end,
    }

    def _settle_batch(self, batch: Sequence[Request]) -> list[Answer]:
        return self._guarded(self._ask, batch, self.now_ms())

    def _settle_alone(self, request: Request) -> Answer:
        try:
            return self._settle_batch((request,))[0]
        except PartlyAnswered as partly:
            raise partly.first from None

    def _guarded(self, method: Callable[..., T], *arguments: Any) -> T:
        """Call the store, unless the breaker is open."""
        self.breaker.check()
        try:
            result = method(*arguments)
        except BaseException as error:
            self.breaker.ended(error)
            raise
        self.breaker.worked()
        return result

    def beside(self, plan: Plan[None]) -> None:
        """At once: a thread for it would cost more."""
        self.run(plan)

    # Deciding

    def decide(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, Any],
        limits: Iterable[Limit] | None,
        options: Options,
        *,
        observe: bool = True,
    ) -> Decision[SyncLease]:
        if options is PLAIN and self.warm and not (observe and self.observers.active):
            # The short cut past the plan, for the usual acquire.
            known = self.known(entity_id, resource, consume, limits)
            if known is not None:
                chain, parts = known
                if self.take is not None:
                    return Decision(self, chain, parts, self.take(chain.keys, parts, self.clock_ms()))
                if (here := self.decide_here(chain, parts)) is not None:
                    return here
                try:
                    if self.slices is not None:
                        answer = run(ahead_plan(self.slices, chain, parts), self._perform)
                    else:
                        answer = self._settle(chain.plain_request(parts))
                    return Decision(self, chain, parts, answer)
                except RateLimiterUnavailable as unavailable:
                    asks = (Ask(entity_id, resource, consume, limits),)
                    groups = settled_groups(asks, (Member(chain, parts),), (unavailable,), options)
                    (outcome,) = self.run(conclude_plan(self, groups, options))
                    return self.decision(outcome, options)
        elif observe and self.observed():
            ask = Ask(entity_id, resource, consume, limits)
            with self.observers.deciding(named(self, (ask,))) as deciding:
                decision = self.decide(entity_id, resource, consume, limits, options, observe=False)
                deciding.decided((decision,))
                return decision
        return self.decide_group([Ask(entity_id, resource, consume, limits)], options, observe=False)

    def decide_group(self, asks: Sequence[Ask], options: Options, *, observe: bool = True) -> Decision[SyncLease]:
        """All of the asks, or none. Corrupt state is an error."""
        if observe and self.observed():
            with self.observers.deciding(named(self, asks)) as deciding:
                decision = self.decide_group(asks, options, observe=False)
                deciding.decided((decision,))
                return decision
        (outcome,) = self.run(decide_plan(self, [asks], options))
        if outcome.error is not None:
            raise outcome.error
        return self.decision(outcome, options)

    def decide_each(
        self, asks: Sequence[Ask | Sequence[Ask]], on_unavailable: OnUnavailable | None, *, observe: bool = True
    ) -> list[Decision[SyncLease]]:
        if observe and self.observed():
            with self.observers.deciding(named(self, asks)) as deciding:
                decisions = self.decide_each(asks, on_unavailable, observe=False)
                deciding.decided(decisions)
                return decisions
        options = PLAIN if on_unavailable is None else Options(on_unavailable=on_unavailable)
        if options is PLAIN and self.warm:
            members = None if self.take is None else self.known_members(asks)
            if members is not None:
                return self.take_each(members)
        outcomes = self.run(decide_plan(self, as_groups(asks), options))
        return [self.decision(outcome, options) for outcome in outcomes]

    def close(self) -> None:
        if not self.closed:
            self.closed, self.warm = True, False
            if self.slices is not None and (back := self.slices.surrender()):
                with suppress(HeadgateError):  # it is lost
                    settle_each(self._settle_batch, back.requests)
            self.renewal.close(self.store_timeout)
            self.store.close()
