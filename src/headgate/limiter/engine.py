"""The engine: the state of a limiter, and the interface that plans are written against.

A plan gets the engine as its first argument, and uses its public names only. `TaskEngine` and `ThreadEngine` perform
the calls of plans; the limiter classes on top have signatures and docstrings.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import unwrap
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from ..core.decide import Answer, Parts, Request
from ..core.errors import LimiterClosed, Unanswered, ValidationError
from ..core.limit import Limit, by_name
from ..core.names import REGISTRY, check_namespace, shown_url
from ..core.units import MILLI
from ..core.usage import DAY_MS
from ..plan import Plan, StoreCall
from ..stores.contract import AsyncStore, Store
from .acquire.breaker import Breaker
from .acquire.chain import ONE_OF_EACH, Chain
from .acquire.decision import Decision, JointDecision
from .acquire.fallback import Fallback
from .acquire.group import Ask, AskOutcome, Group, Member, Settled
from .acquire.options import OnError, Options, check_on_unavailable
from .acquire.prefetch import Slices, check_prefetch
from .acquire.slot_queue import Bell, SlotQueues
from .clock import GLANCE_SECONDS, Clock, SystemClock, boot_ms
from .config.cache import ConfigCache
from .ids import to_stored_id
from .leases.held_slots import HeldSlots
from .observe.audit import check_actor, os_user
from .observe.observers import Event, Observers
from .observe.thresholds import crossings, tell_plan

if TYPE_CHECKING:
    from .leases.lease import BaseLease

_MOST_DAYS = 3660


def _check_seconds(value: Any, what: str, *, zero: bool) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not (0 <= value < float("inf")) or (value == 0 and not zero):
        raise ValidationError(f"{what} must be a number of seconds{'' if zero else ' above zero'}, not {value!r}")
    return float(value)


def _check_days(value: Any, what: str) -> int:
    """As milliseconds."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_DAYS:
        raise ValidationError(f"{what} must be a whole number of days from 0 (none) to {_MOST_DAYS:,}, not {value!r}")
    return value * DAY_MS


def _check_limits(limits: Iterable[Limit] | None) -> Mapping[str, Limit]:
    named = {} if limits is None else by_name(limits)
    if limits is not None and not named:
        raise ValidationError("limits must not be empty: give one like Limit.per_minute('rpm', 100), or leave them out")
    return named


class Engine(ABC):
    """`limits`: the limiter's own. `warm`: the namespace is registered, so that an acquire may take the short cut.
    `entered_until`: until when, by time.monotonic(), the namespace is known to be active; 0 if it is not known."""

    lease_class: ClassVar[type[BaseLease]]

    def __init__(
        self,
        url: str,
        *,
        name: str,
        namespace: str,
        limits: Iterable[Limit] | None,
        clock: Clock | None,
        on_unavailable: str,
        coalesce: bool,
        config_cache_ttl: float,
        store_timeout: float,
        hash_entity_ids: bool | bytes,
        on_event: Callable[[Event], object] | None,
        usage_days: int,
        audit_days: int,
        actor: str | None,
        prefetch: float,
    ) -> None:
        self.url = url
        self._name = name
        self.namespace = check_namespace(namespace)
        self.limits = _check_limits(limits)
        self.on_unavailable = check_on_unavailable(on_unavailable)
        self.coalesce = bool(coalesce)
        self.store_timeout = _check_seconds(store_timeout, "store_timeout", zero=False)
        if clock is not None and not callable(getattr(clock, "now_ms", None)):
            raise ValidationError(f"clock must have a method now_ms(), and {clock!r} has none")
        self.clock: Clock = clock or SystemClock()
        self.clock_given = clock is not None
        # A plan calls it once, and then only has the stored id.
        self.stored_id = to_stored_id(hash_entity_ids)
        self.hashes_ids = hash_entity_ids is not False
        ttl = _check_seconds(config_cache_ttl, "config_cache_ttl", zero=True)
        self.cache = ConfigCache(
            self.namespace, ttl, clock.now_ms if clock else None, self.clock.now_ms, self.stored_id
        )
        self.chain_of = self.cache.get
        self.clock_ms = self.clock.now_ms
        self.usage_ms = _check_days(usage_days, "usage_days")
        self.audit_ms = _check_days(audit_days, "audit_days")
        self.actor = os_user() if actor is None else check_actor(actor)
        self.entered_until = 0.0
        self.warm = False
        self.closed = False
        self.observers = Observers(on_event)
        self.breaker = Breaker(str(shown_url(url)), self.observers)
        self.fallback = Fallback(self.namespace)
        self.store: Store | AsyncStore
        self.slot_queues: SlotQueues
        self.new_bell: Callable[[], Bell]
        self.renewal: Any
        self.prefetch_ms = check_prefetch(prefetch)
        self.slices: Slices | None = None
        self.take: Callable[[Sequence[str], Parts, int], Answer] | None = None  # of a store in this process
        self.open()
        self.wire()
        if self.prefetch_ms and self.take is None:
            now = clock.now_ms if clock else boot_ms
            self.slices = Slices(
                self.prefetch_ms,
                now,
                self.cache,
                self.new_bell,
                2 * self.store_timeout,
                self.watch_slices,
                self.clock.now_ms,
            )

    @abstractmethod
    def open(self) -> None:
        """Open the store, without waiting for it."""

    @abstractmethod
    def wire(self) -> None:
        """Choose how to call the store: directly, or through the observers if there are watchers."""

    @abstractmethod
    def beside(self, plan: Plan[None]) -> None:
        """Run a plan that nothing waits for."""

    # What plans need

    def policy(self, chain: Chain | None, on_unavailable: str | None) -> str:
        """What to do when the store is unavailable: as the call says, else as is stored, else as the limiter says."""
        stored = chain.shape.on_unavailable if chain else self.cache.on_unavailable
        return on_unavailable or stored or self.on_unavailable

    def keep(self, hold: HeldSlots) -> HeldSlots:
        """Renew what a lease holds until it ends."""
        self.renewal.chores.add(hold)
        self.renewal.wake(hold.due)
        return hold

    def let_go(self, hold: HeldSlots) -> None:
        hold.ended = True
        self.renewal.chores.drop(hold)

    def watch_slices(self) -> None:
        """There is a new slice, and what it has left at its end has to be given back."""
        self.renewal.wake(time.monotonic() + self.prefetch_ms / MILLI + GLANCE_SECONDS)

    def count_instances(self) -> None:
        """Count the limiters that share the namespace, from now on."""
        if self.renewal.chores.count():
            self.renewal.wake(0.0)

    def leave(self, namespace: str) -> None:
        """Forget what is known of a namespace, because it has changed."""
        if namespace == self.namespace:
            self.entered_until = 0.0
            self.warm = False
            self.cache.clear()

    # What both engines do

    def now_ms(self) -> int | None:
        """None: the store's own clock decides."""
        return None if self.store.own_clock and not self.clock_given else self.clock.now_ms()

    def check_open(self) -> None:
        if self.closed:
            raise LimiterClosed(f"this {self._name} for {shown_url(self.url)!r} is closed; make a new one")

    def must_enter(self, call: StoreCall[Any]) -> bool:
        """Whether a call is about the namespace, and the namespace has to be checked before it."""
        if time.monotonic() < self.entered_until:
            return False
        place = call.place()
        return bool(place) and not place.startswith(f"{REGISTRY}/")

    def make_lease(
        self, chain: Chain, parts: Parts | None, on_error: OnError, hold: HeldSlots | None = None, *, degraded: bool
    ) -> Any:
        lease = self.lease_class(self, chain, parts, on_error, degraded=degraded)
        if hold is not None:
            lease._hold_on_to(hold)
        return lease

    def note_crossings(self, batch: Sequence[Request], results: Sequence[Answer | Unanswered]) -> None:
        """Tell of thresholds that the batch has brought the use of limits over."""
        crossed = [
            crossing
            for request, result in zip(batch, results)
            if isinstance(result, Answer)
            for crossing in crossings(request, result)
        ]
        if crossed:
            self.beside(tell_plan(self, crossed))

    def decision(self, outcome: AskOutcome, options: Options) -> Decision[Any]:
        if outcome.members:
            return JointDecision(self, outcome)
        decision: Decision[Any] = Decision(self, outcome.chain, outcome.parts, outcome.answer, outcome)
        if outcome.hold is not None or options.on_lost is not None:
            lease = decision.lease  # at once: what it holds may be lost before anyone looks at it
            if lease is not None and outcome.hold is None:
                lease._on_lost = options.on_lost  # for slots that it may take later
        return decision

    def decide_here(self, chain: Chain, parts: Parts) -> Decision[Any] | None:
        """Out of a slice, if there is one that covers the parts."""
        if self.slices is None:
            return None
        given = self.slices.give(chain.keys, parts)
        return None if given is None else Decision(self, chain, parts, given[1], None, given[0])

    def observed(self) -> bool:
        if not self.warm:
            self.observers.refresh()
        return self.observers.active

    def known(
        self, entity_id: str, resource: str, consume: Mapping[str, Any], limits: Iterable[Limit] | None
    ) -> tuple[Chain, Parts] | None:
        """The short cut past most of the plan, for a usual ask: for tokens, under cached limits without alerts. None if
        it has to be the plan."""
        chain = self.chain_of(entity_id, resource)
        if chain is None:
            return None
        if limits is not None:
            chain = chain.under(limits)
        if not chain.shape.is_plain:
            return None
        return chain, chain.parts(consume)

    def known_members(self, asks: Sequence[Ask | Sequence[Ask]]) -> list[Member] | None:
        """The same for the usual batch, of single asks. (Under "local", the plan counts the limiters.)"""
        members = []
        for ask in asks:
            if type(ask) is not Ask:
                return None
            consume = ONE_OF_EACH if ask.consume is None else ask.consume
            known = self.known(ask.entity_id, ask.resource, consume, ask.limits)
            if known is None or (known[0].shape.on_unavailable or self.on_unavailable) == "local":
                return None
            members.append(Member(*known))
        return members

    def take_each(self, members: Sequence[Member]) -> list[Decision[Any]]:
        """By a store in this process. To watchers, it is one call."""
        assert self.take is not None
        take, now_ms, began = unwrap(self.take), self.clock.now_ms(), perf_counter()
        decisions: list[Decision[Any]] = [
            Decision(self, chain, parts, take(chain.keys, parts, now_ms)) for chain, parts in members
        ]
        if self.observers.watched:
            self.observers.settled(len(members), perf_counter() - began, True)
        return decisions

    def decisions(
        self, members: Sequence[Member], results: Sequence[Answer | Unanswered]
    ) -> list[Decision[Any]] | None:
        """None if some have no answer: then the plan concludes."""
        answers = [result for result in results if isinstance(result, Answer)]
        if len(answers) < len(results):
            return None
        return [Decision(self, chain, parts, answer) for (chain, parts), answer in zip(members, answers)]


def settled_groups(
    asks: Sequence[Any], members: Sequence[Member], results: Sequence[Answer | Unanswered], options: Options
) -> list[Group]:
    """Single asks that were settled by the short cut, some without an answer."""
    groups = []
    for ask, member, result in zip(asks, members, results):
        group = Group((ask._replace(consume=ONE_OF_EACH) if ask.consume is None else ask,))
        group.members.append(member)
        group.complete(options)
        group.result = Settled(result, time.monotonic()) if isinstance(result, Answer) else result
        groups.append(group)
    return groups
