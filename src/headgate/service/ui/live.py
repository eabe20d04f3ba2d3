"""Decisions of the last minutes, and the entities with the most: counted as they happen, in little memory.

`LiveStats` can be a watcher of a limiter. A decision costs the same however many entities there are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from heapq import nlargest
from typing import NamedTuple, TypeAlias

from msgspec import Struct

SECONDS = 300
_MINUTES = SECONDS // 60
_KEPT = 64  # entities that a minute keeps after a reduction
_TOP = 8

# The arguments of a watcher's methods.
Decided: TypeAlias = "tuple[str, str, str, float]"
Settled: TypeAlias = "tuple[int, float, bool]"

OUTCOMES = ("allowed", "refused", "degraded", "unavailable")
_INDEX = {outcome: index for index, outcome in enumerate(OUTCOMES)}


class Top(Struct, array_like=True):
    """The most frequent names: a Space-Saving sketch, which is reduced to `kept` names when it has twice as many.

    Each count is at least the true one, and at most `floor` more, which is at most 1/`kept` of all. A name that is not
    there has at most `floor`.
    """

    counts: dict[str, int] = {}
    floor: int = 0
    kept: int = _KEPT

    def add(self, name: str) -> None:
        counts = self.counts
        counts[name] = counts.get(name, self.floor) + 1
        if len(counts) > 2 * self.kept:
            self._reduce()

    def _reduce(self) -> None:
        ordered = sorted(self.counts.items(), key=lambda item: -item[1])
        self.counts = dict(ordered[: self.kept])
        self.floor = ordered[self.kept][1]

    @classmethod
    def of(cls, tops: Sequence[Top]) -> Top:
        """All of them in one."""
        names = {name for top in tops for name in top.counts}
        counts = {name: sum(top.counts.get(name, top.floor) for top in tops) for name in names}
        found = cls(counts, sum(top.floor for top in tops))
        if len(counts) > 2 * found.kept:
            found._reduce()
        return found


class _Second(Struct, array_like=True):
    number: int
    outcomes: list[int]
    calls: int = 0
    failed: int = 0
    seconds: float = 0.0
    slowest: float = 0.0

    def add(self, other: _Second) -> None:
        self.outcomes = [one + more for one, more in zip(self.outcomes, other.outcomes)]
        self.calls += other.calls
        self.failed += other.failed
        self.seconds += other.seconds
        self.slowest = max(self.slowest, other.slowest)


class _Minute(Struct, array_like=True):
    number: int
    all: Top
    refused: Top


class LiveCounts(Struct, array_like=True):
    """What was counted in the last minutes, by the monotonic clock, which all processes of a machine share."""

    started: float
    seconds: list[_Second]
    minutes: list[_Minute]


def _second(number: int) -> _Second:
    return _Second(number, [0] * len(OUTCOMES))


def _minute(number: int) -> _Minute:
    return _Minute(number, Top(), Top())


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
        self._ring: list[_Second] = [_second(-1) for _ in range(SECONDS + 1)]
        self._minutes: list[_Minute] = [_minute(-1) for _ in range(_MINUTES + 1)]
        self._turn(int(self._started))

    def decided(self, entity_id: str, resource: str, outcome: str, seconds: float) -> None:
        self.count(int(self._now()), [(entity_id, resource, outcome, seconds)], [])

    def settled(self, requests: int, seconds: float, ok: bool) -> None:
        self.count(int(self._now()), [], [(requests, seconds, ok)])

    def count(self, number: int, decided: Iterable[Decided], settled: Iterable[Settled]) -> None:
        """Count what happened in a second of the monotonic clock."""
        with self._lock:
            if number != self._second.number:
                self._turn(number)
            outcomes, add = self._second.outcomes, self._minute.all.add
            for entity_id, _, outcome, _ in decided:
                outcomes[_INDEX[outcome]] += 1
                add(entity_id)
                if outcome == "refused":
                    self._minute.refused.add(entity_id)
            second = self._second
            for _, seconds, ok in settled:
                second.calls += 1
                second.failed += not ok
                second.seconds += seconds
                if seconds > second.slowest:
                    second.slowest = seconds

    def _turn(self, number: int) -> None:
        """Start a new second, and perhaps a new minute."""
        self._second = self._ring[number % len(self._ring)] = _second(number)
        number //= 60
        self._minute = self._minutes[number % len(self._minutes)]
        if self._minute.number != number:
            self._minute = self._minutes[number % len(self._minutes)] = _minute(number)

    def counts(self) -> LiveCounts:
        with self._lock:
            now = int(self._now())
            seconds = [copy(one) for one in self._ring if one.calls or any(one.outcomes)]
            minutes = [
                _Minute(one.number, Top.of([one.all]), Top.of([one.refused])) for one in self._minutes if one.all.counts
            ]
            return _recent(LiveCounts(self._started, seconds, minutes), now)

    def snapshot(self) -> Snapshot:
        return snapshot([self.counts()], self._now())


def _recent(counts: LiveCounts, now: int) -> LiveCounts:
    """Without what is too old to be shown."""
    seconds = [one for one in counts.seconds if one.number >= now - SECONDS]
    minutes = [one for one in counts.minutes if one.number >= now // 60 - _MINUTES]
    return LiveCounts(counts.started, seconds, minutes)


def merged(all_counts: Sequence[LiveCounts]) -> LiveCounts:
    """The sum of what several workers have counted."""
    seconds: dict[int, _Second] = {}
    for one in (one for counts in all_counts for one in counts.seconds):
        seconds.setdefault(one.number, _second(one.number)).add(one)
    minutes: dict[int, list[_Minute]] = {}
    for minute in (minute for counts in all_counts for minute in counts.minutes):
        minutes.setdefault(minute.number, []).append(minute)
    joined = [
        _Minute(number, Top.of([one.all for one in those]), Top.of([one.refused for one in those]))
        for number, those in minutes.items()
    ]
    found = LiveCounts(min(counts.started for counts in all_counts), list(seconds.values()), joined)
    return _recent(found, max([*seconds, 0]))


def snapshot(all_counts: Sequence[LiveCounts], now: float) -> Snapshot:
    """The minutes before now, of all workers. What was counted later is left out."""
    counts, last = merged(all_counts), int(now)
    by_number = {one.number: one for one in counts.seconds}
    seconds = [by_number.get(number) or _second(number) for number in range(last - SECONDS, last + 1)]
    minutes = [one for one in counts.minutes if one.number >= last // 60 - _MINUTES]
    busiest, refused = _ranked([one.all for one in minutes]), _ranked([one.refused for one in minutes])
    outcomes = {name: [second.outcomes[index] for second in seconds] for name, index in _INDEX.items()}
    known = max(0, min(SECONDS, int(now - counts.started)))
    return Snapshot(outcomes, known, busiest, refused, *_calls(seconds))


def _calls(seconds: list[_Second]) -> tuple[int, int, float, float]:
    """Calls to the store, failed calls, and the mean and the longest time of a call in milliseconds."""
    calls, failed = sum(one.calls for one in seconds), sum(one.failed for one in seconds)
    taken, slowest = sum(one.seconds for one in seconds), max(one.slowest for one in seconds)
    return calls, failed, 1000 * taken / max(1, calls), 1000 * slowest


def _ranked(tops: Sequence[Top]) -> list[Ranked]:
    top = Top.of(tops)
    ordered = nlargest(_TOP, top.counts.items(), key=lambda item: item[1])
    return [Ranked(name, count, bool(top.floor)) for name, count in ordered]
