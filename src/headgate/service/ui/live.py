"""Decisions of the last minutes, and the entities with the most: counted as they happen, in little memory.

`LiveStats` is a watcher of a limiter. A decision costs the same however many entities there are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from heapq import nlargest
from typing import NamedTuple

SECONDS = 300
_MINUTES = SECONDS // 60
_KEPT = 64  # entities that a minute keeps after a reduction
_TOP = 8

OUTCOMES = ("allowed", "refused", "degraded", "unavailable")
_INDEX = {outcome: index for index, outcome in enumerate(OUTCOMES)}


class Top:
    """The most frequent names: a Space-Saving sketch, which is reduced to `kept` names when it has twice as many.

    Each count is at least the true one, and at most `floor` more, which is at most 1/`kept` of all.
    """

    __slots__ = ("_kept", "counts", "floor")

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self.counts: dict[str, int] = {}
        self.floor = 0

    def add(self, name: str) -> None:
        counts = self.counts
        counts[name] = counts.get(name, self.floor) + 1
        if len(counts) > 2 * self._kept:
            ordered = sorted(counts.items(), key=lambda item: -item[1])
            self.counts = dict(ordered[: self._kept])
            self.floor = ordered[self._kept][1]


class _Second:
    __slots__ = ("calls", "failed", "number", "outcomes", "seconds", "slowest")

    def __init__(self, number: int) -> None:
        self.number = number
        self.outcomes = [0, 0, 0, 0]
        self.calls = self.failed = 0
        self.seconds = self.slowest = 0.0


class _Minute:
    __slots__ = ("all", "number", "refused")

    def __init__(self, number: int) -> None:
        self.number = number
        self.all = Top()
        self.refused = Top()


class Ranked(NamedTuple):
    """`about`: the count is approximate, and the true one may be a little lower."""

    entity_id: str
    times: int
    about: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The last minutes. The last second is not complete yet. `known_seconds`: how long the counts go back."""

    outcomes: dict[str, list[int]]
    known_seconds: int
    busiest: list[Ranked]
    most_refused: list[Ranked]
    store_calls: int
    store_failures: int
    store_mean_ms: float
    store_slowest_ms: float

    def total(self, *outcomes: str, seconds: int = SECONDS) -> int:
        return sum(sum(self.outcomes[outcome][-seconds - 1 : -1]) for outcome in outcomes)

    def rate(self, *outcomes: str, seconds: int = 10) -> float:
        """The rate per second, over the last complete seconds."""
        return self.total(*outcomes, seconds=seconds) / max(1, min(seconds, self.known_seconds))


class LiveStats:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.RLock()
        self._started = now()
        self._ring: list[_Second] = [_Second(-1) for _ in range(SECONDS + 1)]
        self._minutes: list[_Minute] = [_Minute(-1) for _ in range(_MINUTES + 1)]
        self._turn(int(self._started))

    def decided(self, entity_id: str, resource: str, outcome: str, seconds: float) -> None:
        with self._lock:
            if (number := int(self._now())) != self._second.number:
                self._turn(number)
            self._second.outcomes[_INDEX[outcome]] += 1
            self._minute.all.add(entity_id)
            if outcome == "refused":
                self._minute.refused.add(entity_id)

    def settled(self, requests: int, seconds: float, ok: bool) -> None:
        with self._lock:
            if (number := int(self._now())) != self._second.number:
                self._turn(number)
            second = self._second
            second.calls += 1
            second.failed += not ok
            second.seconds += seconds
            if seconds > second.slowest:
                second.slowest = seconds

    def _turn(self, number: int) -> None:
        """Start a new second, and perhaps a new minute."""
        self._second = self._ring[number % len(self._ring)] = _Second(number)
        number //= 60
        self._minute = self._minutes[number % len(self._minutes)]
        if self._minute.number != number:
            self._minute = self._minutes[number % len(self._minutes)] = _Minute(number)

    def snapshot(self) -> Snapshot:
        with self._lock:
            now = int(self._now())
            known = min(SECONDS, int(self._now() - self._started))
            seconds = [self._at(number) for number in range(now - SECONDS, now + 1)]
            minutes = [one for one in self._minutes if 0 <= now // 60 - one.number <= _MINUTES]
            busiest, refused = _ranked([one.all for one in minutes]), _ranked([one.refused for one in minutes])
            outcomes = {name: [second.outcomes[index] for second in seconds] for name, index in _INDEX.items()}
            return Snapshot(outcomes, known, busiest, refused, *_calls(seconds))

    def _at(self, number: int) -> _Second:
        """The counts of a second, which may be empty."""
        second = self._ring[number % len(self._ring)]
        return second if second.number == number else _Second(number)


def _calls(seconds: list[_Second]) -> tuple[int, int, float, float]:
    """Calls to the store, failed calls, and the mean and the longest time of a call in milliseconds."""
    calls, failed = sum(one.calls for one in seconds), sum(one.failed for one in seconds)
    taken, slowest = sum(one.seconds for one in seconds), max(one.slowest for one in seconds)
    return calls, failed, 1000 * taken / max(1, calls), 1000 * slowest


def _ranked(tops: list[Top]) -> list[Ranked]:
    counts: dict[str, int] = {}
    for top in tops:
        for name, count in top.counts.items():
            counts[name] = counts.get(name, 0) + count
    about = any(top.floor for top in tops)
    return [Ranked(name, count, about) for name, count in nlargest(_TOP, counts.items(), key=lambda item: item[1])]
