"""The items as they were last seen. They decide what is sent, never what passes: only DynamoDB's reply does.

A refusal can come from here. An empty bucket is read, which writes nothing. If more than `LOOKS` requests a second ask
for it, the last read answers. So refusals are exact, except under such load, when they may be a fifth of a second old.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from ...core.decide import Part
from .conditional_writes import Write
from .ledger import Ledger
from .places import ItemPlace
from .rows import NEW, Row
from .writer import News

LOOKS = 5
_KEPT = 20_000


class Seen(NamedTuple):
    """`at_ms`: for each limit, the latest time at which this process looked at it."""

    row: Row
    at_ms: Mapping[str, int]


class _WriteCount(NamedTuple):
    writes: int
    since: float


class Cache:
    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._seen: dict[ItemPlace, Seen] = {}
        self._looks: dict[ItemPlace, tuple[float, float]] = {}
        self._pressure: dict[ItemPlace, _WriteCount] = {}

    def get(self, place: ItemPlace) -> Seen | None:
        return self._seen.get(place)

    def put(self, place: ItemPlace, row: Row, at_ms: Mapping[str, int]) -> None:
        with self._lock:
            known = self._seen.pop(place, None)
            self._seen[place] = Seen(row, at_ms if known is None else _latest(known.at_ms, at_ms))
            if len(self._seen) > _KEPT:
                self._drop(next(iter(self._seen)))

    def touch(self, place: ItemPlace, at_ms: Mapping[str, int]) -> None:
        """It was only read here, but time must not run backwards for later requests."""
        with self._lock:
            known = self._seen.get(place)
            if known is not None:
                self._seen[place] = Seen(known.row, _latest(known.at_ms, at_ms))

    def forget(self, place: ItemPlace) -> None:
        with self._lock:
            self._drop(place)

    def _drop(self, place: ItemPlace) -> None:
        self._seen.pop(place, None)
        self._looks.pop(place, None)
        self._pressure.pop(place, None)

    def may_look(self, place: ItemPlace) -> bool:
        """Whether to read again an item that is assumed to be empty."""
        now = monotonic()
        with self._lock:
            left, then = self._looks.get(place, (float(LOOKS), now))
            left = min(LOOKS, left + (now - then) * LOOKS)
            allowed = left >= 1
            self._looks[place] = (left - 1 if allowed else left, now)
        return allowed

    def writes_per_second(self, place: ItemPlace, writes: int) -> float:
        """The rate of all writes to the item, by its own count: 0 until a second has passed."""
        now = monotonic()
        with self._lock:
            before = self._pressure.get(place)
            if before is None or writes < before.writes or now - before.since > 10:
                self._pressure[place] = _WriteCount(writes, now)
                return 0.0
            elapsed = now - before.since
            if elapsed < 1:
                return 0.0
            self._pressure[place] = _WriteCount(writes, now)
            return (writes - before.writes) / elapsed


def _latest(before: Mapping[str, int], after: Mapping[str, int]) -> Mapping[str, int]:
    return {**before, **{name: max(ms, before.get(name, 0)) for name, ms in after.items()}}


class ItemSource:
    """Where the ledgers of a round come from, and what they learn goes to: the items of one kind."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache

    def looks_at(self, ledger: Ledger) -> bool:
        if ledger.sure:
            return False
        if ledger.would_look and not ledger.must_look and ledger.row is not None:
            ledger.trusted = not self.cache.may_look(ledger.place)
        return ledger.must_look or (ledger.would_look and not ledger.trusted)

    def overflows(self, ledger: Ledger, parts: Sequence[Part]) -> bool:
        """Whether this item is full, so that the tokens that are given back belong to another."""
        return False

    def learn(self, ledger: Ledger, news: News | None, write: Write | None) -> None:
        if news is None:
            ledger.replay()
            return
        ledger.throttled = news.throttled
        ledger.vanished = news.row is NEW and ledger.row is not None and bool(ledger.row.states)
        if news.invalid is not None:
            ledger.replay()
            ledger.fresh = False
        elif news.row is None:
            if news.error is not None:
                self.cache.forget(ledger.place)
            ledger.learn(None if news.error else ledger.row)
            ledger.fresh = False
        else:
            ledger.learn(news.row, write if news.done else None)
            self.cache.put(ledger.place, news.row, ledger.seen_at_ms)
