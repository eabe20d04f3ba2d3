"""What a lease holds until its end: slots and, if it is recorded, a mark that its holder is alive.

The mark is a slot of a limit without bounds, so the store itself knows whether the holder is alive. The record says
what the lease took. The lease or `reconcile`, whichever deletes the record, gives that back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from ...core.decide import RENEW, Answer, Part, Parts, Request
from ...core.errors import RateLimiterUnavailable, VersionConflict
from ...core.limit import OWN, Limit, by_name
from ...core.records import ABSENT, Delete, Put
from ...core.units import MAX_PERIOD_MS, MAX_TOKENS, MILLI
from ...plan import GetRecords, Plan, Whole, WriteRecords
from .. import keys

if TYPE_CHECKING:
    from ..acquire.chain import Chain
    from ..engine import Engine

RECORDED = f"{OWN}lease"
OnLost = Callable[[Any], object]


def new_lease_id() -> str:
    return token_hex(12)


def mark(ttl_ms: int) -> Part:
    """What a recorded lease takes besides."""
    return Part(0, Limit.from_stored(RECORDED, MAX_TOKENS * MILLI, 0, ttl_ms), MILLI)


class HeldSlots:
    """`parts`: the slots. `asked_at`: when the store was last asked and said yes, by this process's own clock.

    `due`: when to ask again.
    `here`: they are held in this process, the store being away.
    """

    __slots__ = (
        "__weakref__", "_tell", "asked_at", "due", "ended", "here", "keys", "lease_id", "lost", "on_lost", "parts",
        "record",
    )  # fmt: skip

    def __init__(self, request: Request, asked_at: float, on_lost: OnLost | None = None, *, here: bool = False) -> None:
        self.keys = request.keys
        self.parts: Parts = ()
        self.lease_id = request.lease_id
        self.asked_at = self.due = asked_at
        self.on_lost = on_lost
        self.here = here
        self.ended = self.lost = False
        self.record: LeaseRecord | None = None
        self._tell: Callable[[], object] | None = None
        self.add(request.parts)

    def add(self, parts: Parts) -> None:
        """More slots to hold on to. Of none there is nothing to be lost."""
        known = {(part.level, part.limit.name) for part in self.parts}
        self.parts += tuple(
            part
            for part in parts
            if part.limit.is_concurrent and part.amount_milli and (part.level, part.limit.name) not in known
        )

    @property
    def ttl_seconds(self) -> float:
        return min((part.limit.period_ms for part in self.parts), default=MAX_PERIOD_MS) / MILLI

    def marks(self) -> Parts:
        return tuple(part for part in self.parts if part.limit.name == RECORDED)

    def tell(self, tell: Callable[[], object]) -> None:
        """Whom to tell if it is lost; it may be so already."""
        self._tell = tell
        if self.lost:
            tell()

    def request(self) -> Request:
        return Request(RENEW, self.keys, self.parts, lease_id=self.lease_id)

    def keep(self, names: Container[str]) -> None:
        """Of the slots only these are still held. To be said before the others are given back."""
        self.parts = tuple(part for part in self.parts if part.limit.name == RECORDED or part.limit.name in names)

    def renewed(self, request: Request, answer: Answer | None, asked_at: float) -> None:
        """The result of a renewal. Without an answer for longer than the ttl, another lease may hold the slots by
        now."""
        if answer is None:
            lost = self.overdue
        else:  # what was given back meanwhile is not lost
            levels = zip(request.parts, answer.levels)
            lost = any(wait_ms is None and part in self.parts for part, (_, wait_ms) in levels)
        if lost:
            self.lose()
        elif answer is not None:
            self.asked_at = asked_at

    @property
    def overdue(self) -> bool:
        """By this process's own clock the slots have run out: it was paused for longer than they last."""
        return time.monotonic() >= self.asked_at + self.ttl_seconds

    def lose(self) -> None:
        if self.lost or self.ended:
            return
        self.lost = True
        if self._tell is not None:
            self._tell()


def lease_value(chain: Chain, parts: Parts, ttl_ms: int, *, restore: bool) -> dict[str, Any]:
    """The record of a lease. `taken` is for `reconcile`; the rest is for holders that know only the lease's id.

    `limits`: those that came with the call. `limiter_limits`: those of the limiter that took it.
    """
    own = [part for part in parts if part.level == 0 and part.limit.name != RECORDED]
    given = not chain.shape.sources
    return {
        "key": chain.keys[0],
        "slots": any(part.limit.is_concurrent and part.amount_milli > 0 for part in own),
        "taken": _restorable(chain, parts) if restore else [],
        "amounts": {part.limit.name: part.amount_milli for part in own},
        "limits": _dicts(chain.shape.levels[0]) if given else None,
        "limiter_limits": _dicts(chain.shape.own) if chain.shape.own else None,
        "ttl_ms": ttl_ms,
        "restore": restore,
    }


def _restorable(chain: Chain, parts: Parts) -> list[list[Any]]:
    return [
        [chain.keys[part.level], part.limit.name, part.amount_milli]
        for part in parts
        if part.amount_milli > 0 and not part.limit.is_concurrent
    ]


def _dicts(limits: Mapping[str, Limit]) -> list[dict[str, Any]]:
    return [limit.as_dict() for limit in limits.values()]


def taker_limits(engine: Engine, value: Mapping[str, Any]) -> Mapping[str, Limit]:
    """The own limits of the limiter that took a lease. The limiter that handles the lease now may have others."""
    given = value.get("limiter_limits")
    return engine.limits if given is None else by_name(Limit.from_dict(limit) for limit in given)


class LeaseRecord:
    """What a recorded lease has taken, where `reconcile` finds it. `restore`: it is to give that back."""

    def __init__(self, namespace: str, hold: HeldSlots, *, restore: bool) -> None:
        self.key = keys.lease_key(namespace, hold.lease_id)
        self.restore = restore
        self._ttl_ms = hold.marks()[0].limit.period_ms
        self._version = ABSENT

    def write_plan(self, chain: Chain, parts: Parts) -> Plan[bool]:
        """False if it was claimed."""
        return (yield from Whole(partial(self._write_plan, chain, parts)))  # or its version would be unknown

    def _write_plan(self, chain: Chain, parts: Parts) -> Plan[bool]:
        value = lease_value(chain, parts, self._ttl_ms, restore=self.restore)
        written = yield from self._change_plan(lambda version: Put(self.key, value, version))
        self._version += written
        return written

    def _change_plan(self, change: Callable[[int], Put | Delete]) -> Plan[bool]:
        """False if the record was claimed. Only the lease writes it and only a claim deletes it, so one of
        another version was written by a call of ours whose reply was lost."""
        while True:
            try:
                yield from WriteRecords([change(self._version)])
            except VersionConflict:
                (record,) = yield from GetRecords([self.key])
                if record is None:
                    return False
                self._version = record.version
            else:
                return True

    def forget_plan(self) -> Plan[bool]:
        """For a lease that never began. False if it may be there all the same: then `reconcile` finds it."""
        try:
            yield from WriteRecords([Delete(self.key)])
        except RateLimiterUnavailable:
            return False
        return True

    def claim_plan(self) -> Plan[bool]:
        """Whether what was taken is still the lease's to give back."""
        return (yield from Whole(partial(self._change_plan, lambda version: Delete(self.key, version))))
