"""A lease: what an acquire took, and the right to correct it, give it back or keep it."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from ...core.decide import FORCE, Answer, Part, Parts, Request, refund
from ...core.errors import (
    UNANSWERED,
    LeaseExpired,
    LimiterClosed,
    NamespaceNotFound,
    RateLimiterUnavailable,
    RateLimitExceeded,
    ValidationError,
)
from ...core.names import parse_bucket_key
from ...core.units import from_milli, signed_tokens_to_milli
from ...plan import Call, Plan, Settle, SettleHere, Whole
from .. import fork
from ..acquire.chain import Chain, own_amounts
from ..acquire.decision import statuses
from ..acquire.slot_queue import waited_for
from ..bind import PlanMethods, method
from ..misuse import AsyncOnly, SyncOnly
from ..vendor.sync import VendorSync, learn_plan
from .held_slots import HeldSlots, LeaseRecord, OnLost, new_lease_id

if TYPE_CHECKING:
    from ..acquire.slice import Slice
    from ..engine import Engine
    from ..task_engine import TaskEngine
    from ..thread_engine import ThreadEngine

log = logging.getLogger("headgate")
NOTHING: Mapping[str, int] = {}


class BaseLease(PlanMethods):
    """`consumed` is the net so far. After its end only `consumed`, `degraded`, `lost` and `id` can be used.

    `lost`: it held slots, or was recorded, and was not renewed in time; another lease may hold the slots by now.
    """

    engine: Engine
    # Most leases keep these to their end, and are made in half the time without them.
    _taken: dict[str, int] | None = None
    _hold: HeldSlots | None = None
    _on_lost: OnLost | None = None
    _slice: Slice | None = None  # that it was given out of
    _ended = ""
    _id = ""
    _taken_at_ms = 0

    def __init__(
        self, engine: Any, chain: Chain, parts: Parts | None, on_error: str, *, degraded: bool = False
    ) -> None:
        self.engine = engine
        self._chain = chain
        self._parts = parts  # None: nothing was counted
        self._on_error = on_error
        self.degraded = degraded
        self._forks = fork.forks
        if chain.shape.has_quotas:
            self._taken_at_ms = engine.clock_ms()

    def _hold_on_to(self, hold: HeldSlots) -> None:
        self._hold = hold
        self._listen(hold)

    @property
    def _subject(self) -> BaseLease:
        return self

    @property
    def _taken_milli(self) -> dict[str, int]:
        """What it took of the entity's own limits, net."""
        taken = self._taken
        if taken is None:  # two threads may ask first: both go on with the same one
            taken = cast("dict[str, int]", self.__dict__.setdefault("_taken", own_amounts(self._parts or ())))
        return taken

    @property
    def id(self) -> str:
        if not self._id:
            self._id = self._hold.lease_id if self._hold else new_lease_id()
        return self._id

    @property
    def consumed(self) -> dict[str, int | float]:
        return {name: from_milli(milli) for name, milli in self._taken_milli.items()}

    @property
    def lost(self) -> bool:
        hold = self._hold
        return hold is not None and (hold.lost or (not hold.ended and bool(hold.parts) and hold.overdue))

    def __repr__(self) -> str:
        state = self._ended or ("lost" if self.lost else "degraded" if self.degraded else "active")
        return f"<{type(self).__name__} {self.id} {state} consumed={self.consumed}>"

    def _listen(self, hold: HeldSlots) -> None:
        me = weakref.ref(self)  # not to be kept alive by what it holds

        def tell() -> None:
            lease = me()
            if lease is not None and lease._hold is not None:  # not `hold`, which would hold on to itself
                lease._tell_lost(lease._hold)

        hold.tell(tell)

    def _tell_lost(self, hold: HeldSlots) -> None:
        _, entity_id, resource = parse_bucket_key(self._chain.keys[0])
        self.engine.observers.tell("lease.lost", entity_id=entity_id, resource=resource, lease_id=hold.lease_id)
        if hold.on_lost is not None:
            try:
                self._notify(hold.on_lost(self))
            except Exception:
                log.exception("on_lost failed for lease %s", hold.lease_id)

    def _notify(self, result: Any) -> None:
        """What on_lost has returned."""
        if asyncio.iscoroutine(result):
            result.close()
            raise ValidationError("on_lost must not be a coroutine function here: a SyncRateLimiter cannot await it")

    def _check_active(self) -> None:
        if self._forks != fork.forks:
            raise LeaseExpired("this lease belongs to the process that took it, not to its fork; acquire() a new one")
        if self._ended:
            raise LeaseExpired(f"this lease was {self._ended} already; take a new one with acquire()")

    def _settle(self, request: Request) -> Call[Answer]:
        return SettleHere(request) if self.degraded else Settle(request)

    def _consume_plan(self, /, **amounts: Any) -> Plan[None]:
        """Take more, all or nothing, checked in the store. Raises RateLimitExceeded."""
        self._check_active()
        if self._parts is None:
            return
        parts = self._chain.parts(amounts)
        holds = any(part.limit.is_concurrent for part in parts)
        request = self._chain.request(parts, lease_id=self.id if holds else "")
        asked_at = time.monotonic()
        with self.engine.observers.deciding([parse_bucket_key(self._chain.keys[0])[1:]]) as deciding:
            answer = yield from self._settle(request)
            if not answer.allowed:
                raise RateLimitExceeded(statuses(self._chain, parts, answer, self.engine.clock_ms()))
            deciding.took_more(degraded=self.degraded)
        self._add(own_amounts(parts))
        if holds:
            self._hold_on(request, asked_at)
        yield from self._record_plan(request)

    def _hold_on(self, request: Request, asked_at: float) -> None:
        if self._hold is not None:
            self._hold.add(request.parts)
            return
        self._hold_on_to(self.engine.keep(HeldSlots(request, asked_at, self._on_lost, here=self.degraded)))

    def _adjust_plan(self, /, **amounts: Any) -> Plan[None]:
        """Correct what was taken: +n took more, -n took less than thought. Never refuses; debt is repaid by refill."""
        self._check_active()
        if self._parts is None:
            return
        self._chain.check_tokens(amounts)
        yield from self._correct_plan(
            {name: signed_tokens_to_milli(amount, f"amount of {name!r}") for name, amount in amounts.items()}
        )

    def _release_plan(self, /, **amounts: Any) -> Plan[None]:
        """Give back a part of what was taken."""
        self._check_active()
        if self._parts is None:
            return
        released = self._chain.check_release(amounts, self._taken_milli)
        if not self._back_to_slice(released):
            yield from self._correct_plan({name: -milli for name, milli in released.items()})

    def _renew_plan(self) -> Plan[bool]:
        """Hold on to the slots for as long again. It is done in the background too. False if they are lost."""
        self._check_active()
        hold = self._hold
        if hold is not None and hold.parts and not hold.lost:
            request, asked_at = hold.request(), time.monotonic()
            hold.renewed(request, (yield from self._settle(request)), asked_at)
        return not self.lost

    def _sync_from_headers_plan(self, response: Any, *, names: Mapping[str, str] | None = None) -> Plan[VendorSync]:
        """Learn from the vendor's response, as the limiter's `sync_from_headers` does, on the lease's own buckets."""
        if self.degraded:
            return VendorSync({})
        return (yield from learn_plan(self.engine, self._chain, response, names))

    def _correct_plan(self, amounts: Mapping[str, int]) -> Plan[None]:
        """Tokens are taken before the record says so and given back after: a process that dies in between leaves too
        little, never too much."""
        if not self._is_restorable:
            yield from self._force_plan(amounts)
            return
        more = {name: milli for name, milli in amounts.items() if milli > 0}
        less = {name: milli for name, milli in amounts.items() if milli < 0}
        yield from self._force_plan(more)
        yield from self._record_plan(Request(FORCE, self._chain.keys, self._chain.shape.spread(more)), less)
        yield from self._force_plan(less)

    def _force_plan(self, amounts: Mapping[str, int], extra: Parts = ()) -> Plan[None]:
        moved = {name: milli for name, milli in amounts.items() if milli}
        if not moved and not extra:
            return
        # Counted first: a force that is cancelled on its way still lands.
        self._add(moved)
        lease_id = ""
        if self._hold is not None:
            lease_id = self._hold.lease_id
            self._hold.keep({name for name, milli in self._taken_milli.items() if milli > 0})
        parts = tuple(part for part in self._chain.shape.spread(moved) if part.amount_milli > 0 or self._is_open(part))
        if not parts and not extra:
            return
        request = Request(FORCE, self._chain.keys, (*parts, *extra), lease_id=lease_id)
        try:
            yield from self._settle(request)
        except Exception as error:
            # What may have been given back must not be given back again.
            may_have_landed = isinstance(error, RateLimiterUnavailable)
            self._add({name: -milli for name, milli in moved.items() if milli > 0 or not may_have_landed})
            raise
        if lease_id:
            self.engine.slot_queues.given_back(waited_for(request))

    def _back_to_slice(self, amounts: Mapping[str, int]) -> bool:
        """Into the slice that it was given out of, if that lives. What else the lease took was counted later than the
        slice, and holds no slots or record."""
        slices = self.engine.slices
        if self._slice is None or slices is None or self._hold is not None:
            return False
        if not slices.give_back(self._slice, self._chain.shape.spread(amounts)):
            return False
        self._add({name: -milli for name, milli in amounts.items()})
        return True

    def _is_open(self, part: Part) -> bool:
        """Whether what was taken can be given back: of a quota only in the window in which it was taken, or more than
        its amount would pass in the next one."""
        limit, now_ms = part.limit, self.engine.clock_ms()
        if not limit.is_quota or not self._taken_at_ms:
            return True
        if limit.calendar is None:
            return now_ms < self._taken_at_ms + limit.period_ms
        return now_ms < limit.calendar.window(self._taken_at_ms).ends_ms

    def _add(self, amounts: Mapping[str, int]) -> None:
        for name, milli in amounts.items():
            self._taken_milli[name] = self._taken_milli.get(name, 0) + milli

    @property
    def _record(self) -> LeaseRecord | None:
        return self._hold.record if self._hold else None

    @property
    def _is_restorable(self) -> bool:
        """If it is not heard of in time, `reconcile` gives back what its record says."""
        return self._record is not None and self._record.restore

    def _record_plan(self, took: Request, to_come: Mapping[str, int] = NOTHING) -> Plan[None]:
        """Say in the record what is taken by now, less what is given back next. If the record is gone, all of it was
        given back: the lease is over, and what it `took` just now goes back too."""
        hold, record = self._hold, self._record
        if hold is None or record is None or not record.restore:
            return
        taken = {name: milli + to_come.get(name, 0) for name, milli in self._taken_milli.items()}
        if (yield from record.write_plan(self._chain, self._chain.shape.spread(taken))):
            return
        hold.lose()
        self.engine.let_go(hold)
        self._ended = "given back by reconcile()"
        self._taken = dict.fromkeys(self._taken_milli, 0)
        if took.parts:
            yield from self._settle(refund(took))
        raise LeaseExpired(
            f"reconcile() gave back what lease {self.id} took, because its holder was not heard of in time; "
            "take a new one with acquire()"
        )

    def detach(self) -> str:
        """Hand over a recorded lease: returns its id. This process does not renew it any more.

        `renew_lease`, `adjust_lease` and `release_lease` of any limiter of the same namespace work with that id.
        """
        self._check_active()
        if self._record is None:
            raise ValidationError("only a recorded lease can be detached: acquire it with record_lease=True")
        assert self._hold is not None
        self.engine.let_go(self._hold)
        self._ended = "detached"
        return self.id

    def _commit_plan(self) -> Plan[None]:
        """End the lease and keep what it took; slots come back. For leases that are not used with `with`."""
        self._check_active()
        self._ended = "committed"
        yield from self._end_plan(keep=True)

    def _rollback_plan(self) -> Plan[None]:
        """End the lease and give back what it took."""
        self._check_active()
        self._ended = "rolled back"
        yield from self._end_plan(keep=False)

    def _end_plan(self, *, keep: bool) -> Plan[None]:
        if self._hold is not None and self.lost:
            self._hold.lose()  # paused for too long, it may not have heard of it
        if self._record is None:
            yield from self._give_back_plan(keep=keep)
        else:  # deleting the record and giving back belong together
            yield from Whole(partial(self._give_back_plan, keep=keep))

    def _give_back_plan(self, *, keep: bool) -> Plan[None]:
        slots, tokens = self._slots_and_tokens()
        if not keep and self._back_to_slice(tokens):
            return
        back = {name: -milli for name, milli in (slots if keep else {**slots, **tokens}).items()}
        extra: Parts = ()
        if self._hold is not None:
            self.engine.let_go(self._hold)
            extra = tuple(part._replace(amount_milli=-part.amount_milli) for part in self._hold.marks())
        record = self._record
        if record is not None and not (yield from record.claim_plan()) and record.restore:
            # reconcile() gave it back, because its holder seemed dead: what is kept has to be taken again.
            back = {name: -milli for name, milli in slots.items()}
            if keep and tokens:
                yield from self._settle(Request(FORCE, self._chain.keys, self._chain.shape.spread(tokens)))
        yield from self._force_plan(back, extra)

    def _slots_and_tokens(self) -> tuple[dict[str, int], dict[str, int]]:
        """What it holds, by limit name."""
        limits = self._chain.shape.levels[0] if self._taken_milli else {}
        slots: dict[str, int] = {}
        tokens: dict[str, int] = {}
        for name, milli in self._taken_milli.items():
            if milli > 0:
                (slots if limits[name].is_concurrent else tokens)[name] = milli
        return slots, tokens

    def _nothing_to_do(self, error: BaseException | None) -> bool:
        """At the end of the body: is there nothing to be said to the store?"""
        if self._ended or self._forks != fork.forks:
            return True  # the process that took it ends it
        if self._hold is None and (error is None or self._on_error == "keep"):
            self._ended = "committed"
            return True
        return False

    def _leave_plan(self, error: BaseException | None) -> Plan[None]:
        keeps = error is None or self._on_error == "keep"
        try:
            yield from self._commit_plan() if keeps else self._rollback_plan()
        except (*UNANSWERED, LimiterClosed, NamespaceNotFound) as unavailable:
            # What the body did, or its own error, matters more to the caller than this.
            what = "the slots of lease %s run out by themselves" if keeps else "lease %s could not be rolled back"
            log.warning(f"{what}: %s", self.id, unavailable)

    consume = method(_consume_plan)
    adjust = method(_adjust_plan)
    release = method(_release_plan)
    commit = method(_commit_plan)
    rollback = method(_rollback_plan)
    renew = method(_renew_plan)
    sync_from_headers = method(_sync_from_headers_plan)
    _leave = method(_leave_plan)


class Lease(AsyncOnly, BaseLease):
    """What an `acquire` of RateLimiter yields."""

    engine: TaskEngine

    def _notify(self, result: Any) -> None:
        if asyncio.iscoroutine(result):
            self.engine.in_background(result)

    async def __aenter__(self) -> Lease:
        self._check_active()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._nothing_to_do(error):
            await self._leave(error)


class SyncLease(SyncOnly, BaseLease):
    """What an `acquire` of SyncRateLimiter yields."""

    engine: ThreadEngine

    def __enter__(self) -> SyncLease:
        self._check_active()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._nothing_to_do(error):
            self._leave(error)
