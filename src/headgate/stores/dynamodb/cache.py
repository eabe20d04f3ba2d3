"""The items as they were last seen. They say what to send, never that something passes: that only DynamoDB says.

That something does not pass, they may say, if they are asked too often: a bucket that is known to be empty is looked
at, which writes nothing, and if many ask for it at once, not more than `LOOKS` times a second. So refusals are exact
but under fire, when one may be as of a fifth of a second ago.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from time import monotonic
from typing import NamedTuple

from .conditional_writes import Place
from .rows import Row

LOOKS = 5
_KEPT = 20_000


class Seen(NamedTuple):
    """`at_ms`: of each limit, the latest moment at which somebody here looked at it."""

    row: Row
    at_ms: Mapping[str, int]


class Pressure(NamedTuple):
    writes: int
    since: float


class Cache:
    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._seen: dict[Place, Seen] = {}
        self._looks: dict[Place, tuple[float, float]] = {}
        self._pressure: dict[Place, Pressure] = {}

    def get(self, place: Place) -> Seen | None:
        return self._seen.get(place)

    def put(self, place: Place, row: Row, at_ms: Mapping[str, int]) -> None:
        with self._lock:
            known = self._seen.pop(place, None)
            self._seen[place] = Seen(row, at_ms if known is None else _latest(known.at_ms, at_ms))
            if len(self._seen) > _KEPT:
                self._drop(next(iter(self._seen)))

    def touch(self, place: Place, at_ms: Mapping[str, int]) -> None:
        """It was only looked at here, but time must not run backwards for those who come after."""
        with self._lock:
            known = self._seen.get(place)
            if known is not None:
                self._seen[place] = Seen(known.row, _latest(known.at_ms, at_ms))

    def forget(self, place: Place) -> None:
        with self._lock:
            self._drop(place)

    def _drop(self, place: Place) -> None:
        self._seen.pop(place, None)
        self._looks.pop(place, None)
        self._pressure.pop(place, None)

    def may_look(self, place: Place) -> bool:
        """Whether it is time to look again at what is believed to be empty."""
        now = monotonic()
        with self._lock:
            left, then = self._looks.get(place, (float(LOOKS), now))
            left = min(LOOKS, left + (now - then) * LOOKS)
            allowed = left >= 1
            self._looks[place] = (left - 1 if allowed else left, now)
        return allowed

    def writes_per_second(self, place: Place, writes: int) -> float:
        """How often all who use the item write to it, told by its own count: 0 until a second has passed."""
        now = monotonic()
        with self._lock:
            before = self._pressure.get(place)
            if before is None or writes < before.writes or now - before.since > 10:
                self._pressure[place] = Pressure(writes, now)
                return 0.0
            elapsed = now - before.since
            if elapsed < 1:
                return 0.0
            self._pressure[place] = Pressure(writes, now)
            return (writes - before.writes) / elapsed


def _latest(before: Mapping[str, int], after: Mapping[str, int]) -> Mapping[str, int]:
    return {**before, **{name: max(ms, before.get(name, 0)) for name, ms in after.items()}}
