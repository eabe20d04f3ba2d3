"""Numbers that worker processes share with the test through a mapped file. Each has one writer, so there is no lock."""

from __future__ import annotations

import mmap
from pathlib import Path

from .histogram import SIZE

STAGE, REFUSED, UNAVAILABLE, SLOWEST = range(4)
READY, DONE = 1, 2  # the stages of a worker
HISTOGRAM = 4
ADMITTED = HISTOGRAM + SIZE  # from here on one number for each entity
_BYTES = 8
_GO, _STOP = range(2)


class Counters:
    """Slot 0 is the test's own and holds its signs; slot n is worker n's."""

    def __init__(self, path: Path, entities: int, workers: int | None = None) -> None:
        """Map the file; with `workers` given, make it first, with a slot for each."""
        self._width = ADMITTED + entities
        if workers is not None:
            path.write_bytes(bytes((workers + 1) * self._width * _BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._numbers = memoryview(self._map).cast("Q")

    def slot(self, number: int) -> memoryview:
        return self._numbers[number * self._width : (number + 1) * self._width]

    @property
    def begun(self) -> bool:
        return bool(self._numbers[_GO])

    def begin(self) -> None:
        self._numbers[_GO] = 1

    @property
    def stopped(self) -> bool:
        return bool(self._numbers[_STOP])

    def stop(self) -> None:
        self._numbers[_STOP] = 1
