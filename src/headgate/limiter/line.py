"""Waiting for slots. They cannot be reserved, so that one has to ask again: in this process only who came first does.

Those who want the same slots stand in line. The first asks the store now and then, the longer it waits the more often,
so that among processes too the older come first; and it is woken when a lease of this process gives back.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeAlias

from ..core.decide import Request
from ..stores.contract import Ear, Hear
from .fork import anew_after_fork

Place: TypeAlias = "tuple[str, str]"  # key, limit name
Wish: TypeAlias = "frozenset[Place]"

SLOWEST, FASTEST = 0.25, 0.05
UNHEARD = 2.0  # what is lost by whoever dies is not given back, and only found by asking
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


class Lines:
    def __init__(self, new_bell: Callable[[], Bell], *, shared: bool, hear: Hear | None = None) -> None:
        self._new_bell = new_bell
        self._shared = shared  # with other processes
        self._hear = hear
        self.after_fork()
        anew_after_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.RLock()
        self._lines: dict[Wish, deque[Ticket]] = {}
        self._ears: dict[Wish, Ear] = {}
        self._given: dict[Wish, int] = {}  # how often what those in line want was given back
        self._asleep = 0  # until the tokens that they have reserved are there

    def count(self) -> int:
        """How many wait, for slots or for tokens."""
        with self._lock:
            return self._asleep + sum(map(len, self._lines.values()))

    @contextmanager
    def asleep(self) -> Iterator[None]:
        with self._lock:
            self._asleep += 1
        try:
            yield
        finally:
            with self._lock:
                self._asleep -= 1

    def waiting(self, wish: Wish) -> bool:
        return wish in self._lines

    def join(self, wish: Wish) -> Ticket:
        with self._lock:
            line = self._lines.setdefault(wish, deque())
            ticket = Ticket(line, self._new_bell())
            line.append(ticket)
            if self._hear is not None and wish not in self._ears:
                self._ears[wish] = self._hear(wish, partial(self._ring, wish))
            return ticket

    def _ring(self, wish: Wish) -> None:
        with self._lock:
            if wish in self._lines:
                self._lines[wish][0].bell.set()

    def pause(self, wish: Wish, waited_seconds: float) -> float:
        """Until the first in line asks again, if nothing is heard."""
        ear = self._ears.get(wish)
        return UNHEARD if ear is not None and ear.hears else pause(waited_seconds)

    def leave(self, wish: Wish, ticket: Ticket) -> None:
        with self._lock:
            line = self._lines[wish]
            line.remove(ticket)
            if line:
                line[0].bell.set()
            else:
                del self._lines[wish]
                self._given.pop(wish, None)
                ear = self._ears.pop(wish, None)
                if ear is not None:
                    ear.close()

    def given_back(self, places: Iterable[Place]) -> None:
        """Wake whoever stands first in line for any of them. Not every time: other processes wait as well, and can
        only ask."""
        if not self._lines:
            return
        free = set(places)
        with self._lock:
            for wish, line in self._lines.items():
                if not free.isdisjoint(wish):
                    self._given[wish] = self._given.get(wish, 0) + 1
                    if not self._shared or self._given[wish] % LEFT_TO_OTHERS:
                        line[0].bell.set()


def slots_of(request: Request) -> Wish:
    return frozenset((request.keys[part.level], part.limit.name) for part in request.parts if part.limit.is_concurrent)


def pause(waited_seconds: float) -> float:
    """Until the next time of asking. Nobody asks in step with others."""
    return random.uniform(0.5, 1.0) * max(FASTEST, SLOWEST / (1 + waited_seconds))
