"""Tokens that were refused: counted, and logged now and then. The tokens themselves are written down nowhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

log = logging.getLogger("headgate")

Door: TypeAlias = Literal["api", "login", "envoy"]
Reason: TypeAlias = Literal["missing", "unknown", "expired", "scope"]
DOORS: tuple[Door, ...] = get_args(Door)
REASONS: tuple[Reason, ...] = get_args(Reason)

LOG_EVERY_SECONDS = 10.0


class AuthFailures:
    """A line for the first, and then one in a while for all that came since: nobody can fill the log with them.

    A request without a token is counted only: that is what probes and lost browsers send.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._next_line = float("-inf")
        self._untold = 0
        self.counts: dict[tuple[Door, Reason], int] = {(door, reason): 0 for door in DOORS for reason in REASONS}

    def count(self, door: Door, reason: Reason, who: str) -> None:
        """`who`: the address it came from, or the name of the token that lacks a scope."""
        self.counts[door, reason] += 1
        if reason == "missing":
            return
        now = self._now()
        if now < self._next_line:
            self._untold += 1
            return
        more = f"; {self._untold:,} more since the last line" if self._untold else ""
        log.warning("a token was refused (%s, %s) from %s%s", door, reason, who, more)
        self._next_line, self._untold = now + LOG_EVERY_SECONDS, 0
