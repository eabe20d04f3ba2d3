"""Asking the store, and waiting for what cannot be reserved: slots, and tokens of a quota.

Waiters for slots queue in the store if it has a queue, else in this process, as those for quotas do: a quota comes back
at a moment that everyone knows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from ...core.decide import Answer, Parts, Request, refund
from ...core.errors import UNANSWERED, RateLimiterUnavailable
from ...core.units import MILLI
from ...plan import Call, Nap, Plan, Settle
from ..leases.held_slots import HeldSlots
from .group import Settled
from .slot_queue import Wish, pause, slots_of, waited_for

if TYPE_CHECKING:
    from ..engine import Engine

log = logging.getLogger("headgate")

HowToSettle: TypeAlias = "Callable[[Request], Call[Answer]]"  # Settle, or SettleHere


def settle_plan(engine: Engine, request: Request, settle: HowToSettle) -> Plan[Settled]:
    """The answer. Tokens of buckets are reserved; slots and quotas cannot be, so the caller waits here for them."""
    wish = waited_for(request) if request.max_wait_ms else None
    if not wish:
        asked_at = time.monotonic()
        return Settled((yield from settle(request)), asked_at, request.max_wait_ms)
    if settle is Settle and slots_of(request) and engine.slot_queues.place_ms():
        return (yield from _in_store_queue_plan(engine, request))
    return (yield from _in_process_queue_plan(engine, request, wish, settle))


def _in_process_queue_plan(engine: Engine, request: Request, wish: Wish, settle: HowToSettle) -> Plan[Settled]:
    asked_at = time.monotonic()
    answer = None
    if not engine.slot_queues.waiting(wish):
        answer = yield from settle(request)
        if not _is_worth_waiting(request, answer):
            return Settled(answer, asked_at, request.max_wait_ms)
    left = _Left(engine, request, asked_at)
    ticket = engine.slot_queues.join(wish)
    try:
        while True:
            left_ms = left.ms()
            if left_ms and (answer is not None or not ticket.first):
                seconds = _pause(request, answer, left.waited_seconds) if ticket.first else left_ms / MILLI
                yield from Nap(ticket.bell, min(seconds, left_ms / MILLI))
                answer = None
                continue
            asked_at = time.monotonic()
            request_now = request._replace(max_wait_ms=left_ms)
            answer = yield from settle(request_now)
            if not left_ms or not _is_worth_waiting(request_now, answer):
                return Settled(answer, asked_at, left_ms, queued=True)
    finally:
        engine.slot_queues.leave(wish, ticket)


def _in_store_queue_plan(engine: Engine, request: Request) -> Plan[Settled]:
    """Whatever ends the wait gives up the place in the queue."""
    queues, asked_at = engine.slot_queues, time.monotonic()
    asked_as = queues.listener()
    left = _Left(engine, request, asked_at)
    try:
        answer = yield from Settle(request._replace(place_ms=queues.place_ms()))
        if not _is_worth_waiting(request, answer):
            return Settled(answer, asked_at, request.max_wait_ms)
        with queues.queued(request.lease_id, asked_as) as waiter:
            while True:
                left_ms = left.ms()
                if left_ms:
                    seconds = waiter.pause(answer.wait_ms, left.waited_seconds)
                    yield from Nap(waiter.bell, min(seconds, left_ms / MILLI))
                    left_ms = left.ms()
                asked_at = time.monotonic()
                request_now = request._replace(max_wait_ms=left_ms, place_ms=queues.place_ms() if left_ms else 0)
                answer = yield from Settle(request_now)
                if not left_ms or not _is_worth_waiting(request_now, answer):
                    return Settled(answer, asked_at, left_ms, queued=True)
    except (GeneratorExit, RateLimiterUnavailable):
        raise  # the place expires
    except BaseException:
        yield from give_back_plan(engine, request._replace(parts=_slot_parts(request)), None, Settle)
        raise


class _Left:
    """How much of `max_wait` is left. A clock may stand still, or be set back: no wait is longer than was asked for."""

    def __init__(self, engine: Engine, request: Request, began: float) -> None:
        self._clock = engine.clock
        self._max_wait_ms = request.max_wait_ms
        self._began, self._began_ms = began, engine.clock.now_ms()
        self.waited_seconds = 0.0

    def ms(self) -> int:
        waited_ms = max(self._clock.now_ms() - self._began_ms, int((time.monotonic() - self._began) * MILLI))
        self.waited_seconds = waited_ms / MILLI
        return max(0, self._max_wait_ms - waited_ms)


def _pause(request: Request, answer: Answer | None, waited_seconds: float) -> float:
    """Seconds until the first waiter asks again: often, if it waits for slots, else at the edge of the quota."""
    if answer is None or slots_of(request):
        return pause(waited_seconds)
    return max(answer.wait_ms or 0, 1) / MILLI


def _is_worth_waiting(request: Request, answer: Answer) -> bool:
    """Slots may come back at any time, a quota at its edge, and tokens can be reserved."""
    return not answer.allowed and all(
        wait_ms is not None and (part.limit.is_concurrent or wait_ms <= request.max_wait_ms)
        for part, (_, wait_ms) in zip(request.parts, answer.levels)
    )


def give_back_plan(engine: Engine, request: Request, hold: HeldSlots | None, settle: HowToSettle) -> Plan[None]:
    """Give back what a request took, whose caller does not want it any more."""
    if hold is not None:
        engine.let_go(hold)
        record = hold.record
        if record is not None and record.restore and not (yield from record.forget_plan()):
            # Its tokens come back with `reconcile`. To give them back here too would be once too often.
            request = request._replace(parts=_slot_parts(request))
    try:
        yield from settle(refund(request))
    except UNANSWERED as why:
        log.warning("a reservation could not be given back: %s", why)
    engine.slot_queues.given_back(waited_for(request))


def _slot_parts(request: Request) -> Parts:
    return tuple(part for part in request.parts if part.limit.is_concurrent)
