"""The common part of both exporters: they watch a limiter, and record the instruments."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeAlias, TypeVar, get_args

from ..core.errors import ValidationError
from ..core.names import check_resource
from ..limiter import Alert, BreakerState, Outcome, RateLimiter, SyncRateLimiter
from .instruments import (
    BREAKER,
    CALL_DURATION,
    CALL_REQUESTS,
    DECISION_DURATION,
    DECISIONS,
    LEASES,
    LOCAL_DECISIONS,
    MISCONFIGURED,
    THRESHOLDS,
    WAITERS,
    Instrument,
)

M = TypeVar("M", bound="Metrics")
AnyLimiter: TypeAlias = "RateLimiter | SyncRateLimiter"
Record: TypeAlias = "Callable[[float], object]"
Values: TypeAlias = "tuple[str, ...]"  # of the labels of an instrument

OTHER = "other"


class MeasuredLimiters:
    """All limiters of one registry or provider. Gauges are read on collection; those with equal labels add up."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._members: tuple[Metrics, ...] = ()

    def add(self, member: Metrics) -> None:
        with self._lock:
            if any(one.limiter is member.limiter for one in self._members):
                raise ValidationError(f"{member.limiter!r} is already measured there: close() that exporter first")
            self._members += (member,)

    def remove(self, member: Metrics) -> None:
        with self._lock:
            self._members = tuple(one for one in self._members if one is not member)

    def read(self, gauge: Instrument) -> Mapping[Values, int]:
        found: Counter[Values] = Counter()
        for member in self._members:
            own, now = _own(member.limiter), _GAUGES[gauge](member.limiter)
            found.update({(*own, *values): number for values, number in now.items()})
        return found


def _own(limiter: AnyLimiter) -> Values:
    return (limiter.namespace, limiter.url.partition("://")[0])


def _breaker(limiter: AnyLimiter) -> dict[Values, int]:
    now = limiter.breaker_state
    return {(state,): int(state == now) for state in get_args(BreakerState)}


_GAUGES: dict[Instrument, Callable[[AnyLimiter], dict[Values, int]]] = {
    BREAKER: _breaker,
    WAITERS: lambda limiter: {(): limiter.waiters},
    LEASES: lambda limiter: {(): limiter.leases_held},
}


class Metrics(ABC):
    """The metrics of a limiter, until `close`.

    `resources`: those with their own label. All others are "other", because their number is unbounded.
    """

    def __init__(self, limiter: AnyLimiter, resources: Iterable[str], measured: MeasuredLimiters) -> None:
        self.limiter = limiter
        self._measured = measured
        self._resources = _checked(resources)
        own = _own(limiter)
        self._decisions: dict[tuple[str, str], tuple[Record, Record]] = {
            (outcome, resource): (
                self._record(DECISIONS, (*own, outcome, resource)),
                self._record(DECISION_DURATION, (*own, outcome)),
            )
            for outcome in get_args(Outcome)
            for resource in (*self._resources, OTHER)
        }
        self._local = {
            resource: self._record(LOCAL_DECISIONS, (*own, resource)) for resource in (*self._resources, OTHER)
        }
        self._thresholds = {
            resource: self._record(THRESHOLDS, (*own, resource)) for resource in (*self._resources, OTHER)
        }
        self._calls = {ok: self._record(CALL_DURATION, (*own, "ok" if ok else "failed")) for ok in (True, False)}
        self._requests = self._record(CALL_REQUESTS, own)
        # One exists from the start, so that a query returns 0 as long as nothing is wrong.
        stored = ("stored", "rules")
        self._misconfigured = {stored: self._record(MISCONFIGURED, (*own, *stored))}
        measured.add(self)
        limiter.watch(self)

    @abstractmethod
    def _record(self, instrument: Instrument, values: Values) -> Record:
        """A function that records a number with these label values."""

    def decided(self, entity_id: str, resource: str, outcome: Outcome, seconds: float) -> None:
        count, time = self._decisions[outcome, resource if resource in self._resources else OTHER]
        count(1)
        time(seconds)

    def decided_here(self, resource: str) -> None:
        self._local[resource if resource in self._resources else OTHER](1)

    def threshold(self, alert: Alert) -> None:
        self._thresholds[alert.resource if alert.resource in self._resources else OTHER](1)

    def settled(self, requests: int, seconds: float, ok: bool) -> None:
        self._calls[ok](seconds)
        self._requests(requests)

    def misconfigured(self, rule: str, cause: str) -> None:
        """The labels are rules and causes, which the operator defines: callers cannot add new ones."""
        count = self._misconfigured.get((rule, cause))
        if count is None:
            count = self._misconfigured[rule, cause] = self._record(MISCONFIGURED, (*_own(self.limiter), rule, cause))
        count(1)

    def close(self) -> None:
        """Stop watching the limiter. Counts stay; its gauges disappear. Idempotent."""
        self.limiter.unwatch(self)
        self._measured.remove(self)

    def __enter__(self: M) -> M:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _checked(resources: Any) -> frozenset[str]:
    if isinstance(resources, (str, bytes)) or not isinstance(resources, Iterable):
        raise ValidationError(f"resources must be a list of names, not {resources!r}")
    return frozenset(map(check_resource, resources))
