"""The circuit breaker: after a few failures in a row calls fail fast, except for one periodic probe."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from ...core.errors import Contended, HeadgateError, RateLimiterUnavailable
from ..fork import anew_after_fork
from ..observe.observers import Observers

BreakerState: TypeAlias = Literal["closed", "open", "half-open"]

FAILURES = 5
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 5.0


class Breaker:
    """Closed: calls go to the store. Open: they fail at once, until a pause is over. Half-open: one call probes the
    store, the others fail."""

    def __init__(self, where: str, observers: Observers, now: Callable[[], float] = time.monotonic) -> None:
        self._where = where
        self._observers = observers
        self._now = now
        self._lock = threading.RLock()
        self._failures = 0
        self._why = ""
        self._since = self._again_at = 0.0
        self._pause = FIRST_PAUSE
        self.state: BreakerState = "closed"
        anew_after_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.RLock()
        if self.state == "half-open":
            self.state = "open"  # who tries it is in the parent

    @property
    def _away(self) -> bool:
        return self.state != "closed"

    @property
    def failing(self) -> bool:
        """The last call failed."""
        return self._failures > 0

    def check(self) -> None:
        """Raise at once if the store is known to be away."""
        if not self._away:
            return
        with self._lock:
            now = self._now()
            if self.state == "open" and now >= self._again_at:
                self.state = "half-open"
            elif self._away:
                raise RateLimiterUnavailable(
                    f"{self._where} has been away for {now - self._since:.1f} s, and is tried again "
                    f"{f'in {self._again_at - now:.1f} s' if self.state == 'open' else 'just now'}: {self._why}"
                )

    def worked(self) -> None:
        if not self._failures:
            return
        with self._lock:
            self._failures, self._pause = 0, FIRST_PAUSE
            was, self.state = self.state, "closed"
            away = self._now() - self._since
        if was != "closed":
            self._observers.tell("store.up", store=self._where, away_seconds=round(away, 3))

    def ended(self, error: BaseException) -> None:
        """A call ended with an error. If that is one of the store's answers, it is there."""
        if isinstance(error, RateLimiterUnavailable) and not isinstance(error, Contended):
            self._failed(str(error))
        elif isinstance(error, HeadgateError):
            self.worked()
        else:
            with self._lock:  # cancelled, perhaps: it says nothing, and the next may try
                if self.state == "half-open":
                    self.state = "open"

    def _failed(self, why: str) -> None:
        with self._lock:
            self._failures += 1
            self._why = why
            was = self.state
            if self._failures < FAILURES:
                return
            if was == "closed":
                self._since = self._now()
            self.state = "open"
            if was != "open":  # calls that were in progress when it opened say nothing new
                self._again_at = self._now() + self._pause * random.uniform(0.8, 1.2)
                self._pause = min(self._pause * 2, LONGEST_PAUSE)
        if was == "closed":
            self._observers.tell("store.down", store=self._where, why=why)
