"""Waiting for slots. They cannot be reserved, so that one has to ask again: in this process only who came first does.

Those who want the same slots stand in line. The first asks the store now and then, the longer it waits the more often,
so that among processes too the older come first; and it is woken when a lease of this process gives back.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from ..core.decide import Request
from .fork import anew_after_fork

Place: TypeAlias = "tuple[str, str]"  # key, limit name
Wish: TypeAlias = "frozenset[Place]"

SLOWEST, FASTEST = 0.25, 0.05
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
    def __init__(self, new_bell: Callable[[], Bell], *, shared: bool) -> None:
        self._new_bell = new_bell
        self._shared = shared  # with other processes
        self.after_fork()
        anew_after_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[Wish, deque[Ticket]] = {}
        self._given: dict[Wish, int] = {}  # how often what those in line want was given back

    def waiting(self, wish: Wish) -> bool:
        return wish in self._lines

    def join(self, wish: Wish) -> Ticket:
        with self._lock:
            line = self._lines.setdefault(wish, deque())
            ticket = Ticket(line, self._new_bell())
            line.append(ticket)
            return ticket

    def leave(self, wish: Wish, ticket: Ticket) -> None:
        with self._lock:
            line = self._lines[wish]
            line.remove(ticket)
            if line:
                line[0].bell.set()
            else:
                del self._lines[wish]
                self._given.pop(wish, None)

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
