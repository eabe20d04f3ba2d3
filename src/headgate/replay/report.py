"""The report of a replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple


class Moment(NamedTuple):
    """The decisions from `start` until the next moment."""

    start: datetime
    allowed: int
    refused: int


@dataclass(frozen=True, slots=True)
class EntityReport:
    """`longest_wait_seconds`: the longest wait until a refused request would have passed. `never`: some requests never
    pass, because they are larger than the capacity. `because_of`: how often each limit refused; limits of ancestors are
    named `limit of ancestor`."""

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
    """`newly_refused`: allowed in the log, refused in the replay. `newly_allowed`: the reverse. `unlimited`: requests
    that consume nothing with a limit. `bad`: skipped lines; `first_bad` explains the first. `sample`: the share of the
    entities that the log contains. `entities`: all, those refused most often first. `moments`: each `step_seconds`
    long."""

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
        """`top`: include only this many entities."""
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
    """Decisions over time. The steps get longer as needed, so that their number stays bounded."""

    def __init__(self) -> None:
        self._steps = iter(_STEPS)
        self.step_seconds = next(self._steps)
        self._step_ms = self.step_seconds * 1000
        self._counts: dict[int, list[int]] = {}  # by number of the step: allowed, refused
        self._first = 0

    def add(self, at_ms: int, refused: bool) -> None:
        """Requests must be ordered by time."""
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
        """All moments, also those without requests."""
        if not self._counts:
            return []
        numbers = range(self._first, max(self._counts) + 1)
        return [
            Moment(datetime.fromtimestamp(number * self.step_seconds, timezone.utc), *self._counts.get(number, (0, 0)))
            for number in numbers
        ]
