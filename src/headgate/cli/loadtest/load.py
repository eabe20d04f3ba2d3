"""The job of a load test, and the numbers that its workers share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from itertools import count

from .histogram import SIZE

RESOURCE = "loadtest"
STORE_TIMEOUT_SECONDS = 5.0

# The numbers in the slot of a worker
STAGE, REFUSED, UNAVAILABLE, SLOWEST = range(4)
READY, DONE = 1, 2  # the stages
HISTOGRAM = 4
ADMITTED = HISTOGRAM + SIZE  # from here on, one number for each entity


@dataclass(frozen=True, slots=True)
class Load:
    """`count`: decisions of all workers together; None: as many as the time allows. Amounts are written as text."""

    url: str
    namespace: str
    workers: int
    tasks: int
    entities: int
    consume: Mapping[str, str]
    count: int | None = None

    @property
    def width(self) -> int:
        return ADMITTED + self.entities

    def entity(self, number: int) -> str:
        return f"entity-{number}"

    @property
    def amounts(self) -> dict[str, int | Decimal]:
        return {name: int(text) if text.isdigit() else Decimal(text) for name, text in self.consume.items()}

    def turns(self, worker: int) -> Iterator[int]:
        """One for each decision of a worker."""
        if self.count is None:
            return count()
        return iter(range(worker, self.count + 1, self.workers))

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Load:
        return cls(**json.loads(text))
