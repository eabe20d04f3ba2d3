"""Slots: a limit on concurrency. What is taken comes back when its lease ends.

A slot is held under the id of a lease, until it expires. A living holder keeps postponing that (`renew`); the slot of a
dead one expires, and is free for the next request. So no process has to decide that another one is dead, and no slot is
given twice: a slot that a lease has lost cannot be renewed, and giving it back does nothing.

A wait for a slot is the time until enough of them expire, if none is given back or renewed. It may be shorter, or
longer: unlike tokens, slots cannot be reserved.

A take that was refused for want of slots can keep a place in the queue for them. What the waiters ahead want counts as
held until their places expire. So slots are given in the order of the queue, and a caller without a place comes last.
"""

from __future__ import annotations

from operator import itemgetter

from .limit import Limit

NEVER_MS = 1 << 62
OVERTAKES = -1  # as `place_ms`: it keeps no place, and ignores the queue
_until = itemgetter(1)


class Slots:
    """Who holds how much of a concurrent limit until when. It is used like a bucket, on behalf of `lease_id`."""

    __slots__ = (
        "_ahead", "_first_ms", "blocked_until_ms", "changed", "held_milli", "holders", "lease_id", "limit", "place_ms",
        "queue", "revision", "settled_at_ms", "ttl_ms",
    )  # fmt: skip

    def __init__(
        self,
        limit: Limit,
        settled_at_ms: int,
        holders: dict[str, tuple[int, int]] | None = None,
        blocked_until_ms: int = 0,
        revision: int = 0,
    ) -> None:
        self.limit = limit
        self.settled_at_ms = settled_at_ms
        self.holders = holders or {}  # by lease id: millislots, and when they run out
        self.blocked_until_ms = blocked_until_ms
        self.revision = revision
        self.queue: dict[str, tuple[int, int]] = {}  # in order, by lease id: millislots wanted, when the place expires
        self.serve("", limit.period_ms)
        self.changed = False
        self._forget_expired()

    def serve(self, lease_id: str, ttl_ms: int, place_ms: int = 0) -> None:
        """On whose behalf it is used now, for how long that one holds on (it renews at its own pace), and for how long
        it keeps a place in the queue."""
        self.lease_id = lease_id
        self.ttl_ms = ttl_ms
        self.place_ms = place_ms
        self._ahead: list[tuple[int, int]] = []

    def _forget_expired(self) -> None:
        now_ms = self.settled_at_ms
        for entries in (self.holders, self.queue):
            for lease_id in [lease_id for lease_id, (_, until_ms) in entries.items() if until_ms <= now_ms]:
                del entries[lease_id]
        self.held_milli = sum(milli for milli, _ in self.holders.values())
        ends_ms = [until_ms for _, until_ms in (*self.holders.values(), *self.queue.values())]
        self._first_ms = min(ends_ms, default=NEVER_MS)

    def settle(self, now_ms: int) -> None:
        if now_ms > self.settled_at_ms:
            self.settled_at_ms = now_ms
            if now_ms >= self._first_ms:
                self._forget_expired()
        self._ahead = self._find_ahead() if self.queue and self.place_ms != OVERTAKES else []

    def _find_ahead(self) -> list[tuple[int, int]]:
        ahead = []
        for lease_id, wanted in self.queue.items():
            if lease_id == self.lease_id:
                break
            ahead.append(wanted)
        return ahead

    @property
    def _taken_milli(self) -> int:
        """What is held, and what the waiters ahead want."""
        return self.held_milli + sum(milli for milli, _ in self._ahead) if self._ahead else self.held_milli

    def wait_ms(self, amount_milli: int) -> int | None:
        """Milliseconds until the amount is free if no holder renews: 0 if it is, None if it never fits."""
        if amount_milli > self.limit.capacity_milli:
            return None
        wait, missing = 0, amount_milli + self._taken_milli - self.limit.capacity_milli
        if amount_milli > 0 and missing > 0:  # giving back never waits
            wait = self._first_enough_ms(missing) - self.settled_at_ms
        return max(wait, self.blocked_until_ms - self.settled_at_ms) if self.blocked_until_ms else wait

    def _first_enough_ms(self, missing_milli: int) -> int:
        taken = [*self.holders.values(), *self._ahead]
        milli, until_ms = min(taken, key=_until)
        if milli >= missing_milli:
            return until_ms
        ends = iter(sorted(taken, key=_until))
        while missing_milli > 0:
            milli, until_ms = next(ends)
            missing_milli -= milli
        return until_ms

    def take(self, amount_milli: int) -> None:
        self.leave()
        self._hold(amount_milli + self.holders.get(self.lease_id, (0, 0))[0])

    def force(self, amount_milli: int) -> None:
        """Give back (a negative amount) what the lease still holds, and no more. Slots are never taken by force."""
        self.leave()
        held_milli = self.holders.get(self.lease_id, (0, 0))[0]
        if held_milli and amount_milli < 0:
            self._hold(held_milli + amount_milli)

    def join(self, amount_milli: int) -> None:
        """Keep a place in the queue for so many: the one it has, else the last."""
        until_ms = self.settled_at_ms + self.place_ms
        self.queue[self.lease_id] = (amount_milli, until_ms)
        self._first_ms = min(self._first_ms, until_ms)

    def leave(self) -> None:
        """Give up the place in the queue, if there is one."""
        self.queue.pop(self.lease_id, None)

    def renew(self) -> bool:
        """Hold on for as long again. False if there is nothing to hold on to."""
        held_milli = self.holders.get(self.lease_id, (0, 0))[0]
        if held_milli:
            self._hold(held_milli)
        return held_milli > 0

    def _hold(self, milli: int) -> None:
        before, _ = self.holders.pop(self.lease_id, (0, 0))
        if milli > 0:
            until_ms = self.settled_at_ms + self.ttl_ms
            self.holders[self.lease_id] = (milli, until_ms)
            self._first_ms = min(self._first_ms, until_ms)
        self.held_milli += max(milli, 0) - before
        self.changed = True

    def penalize(self, block_ms: int, keep_milli: int) -> None:
        """Let nothing pass for `block_ms`. Slots that are held stay held."""
        if block_ms:
            self.blocked_until_ms = max(self.blocked_until_ms, self.settled_at_ms + block_ms)
            self.changed = True

    def lower(self, amount_milli: int) -> None:
        """What a vendor says it has left is no matter of slots."""

    def reshape(self, limit: Limit, revision: int = 0) -> None:
        """Go on under another limit. Slots that are held stay held; no take passes until enough have come back."""
        if revision:
            if revision < self.revision:
                return
            self.revision = revision
        self.limit = limit
        self.changed = True

    def available_milli(self) -> int:
        free = self.limit.capacity_milli - self._taken_milli
        return min(free, 0) if self.blocked_until_ms > self.settled_at_ms else free

    def full_at_ms(self) -> int:
        """When all slots will be free, if no holder renews."""
        last_ms = max((until_ms for _, until_ms in self.holders.values()), default=0)
        return max(self.settled_at_ms, last_ms, self.blocked_until_ms)
