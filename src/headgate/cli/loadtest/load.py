"""What a load test does, as its processes are told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from itertools import count

RESOURCE = "loadtest"
STORE_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Load:
    """`count`: decisions of all workers, or None for as many as there is time for. Amounts are written as text."""

    url: str
    namespace: str
    workers: int
    tasks: int
    entities: int
    consume: Mapping[str, str]
    count: int | None = None

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
