"""Acquiring: taking, waiting, and what happens instead when the store is away."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ...core.decide import Answer, Parts, Request, refund
from ...core.errors import UNANSWERED, CorruptState, RateLimiterUnavailable, ValidationError
from ...core.limit import DEFAULT_TTL_SECONDS, Limit
from ...core.names import bucket_key, check_resource
from ...core.units import MILLI, from_milli, seconds_to_ms, wait_to_ms
from ...plan import Call, Nap, Plan, Settle, SettleHere, Sleep, Whole
from ..base import BaseLimiter, check_on_unavailable
from ..config.levels import merge
from ..config.limits import chain_plan
from ..config.namespaces import register_plan
from ..leases.held_slots import HeldSlots, LeaseRecord, OnLost, mark, new_lease_id
from .chain import Chain, Shape, own_amounts
from .slot_queue import Wish as Places
from .slot_queue import pause, slots_of

log = logging.getLogger("headgate")


class Options:
    """How to acquire, checked."""

    __slots__ = ("max_wait_ms", "on_lost", "on_unavailable", "record_lease", "restore_on_expiry", "ttl_ms")

    def __init__(
        self,
        max_wait: float = 0,
        on_unavailable: str | None = None,
        record_lease: bool = False,
        restore_on_expiry: bool = False,
        lease_ttl: float = DEFAULT_TTL_SECONDS,
        on_lost: OnLost | None = None,
    ) -> None:
        self.max_wait_ms = wait_to_ms(max_wait, "max_wait")
        self.on_unavailable = None if on_unavailable is None else check_on_unavailable(on_unavailable)
        self.record_lease = bool(record_lease)
        self.restore_on_expiry = bool(restore_on_expiry)
        self.ttl_ms = seconds_to_ms(lease_ttl, "lease_ttl")
        self.on_lost = on_lost
        if restore_on_expiry and not record_lease:
            raise ValidationError("restore_on_expiry needs record_lease=True: only what is recorded can be restored")
        if on_lost is not None and not callable(on_lost):
            raise ValidationError(f"on_lost must be a function that takes the lease, not {on_lost!r}")


PLAIN = Options()
Wish: TypeAlias = "tuple[str, str, Mapping[str, Any], Iterable[Limit] | None]"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a wish. No answer: the store is away and that is allowed, or there is an error."""

    chain: Chain
    parts: Parts | None = None
    answer: Answer | None = None
    max_wait_ms: int = 0
    hold: HeldSlots | None = None
    degraded: bool = False
    waited: bool = False
    error: CorruptState | None = None


def told_plan(
    limiter: BaseLimiter,
    entity_id: str,
    resource: str,
    consume: Mapping[str, Any],
    limits: Iterable[Limit] | None,
    options: Options,
) -> Plan[Outcome]:
    """`take_plan`, and those who listen are told what became of it."""
    began = time.monotonic()
    limiter._watched = limiter.events.watched() or not limiter._entered_until
    outcome = yield from take_plan(limiter, entity_id, resource, consume, limits, options)
    if limiter.events.watched():
        tell(limiter, limiter._stored_id(entity_id), resource, outcome, time.monotonic() - began)
    return outcome


def tell(limiter: BaseLimiter, stored_id: str, resource: str, outcome: Outcome, seconds: float) -> None:
    answer = outcome.answer
    if outcome.error is not None:
        return
    fields: dict[str, Any] = {"entity_id": stored_id, "resource": resource, "degraded": outcome.degraded}
    fields["consume"] = {name: from_milli(milli) for name, milli in own_amounts(outcome.parts or ()).items()}
    if answer is not None and not answer.allowed:
        limiter.events.tell("acquire.refused", **fields, retry_after_ms=answer.wait_ms)
        return
    if outcome.waited:
        limiter.events.tell("acquire.waited", **fields, waited_seconds=round(seconds, 3))
    limiter.events.tell("acquire.granted", **fields)


def take_plan(
    limiter: BaseLimiter,
    entity_id: str,
    resource: str,
    consume: Mapping[str, Any],
    limits: Iterable[Limit] | None,
    options: Options,
) -> Plan[Outcome]:
    """Take, and sleep if tokens were taken from the future. Whatever ends the sleep early gives them back."""
    chain = None
    try:
        chain = yield from chain_plan(limiter, entity_id, resource, limits)
        parts = chain.parts(consume)
        yield from register_plan(limiter)
        if limiter._policy(chain, options.on_unavailable) == "local":
            limiter._count_instances()
        return (yield from take_chain_plan(limiter, chain, parts, options))
    except RateLimiterUnavailable as away:
        return (yield from away_plan(limiter, away, chain, entity_id, resource, consume, limits, options))


def away_plan(
    limiter: BaseLimiter,
    away: RateLimiterUnavailable,
    chain: Chain | None,
    entity_id: str,
    resource: str,
    consume: Mapping[str, Any],
    limits: Iterable[Limit] | None,
    options: Options,
) -> Plan[Outcome]:
    """What the outage policy says. Under "local" the limits are those known from before."""
    policy = limiter._policy(chain, options.on_unavailable)
    if policy == "allow":
        return Outcome(chain or Chain((), Shape([], [])), degraded=True)
    if policy == "local" and chain is None:
        chain = last_known(limiter, entity_id, resource, consume, limits)
    if policy == "block" or chain is None:
        raise away
    return (yield from take_chain_plan(limiter, chain, chain.parts(consume), options, here=True))


def last_known(
    limiter: BaseLimiter, entity_id: str, resource: str, consume: Mapping[str, Any], limits: Iterable[Limit] | None
) -> Chain | None:
    """As it was before the store went away. Nothing was read: the limiter's own limits, if they are all it takes."""
    known, own = limiter._cache.last_known(entity_id, resource), limiter._limits
    if known is None:
        if limits is None and not (own and isinstance(consume, Mapping) and consume.keys() <= own.keys()):
            return None
        key = bucket_key(limiter.namespace, limiter._stored_id(entity_id), check_resource(resource))
        known = Chain((key,), Shape([own], [1], merge((), own).sources, own=own))
    return known if limits is None else known.under(limits)


def take_chain_plan(
    limiter: BaseLimiter, chain: Chain, parts: Parts, options: Options, *, here: bool = False
) -> Plan[Outcome]:
    """`here`: in this process, the store being away."""
    recorded = options.record_lease and not here
    if recorded:
        parts = (*parts, mark(options.ttl_ms))
    lease_id = new_lease_id() if any(part.limit.is_concurrent for part in parts) else ""
    request = chain.request(parts, options.max_wait_ms, lease_id)
    settle = SettleHere if here else Settle
    answer, asked_at, max_wait_ms, stood_in_line = yield from _settle_plan(limiter, request, settle)
    if not answer.allowed or not (lease_id or answer.wait_ms):
        return Outcome(chain, parts, answer, max_wait_ms, degraded=here)
    hold = None
    if lease_id:
        hold = limiter._keep(HeldSlots(request, asked_at, options.on_lost, here=here))
    try:
        if answer.wait_ms:
            with limiter._slot_queues.asleep():
                yield from Sleep(answer.wait_ms / MILLI)
        if hold is not None and recorded:
            hold.record = LeaseRecord(limiter.namespace, hold, restore=options.restore_on_expiry)
            yield from hold.record.write_plan(chain, parts)
    except GeneratorExit:
        raise
    except BaseException:
        if hold is not None and hold.record is not None:
            yield from Whole(partial(give_back_plan, limiter, request, hold, settle))
        else:
            yield from give_back_plan(limiter, request, hold, settle)
        raise
    waited = stood_in_line or bool(answer.wait_ms)
    return Outcome(chain, parts, answer, max_wait_ms, hold, here, waited)


def _slot_parts(request: Request) -> Parts:
    return tuple(part for part in request.parts if part.limit.is_concurrent)


def give_back_plan(
    limiter: BaseLimiter, request: Request, hold: HeldSlots | None, settle: Callable[[Request], Call[Answer]]
) -> Plan[None]:
    if hold is not None:
        limiter._let_go(hold)
        record = hold.record
        if record is not None and record.restore and not (yield from record.forget_plan()):
            # Its tokens come back with `reconcile`. To give them back here too would be once too often.
            request = request._replace(parts=_slot_parts(request))
    try:
        yield from settle(refund(request))
    except UNANSWERED as why:
        log.warning("a reservation could not be given back: %s", why)
    limiter._slot_queues.given_back(slots_of(request))


def _settle_plan(
    limiter: BaseLimiter, request: Request, settle: Callable[[Request], Call[Answer]]
) -> Plan[tuple[Answer, float, int, bool]]:
    """The answer, when it was asked for, the wait that was left then, and whether one had to wait for slots.

    Tokens are reserved.
    """
    wish = slots_of(request) if request.max_wait_ms and request.lease_id else None
    if not wish:
        asked_at = time.monotonic()
        return (yield from settle(request)), asked_at, request.max_wait_ms, False
    if settle is Settle and limiter._slot_queues.place_ms():
        return (yield from _queue_plan(limiter, request))
    return (yield from _line_plan(limiter, request, wish, settle))


def _line_plan(
    limiter: BaseLimiter, request: Request, wish: Places, settle: Callable[[Request], Call[Answer]]
) -> Plan[tuple[Answer, float, int, bool]]:
    """In the line of this process."""
    asked_at = time.monotonic()
    answer = None
    if not limiter._slot_queues.waiting(wish):
        answer = yield from settle(request)
        if not _lacks_only_slots(request, answer):
            return answer, asked_at, request.max_wait_ms, False
    left = _Left(limiter, request, asked_at)
    ticket = limiter._slot_queues.join(wish)
    try:
        while True:
            left_ms = left.ms()
            if left_ms and (answer is not None or not ticket.first):
                seconds = pause(left.waited_seconds) if ticket.first else left_ms / MILLI
                yield from Nap(ticket.bell, min(seconds, left_ms / MILLI))
                answer = None
                continue
            asked_at = time.monotonic()
            request_now = request._replace(max_wait_ms=left_ms)
            answer = yield from settle(request_now)
            if not left_ms or not _lacks_only_slots(request_now, answer):
                return answer, asked_at, left_ms, True
    finally:
        limiter._slot_queues.leave(wish, ticket)


def _queue_plan(limiter: BaseLimiter, request: Request) -> Plan[tuple[Answer, float, int, bool]]:
    """In the queue of the store. Whatever ends the wait gives the place up."""
    lines, asked_at = limiter._slot_queues, time.monotonic()
    asked_as = lines.listener()
    left = _Left(limiter, request, asked_at)
    try:
        answer = yield from Settle(request._replace(place_ms=lines.place_ms()))
        if not _lacks_only_slots(request, answer):
            return answer, asked_at, request.max_wait_ms, False
        with lines.queued(request.lease_id, asked_as) as waiter:
            while True:
                left_ms = left.ms()
                if left_ms:
                    seconds = waiter.pause(answer.wait_ms, left.waited_seconds)
                    yield from Nap(waiter.bell, min(seconds, left_ms / MILLI))
                    left_ms = left.ms()
                asked_at = time.monotonic()
                request_now = request._replace(max_wait_ms=left_ms, place_ms=lines.place_ms() if left_ms else 0)
                answer = yield from Settle(request_now)
                if not left_ms or not _lacks_only_slots(request_now, answer):
                    return answer, asked_at, left_ms, True
    except (GeneratorExit, RateLimiterUnavailable):
        raise  # the place expires
    except BaseException:
        yield from give_back_plan(limiter, request._replace(parts=_slot_parts(request)), None, Settle)
        raise


class _Left:
    """How much of `max_wait` is left. A clock may stand still, or be set back: no wait is longer than was asked for."""

    def __init__(self, limiter: BaseLimiter, request: Request, began: float) -> None:
        self._clock = limiter._clock
        self._max_wait_ms = request.max_wait_ms
        self._began, self._began_ms = began, limiter._clock.now_ms()
        self.waited_seconds = 0.0

    def ms(self) -> int:
        waited_ms = max(self._clock.now_ms() - self._began_ms, int((time.monotonic() - self._began) * MILLI))
        self.waited_seconds = waited_ms / MILLI
        return max(0, self._max_wait_ms - waited_ms)


def _lacks_only_slots(request: Request, answer: Answer) -> bool:
    return not answer.allowed and all(
        wait_ms is not None and (part.limit.is_concurrent or wait_ms <= request.max_wait_ms)
        for part, (_, wait_ms) in zip(request.parts, answer.levels)
    )
