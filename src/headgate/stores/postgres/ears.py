"""Who wants to hear of slots that come free, and what a session that listens has to say to the server for that.

A session listens on one channel for all, and holds a shared lock for each place that somebody waits for, so that those
who give back there know to notify (functions/slots.sql).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import TypeAlias

from .exchange import in_schema

Place: TypeAlias = tuple[str, str]  # key, limit name

LINGER_SECONDS = 10.0  # a session stays when nobody waits any more: others will soon
AGAIN_SECONDS = 1.0  # after one was lost


class Ear:
    """Somebody who waits. `hears`: for certain, so that there is no need to ask the store in between."""

    def __init__(self, ears: Ears, places: Iterable[Place], heard: Callable[[], None]) -> None:
        self._ears = ears
        self.places = frozenset(map(hashed, places))
        self.heard = heard

    @property
    def hears(self) -> bool:
        return self.places <= self._ears.held

    def close(self) -> None:
        self._ears.remove(self)


class Ears:
    """All of a store. `changed` is called when there is something new to say to the server."""

    def __init__(self, schema: str, changed: Callable[[], None]) -> None:
        self._ears: set[Ear] = set()
        self._changed = changed
        self.held: frozenset[str] = frozenset()
        channel = in_schema("headgate.slots", schema)
        self.listen = 'LISTEN "{}"'.format(channel.replace('"', '""')).encode()
        self._lock = f"hashtext('{channel}')"

    def __len__(self) -> int:
        return len(self._ears)

    def add(self, places: Iterable[Place], heard: Callable[[], None]) -> Ear:
        ear = Ear(self, places, heard)
        self._ears = {*self._ears, ear}  # others may be going through it
        self._changed()
        return ear

    def remove(self, ear: Ear) -> None:
        self._ears = self._ears - {ear}

    def errands(self) -> Iterator[bytes]:
        """Statements that make the locks those that are needed. After each it is done."""
        wanted = frozenset(place for ear in self._ears for place in ear.places)
        for place in wanted - self.held:
            yield f"SELECT pg_advisory_lock_shared({self._lock}, {_number(place)})".encode()
            self.held |= {place}
            self.tell([place])  # what was given back before is not heard of
        for place in self.held - wanted:
            self.held -= {place}
            yield f"SELECT pg_advisory_unlock_shared({self._lock}, {_number(place)})".encode()

    def tell(self, places: Iterable[str]) -> None:
        news = set(places)
        for ear in self._ears:
            if not news.isdisjoint(ear.places):
                ear.heard()

    def deaf(self) -> None:
        self.held = frozenset()


def hashed(place: Place) -> str:
    return sha256(" ".join(place).encode()).hexdigest()[:32]


def _number(place: str) -> int:
    return int.from_bytes(bytes.fromhex(place[:8]), "big", signed=True)
