"""Nodes of a cluster that do not answer are left alone for a while, so that those who need others need not wait."""

from __future__ import annotations

import time
from collections.abc import Callable

from .url import Address

_TIMES = 2  # it did not answer in time
_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 5.0


class NodeBackoff:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._silent: dict[Address, tuple[int, float]] = {}  # how often, and from when on it may be tried again

    def skip(self, address: Address) -> bool:
        """Whether to leave it alone. After a pause one may try it, and the others go on without."""
        known = self._silent.get(address)
        if known is None or known[0] < _TIMES:
            return False
        times, again_at = known
        if self._now() < again_at:
            return True
        self._silent[address] = times, self._now() + _LONGEST_PAUSE
        return False

    def heard(self, address: Address) -> None:
        if self._silent:
            self._silent.pop(address, None)

    def unheard(self, address: Address) -> None:
        times = self._silent.get(address, (0, 0.0))[0] + 1
        pause = min(_FIRST_PAUSE * 2 ** min(times - _TIMES, 10), _LONGEST_PAUSE)
        self._silent[address] = times, self._now() + pause
