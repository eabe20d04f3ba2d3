"""Many decisions in one call to the store, each by itself."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import unwrap
from itertools import repeat
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

from ...core.decide import Answer, Request
from ...core.errors import UNANSWERED, CorruptState, RateLimiterUnavailable, Unanswered, ValidationError
from ...core.limit import Limit
from ...core.names import parse_bucket_key
from ...plan import Plan, Settle, SettleEach, SettleHere
from ..base import BaseLimiter
from ..config.limits import chain_plan
from ..config.namespaces import register_plan
from ..leases.held_slots import HeldSlots, new_lease_id
from ..observe.watchers import Outcome as WatchedOutcome
from ..observe.watchers import outcome_of
from .chain import ONE_OF_EACH, Chain, Shape
from .decision import Decision
from .funnel import PLAIN, Options, Outcome, give_back_plan, last_known, tell
from .joint import Member, joint, own_outcome


class Ask(NamedTuple):
    """What `try_acquire` would be given. Nothing to consume: one of every limit there is."""

    entity_id: str
    resource: str
    consume: Mapping[str, Any] | None = None
    limits: Iterable[Limit] | None = None


Asks: TypeAlias = "Iterable[Ask | Sequence[Ask]]"


class Taken(NamedTuple):
    """What became of one element: of all its asks together, and of each of them."""

    whole: Outcome
    members: Sequence[Outcome]


_NO_CHAIN = Chain((), Shape([], []))


class _Element:
    """One ask, or several that pass or fail together."""

    __slots__ = ("asked_at", "asks", "chain", "members", "request", "result")

    def __init__(self, asks: Sequence[Ask]) -> None:
        self.asks = asks
        self.members: list[Member] = []
        self.chain = _NO_CHAIN
        self.request: Request | None = None
        self.result: Answer | Unanswered | None = None
        self.asked_at = 0.0

    def add(self, chain: Chain, ask: Ask) -> None:
        self.members.append(Member(chain, chain.parts(ONE_OF_EACH if ask.consume is None else ask.consume)))

    def complete(self) -> Request:
        """All members are known by now."""
        self.chain, parts = self.members[0] if len(self.members) == 1 else joint(self.members)
        lease_id = new_lease_id() if any(part.limit.is_concurrent for part in parts) else ""
        self.request = self.chain.request(parts, lease_id=lease_id)
        return self.request


def check_asks(asks: Any) -> list[Ask | Sequence[Ask]]:
    if isinstance(asks, (str, bytes, Ask)) or not isinstance(asks, Iterable):
        raise ValidationError(f"asks must be a list of Ask, or of lists of Ask, not {type(asks).__name__}")
    return list(asks)


def _asks_of(element: Ask | Sequence[Ask]) -> Sequence[Ask]:
    return (element,) if isinstance(element, Ask) else element


def named(limiter: BaseLimiter, asks: Sequence[Ask | Sequence[Ask]]) -> Iterator[tuple[str, str]]:
    """The stored id and the resource of each ask, one after the other, for those who watch."""
    stored_id = limiter._stored_id
    for element in asks:
        for ask in _asks_of(element):
            yield stored_id(ask.entity_id), ask.resource


def outcomes(asks: Sequence[Ask | Sequence[Ask]], decisions: Sequence[Decision[Any]]) -> Iterator[WatchedOutcome]:
    """What became of each ask, in the same order."""
    for element, decision in zip(asks, decisions):
        outcome = outcome_of(decision.allowed, decision.degraded, decision.error)
        if isinstance(element, Ask):
            yield outcome
        else:
            yield from repeat(outcome, len(element))


def known_members(limiter: Any, asks: Sequence[Ask | Sequence[Ask]]) -> list[Member] | None:
    """The short cut past most of the plan, for the batch that most batches are: of single asks, for tokens, under
    limits that were read a moment ago, and nobody is to be counted for the case that the store goes away."""
    get = limiter._cache.get
    if limiter._closed or limiter._watched:
        return None
    members = []
    for ask in asks:
        chain = get(ask.entity_id, ask.resource) if type(ask) is Ask else None
        if chain is None or type(ask) is not Ask:
            return None
        if ask.limits is not None:
            chain = chain.under(ask.limits)
        if chain.shape.has_slots or (chain.shape.on_unavailable or limiter.on_unavailable) == "local":
            return None
        members.append(Member(chain, chain.parts(ONE_OF_EACH if ask.consume is None else ask.consume)))
    return members


def decided_at_once(limiter: Any, members: Sequence[Member]) -> list[Decision[Any]]:
    """By a store in this process. For those who watch, it is one call."""
    take, now_ms, began = unwrap(limiter._take), limiter._clock.now_ms(), perf_counter()
    decisions = [Decision(limiter, chain, parts, take(chain.keys, parts, now_ms)) for chain, parts in members]
    if limiter._watchers:
        limiter._watchers.settled(len(members), perf_counter() - began, True)
    return decisions


def decided(
    limiter: Any, members: Sequence[Member], results: Sequence[Answer | Unanswered]
) -> list[Decision[Any]] | None:
    """None if some have no answer, which is a matter for `settled_each_plan`."""
    answers = [result for result in results if isinstance(result, Answer)]
    if len(answers) < len(results):
        return None
    return [Decision(limiter, chain, parts, answer) for (chain, parts), answer in zip(members, answers)]


def settled_each_plan(
    limiter: BaseLimiter,
    asks: Sequence[Any],
    members: Sequence[Member],
    results: Sequence[Answer | Unanswered],
) -> Plan[list[Taken]]:
    """What becomes of asks that the store has answered in part."""
    elements = []
    for ask, member, result in zip(asks, members, results):
        element = _Element((ask,))
        element.members.append(member)
        element.complete()
        element.result = result
        elements.append(element)
    return (yield from _taken_plan(limiter, elements, PLAIN))


def take_each_plan(limiter: BaseLimiter, asks: Sequence[Ask | Sequence[Ask]], options: Options) -> Plan[list[Taken]]:
    """Either every element is answered, or an error is raised and nothing stays taken."""
    began = time.monotonic()
    limiter._watched = limiter.events.watched() or not limiter._entered_until
    elements = [_Element(_checked(element)) for element in asks]
    for element in elements:
        yield from _find_plan(limiter, element, options)
    yield from _settle_plan([element for element in elements if element.request is not None])
    taken = yield from _taken_plan(limiter, elements, options)
    if limiter.events.watched():
        _tell_all(limiter, elements, taken, time.monotonic() - began)
    return taken


def _taken_plan(limiter: BaseLimiter, elements: Sequence[_Element], options: Options) -> Plan[list[Taken]]:
    taken: list[Taken] = []
    try:
        for element in elements:
            whole = yield from _outcome_plan(limiter, element, options)
            taken.append(_taken(limiter, element, whole))
    except GeneratorExit:
        raise
    except BaseException:
        for element in elements:
            if element.request is not None and isinstance(element.result, Answer) and element.result.allowed:
                yield from give_back_plan(limiter, element.request, None, Settle)
        for one in taken:
            for outcome in one.members:
                if outcome.hold is not None:
                    limiter._let_go(outcome.hold)
        raise
    return taken


def _checked(element: Any) -> Sequence[Ask]:
    group = [element] if isinstance(element, Ask) else element
    if isinstance(group, (list, tuple)) and group and all(isinstance(ask, Ask) for ask in group):
        return group
    raise ValidationError(f"an element of asks must be an Ask, or a list of some, not {type(element).__name__}")


def _find_plan(limiter: BaseLimiter, element: _Element, options: Options) -> Plan[None]:
    try:
        for ask in element.asks:
            element.add((yield from chain_plan(limiter, ask.entity_id, ask.resource, ask.limits)), ask)
        yield from register_plan(limiter)
    except UNANSWERED as why:
        element.result = why
    else:
        if limiter._policy(element.members[0].chain, options.on_unavailable) == "local":
            limiter._count_instances()
        element.complete()


def _settle_plan(elements: Sequence[_Element]) -> Plan[None]:
    asked_at = time.monotonic()
    requests = [element.request for element in elements if element.request is not None]
    results: Sequence[Answer | Unanswered]
    if len(requests) == 1:  # like any other: it may share its call with them
        try:
            results = [(yield from Settle(requests[0]))]
        except UNANSWERED as why:
            results = [why]
    else:
        results = (yield from SettleEach(requests)) if requests else []
    for element, result in zip(elements, results):
        element.result, element.asked_at = result, asked_at


def _outcome_plan(limiter: BaseLimiter, element: _Element, options: Options) -> Plan[Outcome]:
    here = isinstance(element.result, RateLimiterUnavailable)
    if isinstance(element.result, CorruptState):
        return Outcome(element.chain, error=element.result)
    if isinstance(element.result, RateLimiterUnavailable):
        policy = limiter._policy(element.members[0].chain if element.members else None, options.on_unavailable)
        if policy == "allow":
            return Outcome(Chain((), Shape([], [])), degraded=True)
        if policy == "block" or not _known_before(limiter, element):
            raise element.result
        element.asked_at = time.monotonic()
        answer = yield from SettleHere(element.complete())
    else:
        assert element.result is not None
        answer = element.result
    request = element.request
    assert request is not None
    hold = None
    if answer.allowed and request.lease_id:
        hold = limiter._keep(HeldSlots(request, element.asked_at, here=here))
    return Outcome(element.chain, request.parts, answer, 0, hold, here)


def _known_before(limiter: BaseLimiter, element: _Element) -> bool:
    for ask in element.asks[len(element.members) :]:
        consume = ONE_OF_EACH if ask.consume is None else ask.consume
        known = last_known(limiter, ask.entity_id, ask.resource, consume, ask.limits)
        if known is None:
            return False
        element.add(known, ask)
    return True


def _taken(limiter: BaseLimiter, element: _Element, whole: Outcome) -> Taken:
    if whole.answer is None or len(element.members) == 1:
        return Taken(whole, (whole,) * len(element.asks))
    return Taken(whole, [own_outcome(limiter, member, whole) for member in element.members])


def _tell_all(limiter: BaseLimiter, elements: Sequence[_Element], taken: Sequence[Taken], seconds: float) -> None:
    for element, one in zip(elements, taken):
        for ask, outcome in zip(element.asks, one.members):
            key = outcome.chain.keys[0] if outcome.chain.keys else ""
            stored_id = parse_bucket_key(key)[1] if key else limiter._stored_id(ask.entity_id)
            tell(limiter, stored_id, ask.resource, outcome, seconds)
