"""Observers: what a limiter tells of its decisions, to counters, to a callback and to the log.

A *watcher* counts: it is called for every decision and every call to the store. An *event* is a name with fields, for
the callback `on_event` and for the logger "headgate". Acquires are events only if there is a callback, or if the logger
is open for DEBUG. Without observers there is no overhead: the store's own methods are called (`Engine.wire`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

from ...core.decide import Answer, Parts, Request
from ...core.errors import UNANSWERED, RateLimitExceeded, ValidationError
from ...core.names import check_resource
from ...core.units import from_milli
from ...stores import SettledThenCancelled
from ..acquire.chain import own_amounts

if TYPE_CHECKING:
    from ..acquire.decision import Decision
    from .thresholds import Alert

log = logging.getLogger("headgate")

Outcome: TypeAlias = Literal["allowed", "refused", "degraded", "unavailable"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

EventName: TypeAlias = Literal[
    "acquire.granted",
    "acquire.refused",
    "acquire.waited",
    "lease.lost",
    "limit.threshold",
    "penalized",
    "reconcile.done",
    "rule.bad_cost",
    "rule.misconfigured",
    "shadow.refused",
    "store.down",
    "store.up",
]
_LEVELS: dict[str, int] = {
    "lease.lost": logging.WARNING,
    "limit.threshold": logging.WARNING,
    "penalized": logging.INFO,
    "reconcile.done": logging.INFO,
    "rule.bad_cost": logging.WARNING,
    "rule.misconfigured": logging.ERROR,
    "shadow.refused": logging.INFO,
    "store.down": logging.WARNING,
    "store.up": logging.WARNING,
}

Take: TypeAlias = "Callable[[Sequence[str], Parts, int], Answer]"
SettleBatch: TypeAlias = "Callable[[Sequence[Request], int | None], list[Answer]]"
AsyncSettleBatch: TypeAlias = "Callable[[Sequence[Request], int | None], Awaitable[list[Answer]]]"


@dataclass(frozen=True, slots=True)
class Event:
    name: EventName
    fields: dict[str, Any]

    def __str__(self) -> str:
        return " ".join((self.name, *(f"{name}={value!r}" for name, value in self.fields.items())))


class Watcher(Protocol):
    """Called by the thread or task that decided, so it should be fast. If it raises, that is logged once."""

    def decided(self, entity_id: str, resource: str, outcome: Outcome, seconds: float) -> None:
        """An acquire was decided within `seconds`, waiting included. `entity_id` is the stored one.

        "degraded": it passed without the store. "unavailable": it could not be decided, because
        of RateLimiterUnavailable or CorruptState.
        """

    def settled(self, requests: int, seconds: float, ok: bool) -> None:
        """One call to the store has ended. `ok`: it answered all of the requests that shared it."""

    # A watcher may also have `misconfigured(rule, cause)`: a rule of the HTTP adapters could not be applied;
    # `decided_here(resource)`: the decision that was just reported was made with prefetched tokens; and
    # `threshold(alert)`: the use of a limit has reached one of its thresholds.


class Observers:
    """All observers of a limiter. `active`: acquires have to be reported. It is a plain attribute, since every acquire
    reads it; `refresh` looks at the log level again."""

    def __init__(self, on_event: Callable[[Event], object] | None) -> None:
        if on_event is not None and not callable(on_event):
            raise ValidationError(f"on_event must be a function that takes an Event, not {on_event!r}")
        self._on_event = on_event
        self._lock = threading.RLock()
        self._failed: list[Watcher] = []
        self.active = False
        self._use(())

    def refresh(self) -> None:
        self.active = bool(self._watchers) or self._tells_acquires()

    def _tells_acquires(self) -> bool:
        return self._on_event is not None or log.isEnabledFor(logging.DEBUG)

    # Events

    def tell(self, name: EventName, **fields: Any) -> None:
        event = Event(name, fields)
        level = _LEVELS.get(name, logging.DEBUG)
        if log.isEnabledFor(level):
            log.log(level, "%s", event, extra={"event": name, "fields": fields})
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                log.exception("on_event failed on %s", name)  # the acquire goes on

    def _tell_decided(
        self, entity_id: str, resource: str, decision: Decision[Any], parts: Parts, seconds: float
    ) -> None:
        fields: dict[str, Any] = {"entity_id": entity_id, "resource": resource, "degraded": decision.degraded}
        fields["consume"] = {name: from_milli(milli) for name, milli in own_amounts(parts).items()}
        if not decision.allowed:
            self.tell("acquire.refused", **fields, retry_after_ms=decision.retry_after_ms)
            return
        if decision.waited:
            self.tell("acquire.waited", **fields, waited_seconds=round(seconds, 3))
        self.tell("acquire.granted", **fields)

    # Watchers

    @property
    def watched(self) -> bool:
        return bool(self._watchers)

    def add(self, watcher: Any) -> None:
        for name in ("decided", "settled"):
            if not callable(getattr(watcher, name, None)):
                raise ValidationError(
                    f"a watcher must have the methods decided() and settled(); {watcher!r} lacks {name}"
                )
        with self._lock:
            self._use((*(one for one in self._watchers if one is not watcher), watcher))

    def remove(self, watcher: Watcher) -> None:
        with self._lock:
            self._failed = [one for one in self._failed if one is not watcher]
            self._use(tuple(one for one in self._watchers if one is not watcher))

    def _use(self, watchers: tuple[Watcher, ...]) -> None:
        self._watchers = watchers
        self._deciders = tuple((one, one.decided) for one in watchers)
        self._settlers = tuple((one, one.settled) for one in watchers)
        self.refresh()

    def _each(self, method: str, *arguments: Any) -> None:
        for watcher in self._watchers:
            try:
                call = getattr(watcher, method, None)
                if call is not None:
                    call(*arguments)
            except Exception:
                self._complain(watcher)

    def _complain(self, watcher: Watcher) -> None:
        """Once for each watcher, or the log would be full of it."""
        with self._lock:
            new = not any(one is watcher for one in self._failed)
            if new:
                self._failed.append(watcher)
        if new:
            log.exception("the watcher %r failed; further failures of it are not logged", watcher)

    def misconfigured(self, rule: str, cause: str) -> None:
        """A rule could not be applied to a request; `cause` says why, in a word."""
        self._each("misconfigured", rule, cause)

    def settled(self, requests: int, seconds: float, ok: bool) -> None:
        for watcher, settled in self._settlers:
            try:
                settled(requests, seconds, ok)
            except Exception:
                self._complain(watcher)

    def threshold(self, alert: Alert) -> None:
        self._each("threshold", alert)
        self.tell("limit.threshold", **alert.as_dict())

    # Calls to the store

    def taking(self, take: Take) -> Take:
        @wraps(take)
        def observed(keys: Sequence[str], parts: Parts, now_ms: int) -> Answer:
            began = perf_counter()
            answer = take(keys, parts, now_ms)  # which does not fail: it is in this process
            self.settled(1, perf_counter() - began, True)
            return answer

        return observed

    def settling(self, settle: SettleBatch) -> SettleBatch:
        def observed(batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
            with _Settling(self, len(batch)):
                return settle(batch, now_ms)

        return observed

    def settling_later(self, settle: AsyncSettleBatch) -> AsyncSettleBatch:
        async def observed(batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
            with _Settling(self, len(batch)):
                return await settle(batch, now_ms)

        return observed

    # Decisions

    def deciding(self, asks: Iterable[tuple[str, str]]) -> Deciding:
        """Report decisions. `asks`: the stored id and the resource of each ask, in the order of the decisions."""
        return Deciding(self, asks)

    def _decided(self, entity_id: str, resource: str, outcome: Outcome, seconds: float) -> None:
        for watcher, decided in self._deciders:
            try:
                decided(entity_id, resource, outcome, seconds)
            except Exception:
                self._complain(watcher)


class _Settling:
    """One call to the store."""

    __slots__ = ("_began", "_observers", "_requests")

    def __init__(self, observers: Observers, requests: int) -> None:
        self._observers = observers
        self._requests = requests

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ok = error is None or isinstance(error, SettledThenCancelled)
        self._observers.settled(self._requests, perf_counter() - self._began, ok)


class Deciding:
    """Decisions in progress. An invalid ask is not reported: nothing was decided."""

    __slots__ = ("_asks", "_began", "_observers")

    def __init__(self, observers: Observers, asks: Iterable[tuple[str, str]]) -> None:
        self._observers = observers
        self._asks = asks

    def __enter__(self) -> Deciding:
        self._began = perf_counter()
        return self

    def decided(self, decisions: Iterable[Decision[Any]]) -> None:
        """What each ask came to. A decision may be about several."""
        seconds, observers = perf_counter() - self._began, self._observers
        tells = observers._tells_acquires()
        asks = iter(self._asks)
        for decision in decisions:
            outcome = outcome_of(decision)
            for parts, (entity_id, resource) in zip(decision._parts_by_ask(), asks):
                observers._decided(entity_id, resource, outcome, seconds)
                if decision._slice is not None:
                    observers._each("decided_here", resource)
                if tells and decision.error is None:
                    observers._tell_decided(entity_id, resource, decision, parts, seconds)

    def took_more(self, *, degraded: bool) -> None:
        """A lease took more: to be counted, and no event."""
        seconds = perf_counter() - self._began
        for entity_id, resource in self._asks:
            self._observers._decided(entity_id, resource, "degraded" if degraded else "allowed", seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, (*UNANSWERED, RateLimitExceeded)):
            outcome: Outcome = "refused" if isinstance(error, RateLimitExceeded) else "unavailable"
            seconds = perf_counter() - self._began
            with suppress(ValidationError):  # when the store is unavailable, not all of them have been checked
                for entity_id, resource in self._asks:
                    self._observers._decided(entity_id, check_resource(resource), outcome, seconds)


def outcome_of(decision: Decision[Any]) -> Outcome:
    if decision.error is not None:
        return "unavailable"
    if not decision.allowed:
        return "refused"
    return "degraded" if decision.degraded else "allowed"
