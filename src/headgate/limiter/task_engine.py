"""The engine for tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

from ..core.decide import Answer, Request
from ..core.errors import HeadgateError, RateLimiterUnavailable, Unanswered
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
    arun,
    to_the_end,
)
from ..stores import CancelledLate, InProcessStore, OffloadedStore, open_async_store
from ..stores.contract import AsyncStore, Landed, OverlappingStore, Rest
from .acquire.coalesce import MAX_BATCH, settle_each
from .acquire.decision import Decision
from .acquire.funnel import conclude_plan, decide_plan
from .acquire.group import Ask, Member, as_groups, named
from .acquire.options import PLAIN, OnUnavailable, Options
from .acquire.prefetch import ahead_plan, beside_plan
from .acquire.slot_queue import SlotQueues
from .acquire.task_coalescer import TaskCoalescer
from .clock import GLANCE_SECONDS, SystemClock, asleep_on, rings
from .config import namespaces
from .engine import Engine, settled_groups
from .leases.lease import Lease
from .leases.renewal import TaskRenewal
from .single_flight import TaskSingleFlight

T = TypeVar("T")
R = TypeVar("R")


class TaskEngine(Engine):
    store: AsyncStore
    lease_class = Lease

    def open(self) -> None:
        store = self.store = open_async_store(self.url, self.store_timeout)
        store.usage_ms = self.usage_ms
        self.new_bell = asyncio.Event
        self._single_flight = TaskSingleFlight()
        in_process = isinstance(store, OffloadedStore) and store.in_process
        self.slot_queues = SlotQueues(
            self.new_bell, shared=not in_process, notifications=getattr(store, "notifications", None)
        )
        self.renewal = TaskRenewal(self)
        self._background: set[asyncio.Task[Any]] = set()
        self._enter: Callable[[], object] = asyncio.get_running_loop
        self._drain: Callable[[float], Coroutine[Any, Any, None]] | None = None
        self._settle: Callable[[Request], Coroutine[Any, Any, Answer]]
        self._settle_each: Callable[[Sequence[Request]], Coroutine[Any, Any, list[Answer | Unanswered]]]
        if isinstance(store, OffloadedStore) and store.in_process:
            self._settle = _at_once(lambda request: self._ask_here((request,), self.now_ms())[0])
            self._settle_each = _at_once(
                lambda batch: settle_each(lambda some: self._ask_here(some, self.now_ms()), batch)
            )
        else:
            starts = self._start_batch if hasattr(store, "start") else None
            coalescer = TaskCoalescer(self._settle_batch, together=self.coalesce, start=starts)
            self._settle, self._settle_each = coalescer.settle, coalescer.settle_each
            self._submit, self._withdraw = coalescer.submit, coalescer.let_go
            self._enter, self._drain = coalescer.enter, coalescer.drain

    def wire(self) -> None:
        store, observers = self.store, self.observers
        self._ask = observers.settling_later(store.settle) if observers.watched else store.settle
        if isinstance(store, OffloadedStore) and store.in_process:
            here = cast(InProcessStore, store.blocking)
            self._ask_here = observers.settling(here.settle) if observers.watched else here.settle
            self.take = observers.taking(here.take) if observers.watched else here.take

    # Performing the calls of plans

    async def run(self, plan: Plan[T]) -> T:
        return await arun(plan, self.perform)

    async def perform(self, call: Call[Any]) -> Any:
        self.check_open()
        if self.slices is not None:
            return await arun(beside_plan(self.slices, call), self._perform)
        return await self._perform(call)

    async def _perform(self, call: Call[Any]) -> Any:
        perform: Callable[..., Coroutine[Any, Any, Any]] = self._PERFORM.get(type(call), TaskEngine._call_store)
        return await perform(self, call)

    async def _settle_one(self, call: Settle) -> Answer:
        answer = await self._settle(call.request)
        self.note_crossings((call.request,), (answer,))
        return answer

    async def _settle_all(self, call: SettleAll) -> list[Answer]:
        answers: list[Answer] = []
        try:
            for start in range(0, len(call.batch), MAX_BATCH):
                answers += await self._settle_batch(call.batch[start : start + MAX_BATCH])
        except CancelledLate as late:
            raise late.own from None
        self.note_crossings(call.batch, answers)
        return answers

    async def _settle_many(self, call: SettleEach) -> list[Answer | Unanswered]:
        results = await self._settle_each(call.batch)
        self.note_crossings(call.batch, results)
        return results

    async def _settle_here(self, call: SettleHere) -> Answer:
        return self.fallback.settle(call.request, self.clock.now_ms())

    async def _nap(self, nap: Nap) -> None:
        seconds = nap.seconds if isinstance(self.clock, SystemClock) else min(nap.seconds, GLANCE_SECONDS)
        await rings(nap.bell, seconds)
        nap.bell.clear()

    async def _sleep(self, call: Sleep) -> None:
        await asleep_on(self.clock, call.seconds)

    async def _share(self, call: SingleFlight[Any]) -> Any:
        return await self._single_flight.run(call.key, lambda: self.run(call.plan()))

    async def _to_the_end(self, call: Whole[Any]) -> Any:
        return await to_the_end(self.run(call.plan()))

    async def _call_store(self, call: StoreCall[Any]) -> Any:
        self._enter()
        if self.must_enter(call):
            enter = partial(namespaces.enter_plan, self, register=call.writes)
            await self.perform(SingleFlight(("enter", call.writes), enter))
        return await self._guarded(getattr(self.store, call.method), *call.arguments(self.now_ms()))

    _PERFORM: ClassVar[dict[type[Call[Any]], Callable[..., Coroutine[Any, Any, Any]]]] = {
        Settle: _settle_one,
        SettleAll: _settle_all,
        SettleEach: _settle_many,
        SettleHere: _settle_here,
        Nap: _nap,
        Sleep: _sleep,
        SingleFlight: _share,
        Whole: _to_the_end,
    }

    async def _settle_batch(self, batch: Sequence[Request]) -> list[Answer]:
        return await self._guarded(self._ask, batch, self.now_ms())

    def _start_batch(self, batch: Sequence[Request], landed: Landed) -> bool:
        """Send it at once, if all is well and nothing has to be measured."""
        if self.breaker.failing or self.observers.watched:
            return False

        def arrived(answers: Sequence[Answer | HeadgateError], rest: Rest | None) -> None:
            landed(answers, None if rest is None else lambda: self._told(rest()))

        return cast(OverlappingStore, self.store).start(batch, self.now_ms(), arrived)

    async def _guarded(self, method: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Call the store, unless the breaker is open."""
        self.breaker.check()
        return await self._told(method(*arguments))

    async def _told(self, answering: Awaitable[T]) -> T:
        """Tell the breaker what became of a call."""
        try:
            result = await answering
        except BaseException as error:
            self.breaker.ended(error)
            raise
        self.breaker.worked()
        return result

    def beside(self, plan: Plan[None]) -> None:
        self.in_background(self.run(plan))

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._background.discard)

    # Deciding

    async def decide(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, Any],
        limits: Iterable[Limit] | None,
        options: Options,
        *,
        observe: bool = True,
    ) -> Decision[Lease]:
        if options is PLAIN and self.warm and not (observe and self.observers.active):
            # The short cut past the plan, for the usual acquire.
            known = self.known(entity_id, resource, consume, limits)
            if known is not None:
                chain, parts = known
                if self.take is not None:
                    return Decision(self, chain, parts, self.take(chain.keys, parts, self.clock_ms()))
                if (here := self.decide_here(chain, parts)) is not None:
                    return here
                future = None
                try:
                    if self.slices is not None:
                        answer = await arun(ahead_plan(self.slices, chain, parts), self._perform)
                    else:
                        request = chain.plain_request(parts)
                        future = self._submit(request)
                        answer = await future
                    return Decision(self, chain, parts, answer)
                except asyncio.CancelledError:
                    if future is not None:
                        await self._withdraw({future: request})
                    raise
                except RateLimiterUnavailable as unavailable:
                    asks = (Ask(entity_id, resource, consume, limits),)
                    groups = settled_groups(asks, (Member(chain, parts),), (unavailable,), options)
                    (outcome,) = await self.run(conclude_plan(self, groups, options))
                    return self.decision(outcome, options)
        elif observe and self.observed():
            ask = Ask(entity_id, resource, consume, limits)
            with self.observers.deciding(named(self, (ask,))) as deciding:
                decision = await self.decide(entity_id, resource, consume, limits, options, observe=False)
                deciding.decided((decision,))
                return decision
        return await self.decide_group([Ask(entity_id, resource, consume, limits)], options, observe=False)

    async def decide_group(self, asks: Sequence[Ask], options: Options, *, observe: bool = True) -> Decision[Lease]:
        """All of the asks, or none. Corrupt state is an error."""
        if observe and self.observed():
            with self.observers.deciding(named(self, asks)) as deciding:
                decision = await self.decide_group(asks, options, observe=False)
                deciding.decided((decision,))
                return decision
        (outcome,) = await self.run(decide_plan(self, [asks], options))
        if outcome.error is not None:
            raise outcome.error
        return self.decision(outcome, options)

    async def decide_each(
        self, asks: Sequence[Ask | Sequence[Ask]], on_unavailable: OnUnavailable | None, *, observe: bool = True
    ) -> list[Decision[Lease]]:
        if observe and self.observed():
            with self.observers.deciding(named(self, asks)) as deciding:
                decisions = await self.decide_each(asks, on_unavailable, observe=False)
                deciding.decided(decisions)
                return decisions
        options = PLAIN if on_unavailable is None else Options(on_unavailable=on_unavailable)
        if options is PLAIN and self.warm:
            members = self.known_members(asks)
            if members is not None and self.take is not None:
                return self.take_each(members)
            if members and self.slices is None:
                results = await self._settle_each([chain.plain_request(parts) for chain, parts in members])
                if (answered := self.decisions(members, results)) is not None:
                    return answered
                groups = settled_groups(asks, members, results, options)
                return [self.decision(one, options) for one in await self.run(conclude_plan(self, groups, options))]
        outcomes = await self.run(decide_plan(self, as_groups(asks), options))
        return [self.decision(outcome, options) for outcome in outcomes]

    async def close(self) -> None:
        if not self.closed:
            if self._background:  # alerts that are still to be written
                await asyncio.wait(self._background, timeout=self.store_timeout)
            self.closed, self.warm = True, False
            try:
                if self.slices is not None and (back := self.slices.surrender()):
                    await self._settle_each(back.requests)
                await self.renewal.close()
                if self._drain is not None:
                    await self._drain(2 * self.store_timeout)
            finally:  # if this task is cancelled too
                await self.store.close()


def _at_once(settle: Callable[[R], T]) -> Callable[[R], Coroutine[Any, Any, T]]:
    async def settled(request: R) -> T:
        return settle(request)

    return settled
