"""Queues for slots and quotas. These cannot be reserved, so a waiter has to ask again.

If the store has a queue, each waiter has a place in it, and asks when the store notifies it. In between it asks only to
keep its place; more often while notifications do not arrive.

Otherwise waiters for the same slots queue up in this process. The first one polls the store, more often the longer it
waits, so that the oldest waiter of all processes tends to be the first. A lease of this process that gives back wakes
it.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from ...core.decide import Request
from ...core.units import MILLI
from ...stores.contract import Notifications, Subscription
from ..fork import anew_after_fork

Place: TypeAlias = "tuple[str, str]"  # key, limit name
Wish: TypeAlias = "frozenset[Place]"

SLOWEST, FASTEST = 0.25, 0.05
# In a queue of the store. A place outlives two times of asking: one may fail.
REFRESH_SECONDS, PLACE_MS = 10.0, 25_000
UNTOLD_PLACE_MS = 3_000  # while the store cannot tell us, and we ask every SLOWEST seconds at least
CONNECTING_SECONDS = 2.0
LEFT_TO_OTHERS = 8  # every so many times


class Bell(Protocol):
    """threading.Event, asyncio.Event."""

    def set(self) -> None: ...
    def clear(self) -> None: ...


class Ticket:
    def __init__(self, line: deque[Ticket], bell: Bell) -> None:
        self._line = line
        self.bell = bell

    @property
    def first(self) -> bool:
        return self._line[0] is self


class Queued:
    """A waiter with a place in the store's queue."""

    def __init__(self, bell: Bell, notifications: Notifications, lease_id: str, asked_as: str) -> None:
        self.bell = bell
        self._notifications = notifications
        self._subscription: Subscription = notifications.subscribe(lease_id, bell.set)
        if notifications.listener != asked_as:  # the store knows it by a name that is no longer ours
            bell.set()

    def pause(self, wait_ms: int | None, waited_seconds: float) -> float:
        """Until it asks again, if the store does not tell it to. `wait_ms`: of the last answer."""
        if not self._subscription.active:
            return pause(waited_seconds)
        longest = REFRESH_SECONDS if self._notifications.listener else CONNECTING_SECONDS
        return min(longest, max((wait_ms or 0) / MILLI, FASTEST))

    def close(self) -> None:
        self._subscription.close()


class SlotQueues:
    def __init__(
        self, new_bell: Callable[[], Bell], *, shared: bool, notifications: Notifications | None = None
    ) -> None:
        self._new_bell = new_bell
        self._shared = shared  # with other processes
        self._notifications = notifications
        self.after_fork()
        anew_after_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.RLock()
        self._slot_queues: dict[Wish, deque[Ticket]] = {}
        self._queued = 0
        self._given: dict[Wish, int] = {}  # how often what those in line want was given back
        self._asleep = 0  # until the tokens that they have reserved are there

    def count(self) -> int:
        """How many wait, for slots or for tokens."""
        with self._lock:
            return self._asleep + self._queued + sum(map(len, self._slot_queues.values()))

    @contextmanager
    def asleep(self) -> Iterator[None]:
        with self._lock:
            self._asleep += 1
        try:
            yield
        finally:
            with self._lock:
                self._asleep -= 1

    def place_ms(self) -> int:
        """For how long to keep a place in the store's queue; 0 if it has none."""
        if self._notifications is None:
            return 0
        return PLACE_MS if self._notifications.listener else UNTOLD_PLACE_MS

    def listener(self) -> str:
        return self._notifications.listener if self._notifications is not None else ""

    @contextmanager
    def queued(self, lease_id: str, asked_as: str) -> Iterator[Queued]:
        """`asked_as`: the listener when it asked for its place."""
        assert self._notifications is not None
        waiter = Queued(self._new_bell(), self._notifications, lease_id, asked_as)
        with self._lock:
            self._queued += 1
        try:
            yield waiter
        finally:
            waiter.close()
            with self._lock:
                self._queued -= 1

    def waiting(self, wish: Wish) -> bool:
        return wish in self._slot_queues

    def join(self, wish: Wish) -> Ticket:
        with self._lock:
            line = self._slot_queues.setdefault(wish, deque())
            ticket = Ticket(line, self._new_bell())
            line.append(ticket)
            return ticket

    def leave(self, wish: Wish, ticket: Ticket) -> None:
        with self._lock:
            line = self._slot_queues[wish]
            line.remove(ticket)
            if line:
                line[0].bell.set()
            else:
                del self._slot_queues[wish]
                self._given.pop(wish, None)

    def given_back(self, places: Iterable[Place]) -> None:
        """Wake the first waiter for any of them. Not every time: waiters in other processes can only poll."""
        if not self._slot_queues:
            return
        free = set(places)
        with self._lock:
            for wish, line in self._slot_queues.items():
                if not free.isdisjoint(wish):
                    self._given[wish] = self._given.get(wish, 0) + 1
                    if not self._shared or self._given[wish] % LEFT_TO_OTHERS:
                        line[0].bell.set()


def slots_of(request: Request) -> Wish:
    return frozenset((request.keys[part.level], part.limit.name) for part in request.parts if part.limit.is_concurrent)


def waited_for(request: Request) -> Wish:
    """What cannot be reserved."""
    return frozenset(
        (request.keys[part.level], part.limit.name) for part in request.parts if part.limit.refill_milli <= 0
    )


def pause(waited_seconds: float) -> float:
    """Seconds until the next poll, with jitter."""
    return random.uniform(0.5, 1.0) * max(FASTEST, SLOWEST / (1 + waited_seconds))
