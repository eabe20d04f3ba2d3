"""Generated requests: a few large callers and many small ones, in bursts, with more traffic by day than by night."""

from __future__ import annotations

import gzip
import heapq
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ..core.errors import ValidationError
from ..limiter.observe.request_log import log_line
from .log import LoggedRequest

_DAY_SECONDS = 86_400
_START = datetime(2026, 1, 5, tzinfo=timezone.utc)  # a Monday
_PAUSE_SECONDS = 0.4  # between the requests of a burst, on average
_TYPICAL_TOKENS, _SPREAD = 400, 0.9  # of `tpm`, log-normal: mostly little, sometimes a lot


@dataclass(frozen=True, slots=True)
class Traffic:
    """`rate`: average requests per second, of all entities. `burst`: average number of requests in a burst. `swing`:
    the difference between day and night, from 0 to 1. The same `seed` gives the same requests."""

    entities: int = 50
    rate: float = 5.0
    seconds: float = _DAY_SECONDS
    burst: float = 4.0
    swing: float = 0.8
    resource: str = "chat"
    start: datetime = _START
    seed: int = 1

    def __post_init__(self) -> None:
        for name, least, most in (
            ("entities", 1, 1_000_000),
            ("rate", 1e-6, 1e6),
            ("seconds", 1, 366 * _DAY_SECONDS),
            ("burst", 1, 1000),
            ("swing", 0, 1),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValidationError(f"{name} must be from {least:g} to {most:,}, not {value!r}")

    def __iter__(self) -> Iterator[LoggedRequest]:
        """Ordered by time."""
        chance = random.Random(self.seed)
        start_ms = round(self.start.timestamp() * 1000)
        coming: list[tuple[float, int]] = []  # requests of bursts that have begun: time and entity
        for began in self._bursts(chance):
            while coming and coming[0][0] <= began:
                yield self._request(chance, start_ms, *heapq.heappop(coming))
            entity = min(self.entities - 1, int(self._drawn(chance)))
            at = began
            while at < self.seconds:
                heapq.heappush(coming, (at, entity))
                if chance.random() < 1 / self.burst:
                    break
                at += chance.expovariate(1 / _PAUSE_SECONDS)
        while coming:
            yield self._request(chance, start_ms, *heapq.heappop(coming))

    def _bursts(self, chance: random.Random) -> Iterator[float]:
        """When bursts begin: at the rate of the busiest moment, thinned out for the others."""
        most = self.rate / self.burst * (1 + self.swing)
        at = chance.expovariate(most)
        while at < self.seconds:
            of_day = (self.start.timestamp() + at) % _DAY_SECONDS / _DAY_SECONDS
            busy = 1 - self.swing * math.cos(2 * math.pi * (of_day - 2 / 24))  # least at 2 o'clock, most at 14
            if chance.random() * (1 + self.swing) < busy:
                yield at
            at += chance.expovariate(most)

    def _drawn(self, chance: random.Random) -> float:
        """The number of an entity: each is half as busy as the entity with half its number."""
        return float(math.exp(chance.random() * math.log(self.entities + 1)) - 1)

    def _request(self, chance: random.Random, start_ms: int, at: float, entity: int) -> LoggedRequest:
        tokens = max(1, round(_TYPICAL_TOKENS * chance.lognormvariate(0, _SPREAD)))
        name = f"user-{entity + 1:0{len(str(self.entities))}}"
        return LoggedRequest(start_ms + round(at * 1000), name, self.resource, {"rpm": 1, "tpm": tokens})


def write_traffic(traffic: Traffic, path: str) -> int:
    """Write a log, compressed if its name ends in .gz. Returns the number of requests."""
    opened: Callable[..., Any] = gzip.open if path.endswith(".gz") else open
    count = 0
    try:
        with opened(path, "wt", encoding="utf-8") as file:
            for request in traffic:
                file.write(log_line(request.at_ms, request.entity_id, request.resource, request.consume))
                count += 1
    except OSError as error:
        raise ValidationError(f"{path!r} cannot be written: {error.strerror or error}") from None
    return count
