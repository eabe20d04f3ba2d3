"""Numbers that worker processes share with the demo through a mapped file.

The pages belong to the system, not to the process that wrote them, so what a worker counted stays counted
when it is killed. Every number has one writer, and every event changes one number, so there is no lock.
"""

from __future__ import annotations

import mmap
from pathlib import Path

COSTS = (100, 200, 300)
"""What a call may cost, in tokens. Calls of each cost are counted apart: one number says calls and tokens."""

REFUSED, FIRST_MS, LAST_MS, ASKING, ADMITTED = range(5)
_WIDTH = ADMITTED + len(COSTS)
_BYTES = 8
_STOP = 0


class Counters:
    """Slot 0 is the demo's own and holds the stop sign; slot n is worker n's."""

    def __init__(self, path: Path, workers: int | None = None) -> None:
        """Map the file; with `workers` given, make it first, with a slot for each."""
        if workers is not None:
            path.write_bytes(bytes((workers + 1) * _WIDTH * _BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._numbers = memoryview(self._map).cast("Q")

    def slot(self, number: int) -> memoryview:
        return self._numbers[number * _WIDTH : (number + 1) * _WIDTH]

    @property
    def stopped(self) -> bool:
        return bool(self._numbers[_STOP])

    def stop(self) -> None:
        self._numbers[_STOP] = 1
