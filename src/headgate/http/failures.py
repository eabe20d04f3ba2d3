"""Rules that cannot be obeyed for a request: why, and who hears of it."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from time import monotonic
from typing import Literal, NamedTuple, TypeAlias, get_args

from ..core.errors import (
    CorruptState,
    EntityNotFound,
    LimiterClosed,
    LimitNotFound,
    NamespaceNotFound,
    RateLimiterUnavailable,
    SlotsNotWhole,
    StoreRefused,
    ValidationError,
)
from ..limiter import Ask
from ..limiter.base import BaseLimiter

Cause: TypeAlias = Literal[
    "bad_cost",
    "cost_raised",
    "no_limits",
    "unknown_limit",
    "entity",
    "namespace",
    "closed",
    "store",
    "rules",
    "corrupt",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)
BAD_COSTS: frozenset[Cause] = frozenset(["bad_cost", "cost_raised"])
_OF_ALL_RULES: frozenset[Cause] = frozenset(["namespace", "closed", "store"])
EVERY_SECONDS = 60.0
_KEPT = 1024
_EFFECTS = {
    "block": "requests are answered 503",
    "allow": "requests pass without it",
    "local": "this process decides alone, or answers 503 if it knows no limits",
}


class BadCost(ValidationError):
    """What a request costs cannot be charged. Its text may be sent to the caller; `log` says more."""

    def __init__(self, why: str, log: str = "", cause: Cause = "bad_cost") -> None:
        super().__init__(why)
        self.cause: Cause = cause
        self.log = log or why


class BadRules(ValidationError):
    """The stored rules cannot be understood."""


class Failure(NamedTuple):
    """A rule that could not be obeyed. `ask`: what it would have asked for, if that is known.

    `instead`: what happens anyhow; without it, that is for the outage policy to say.
    """

    rule_id: str
    error: Exception
    instead: str = ""
    ask: Ask | None = None

    @property
    def is_bad_cost(self) -> bool:
        return cause_of(self.error) in BAD_COSTS

    @property
    def is_store_refused(self) -> bool:
        """No outage: it does not end by itself, and nothing passes meanwhile."""
        return isinstance(self.error, StoreRefused)

    @property
    def has_limits(self) -> bool:
        """Whether the rule could be obeyed without the store."""
        away = isinstance(self.error, (LimitNotFound, RateLimiterUnavailable))
        return self.ask is not None and self.ask.limits is not None and not away


_CAUSES: dict[type[Exception], Cause] = {
    SlotsNotWhole: "bad_cost",
    EntityNotFound: "entity",
    NamespaceNotFound: "namespace",
    LimiterClosed: "closed",
    BadRules: "rules",
    CorruptState: "corrupt",
}


def cause_of(error: Exception) -> Cause:
    if isinstance(error, BadCost):
        return error.cause
    if isinstance(error, LimitNotFound):
        return "no_limits" if error.name is None else "unknown_limit"
    return next((cause for kind, cause in _CAUSES.items() if isinstance(error, kind)), "store")


class Minutely:
    """Lets something be said once a minute for each key, with how often there was reason to since then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Hashable, tuple[float, int]] = {}  # until when to be silent, and how often it was

    def times(self, key: Hashable) -> int:
        """How often it was; 0 if now is not the time to say so."""
        now = monotonic()
        with self._lock:
            until, times = self._known.get(key, (0.0, 0))
            due = now >= until
            if len(self._known) >= _KEPT and key not in self._known:
                self._known.clear()
            self._known[key] = (now + EVERY_SECONDS, 0) if due else (until, times + 1)
        return times + 1 if due else 0


class Reports:
    """Every failure is counted; each cause of each rule is an event, and so a line of the log, once a minute."""

    def __init__(self, limiter: BaseLimiter) -> None:
        self._limiter = limiter
        self._minutely = Minutely()

    def tell(self, failure: Failure, policy: str) -> None:
        error = failure.error
        if isinstance(error, RateLimiterUnavailable):
            return  # an outage, which the limiter itself tells of
        cause = cause_of(error)
        self._limiter.observers.misconfigured(failure.rule_id, cause)
        times = self._minutely.times(cause if cause in _OF_ALL_RULES else (failure.rule_id, cause))
        if times:
            self._limiter.observers.tell(
                "rule.bad_cost" if cause in BAD_COSTS else "rule.misconfigured",
                rule=failure.rule_id,
                cause=cause,
                why=error.log if isinstance(error, BadCost) else str(error),
                effect=failure.instead or ("requests are answered 400" if cause in BAD_COSTS else _EFFECTS[policy]),
                times=times,
            )
