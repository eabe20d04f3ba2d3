"""What a replay has found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple


class Moment(NamedTuple):
    """What happened from `start` on, until the next moment."""

    start: datetime
    allowed: int
    refused: int


@dataclass(frozen=True, slots=True)
class EntityReport:
    """`longest_wait_seconds`: of those refused, until it would have passed; `never`: some never would, they ask for
    more than a limit can hold. `because_of`: how often each limit refused, an ancestor's as `limit of ancestor`."""

    entity_id: str
    requests: int
    refused: int
    newly_refused: int
    newly_allowed: int
    first_refused: datetime | None
    longest_wait_seconds: float
    never: bool
    because_of: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        return {
            "entity_id": self.entity_id,
            "requests": self.requests,
            "refused": self.refused,
            "newly_refused": self.newly_refused,
            "newly_allowed": self.newly_allowed,
            "first_refused": None if self.first_refused is None else self.first_refused.isoformat(),
            "longest_wait_seconds": self.longest_wait_seconds,
            "never": self.never,
            "because_of": self.because_of,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """`newly_refused`: the log says they were allowed. `newly_allowed`: the log says they were refused. `unlimited`:
    there is no limit for anything they consume. `bad`: lines that were left out, and what was wrong with the first.
    `sample`: the part of the entities that the log has. `entities`: all of them, those refused most first. `moments`:
    each `step_seconds` long."""

    requests: int
    refused: int
    newly_refused: int
    newly_allowed: int
    unlimited: int
    bad: int
    first_bad: str | None
    sample: float
    seconds: float
    entities: Sequence[EntityReport]
    moments: Sequence[Moment]
    step_seconds: int

    @property
    def refused_share(self) -> float:
        return self.refused / self.requests if self.requests else 0.0

    @property
    def because_of(self) -> dict[str, int]:
        """How often each limit refused."""
        total: Counter[str] = Counter()
        for entity in self.entities:
            total.update(entity.because_of)
        return dict(total.most_common())

    def as_dict(self, top: int | None = None) -> dict[str, Any]:
        """`top`: so many entities."""
        return {
            "requests": self.requests,
            "refused": self.refused,
            "refused_share": self.refused_share,
            "newly_refused": self.newly_refused,
            "newly_allowed": self.newly_allowed,
            "unlimited": self.unlimited,
            "bad": self.bad,
            "first_bad": self.first_bad,
            "sample": self.sample,
            "seconds": round(self.seconds, 3),
            "because_of": self.because_of,
            "entities": [entity.as_dict() for entity in self.entities[:top]],
            "step_seconds": self.step_seconds,
            "moments": [
                {"start": one.start.isoformat(), "allowed": one.allowed, "refused": one.refused} for one in self.moments
            ],
        }


_MOST = 240  # moments
_STEPS = (1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400, 366 * 86_400)


class Timeline:
    """How many were allowed and refused over time, in steps as long as it takes for all to fit."""

    def __init__(self) -> None:
        self._steps = iter(_STEPS)
        self.step_seconds = next(self._steps)
        self._step_ms = self.step_seconds * 1000
        self._counts: dict[int, list[int]] = {}  # by number of the step: allowed, refused
        self._first = 0

    def add(self, at_ms: int, refused: bool) -> None:
        """Requests come in the order of time."""
        number = at_ms // self._step_ms
        counts = self._counts.get(number)
        if counts is None:
            if not self._counts:
                self._first = number
            self._counts[number] = counts = [0, 0]
            if number - self._first >= _MOST:
                counts[refused] += 1
                self._widen(at_ms)
                return
        counts[refused] += 1

    def _widen(self, last_ms: int) -> None:
        first_ms, before = self._first * self._step_ms, self._step_ms
        while (last_ms - first_ms) // self._step_ms >= _MOST - 1:
            self.step_seconds = next(self._steps)
            self._step_ms = self.step_seconds * 1000
        counts, self._counts = self._counts, {}
        for number, (allowed, refused) in counts.items():
            of = self._counts.setdefault(number * before // self._step_ms, [0, 0])
            of[0] += allowed
            of[1] += refused
        self._first = first_ms // self._step_ms

    def moments(self) -> list[Moment]:
        """All of them, also those in which nothing happened."""
        if not self._counts:
            return []
        numbers = range(self._first, max(self._counts) + 1)
        return [
            Moment(datetime.fromtimestamp(number * self.step_seconds, timezone.utc), *self._counts.get(number, (0, 0)))
            for number in numbers
        ]
