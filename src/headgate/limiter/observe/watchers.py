"""Watching: every decision, and every call to the store that decides, told to those who count them.

Who is not watched does not pay for it: a limiter that is goes other ways (`_wire`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from time import perf_counter
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias, get_args

from ...core.decide import Answer, Parts, Request
from ...core.errors import UNANSWERED, RateLimitExceeded, ValidationError
from ...core.names import check_resource
from ...stores import SettledThenCancelled

log = logging.getLogger("headgate")

Outcome: TypeAlias = Literal["allowed", "refused", "degraded", "unavailable"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

Take: TypeAlias = "Callable[[Sequence[str], Parts, int], Answer]"
SettleBatch: TypeAlias = "Callable[[Sequence[Request], int | None], list[Answer]]"
AsyncSettleBatch: TypeAlias = "Callable[[Sequence[Request], int | None], Awaitable[list[Answer]]]"


class Watcher(Protocol):
    """It is told by the thread or the task that decided, and should be fast. If it fails, that is logged once."""

    def decided(self, entity_id: str, resource: str, outcome: Outcome, seconds: float) -> None:
        """Something asked for was decided in so many seconds, waiting included. The id is the stored one.

        "degraded": it passed without the store. "unavailable": it could not be decided, because
        of RateLimiterUnavailable or CorruptState.
        """

    def settled(self, requests: int, seconds: float, ok: bool) -> None:
        """One call to the store is over. `ok`: it answered all of the requests that shared it."""

    # A watcher may also have `misconfigured(rule, cause)`: a rule of the HTTP adapters could not be obeyed.


def outcome_of(allowed: bool, degraded: bool, error: Exception | None = None) -> Outcome:
    if error is not None:
        return "unavailable"
    if not allowed:
        return "refused"
    return "degraded" if degraded else "allowed"


class Watchers:
    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._all: tuple[Watcher, ...] = ()
        self._failed: list[Watcher] = []

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, watcher: Any) -> None:
        for name in ("decided", "settled"):
            if not callable(getattr(watcher, name, None)):
                raise ValidationError(
                    f"a watcher must have the methods decided() and settled(); {watcher!r} lacks {name}"
                )
        with self._lock:
            self._all = (*(one for one in self._all if one is not watcher), watcher)

    def remove(self, watcher: Watcher) -> None:
        with self._lock:
            self._all = tuple(one for one in self._all if one is not watcher)
            self._failed = [one for one in self._failed if one is not watcher]

    def decided(self, entity_id: str, resource: str, outcome: Outcome, seconds: float) -> None:
        for watcher in self._all:
            try:
                watcher.decided(entity_id, resource, outcome, seconds)
            except Exception:
                self._complain(watcher)

    def settled(self, requests: int, seconds: float, ok: bool) -> None:
        for watcher in self._all:
            try:
                watcher.settled(requests, seconds, ok)
            except Exception:
                self._complain(watcher)

    def misconfigured(self, rule: str, cause: str) -> None:
        """A rule could not be obeyed for a request, and why, in a word."""
        for watcher in self._all:
            told = getattr(watcher, "misconfigured", None)
            try:
                if told is not None:
                    told(rule, cause)
            except Exception:
                self._complain(watcher)

    def _complain(self, watcher: Watcher) -> None:
        """Once: whoever acquires has nothing to do with it, and the log would be full of it."""
        with self._lock:
            new = not any(one is watcher for one in self._failed)
            if new:
                self._failed.append(watcher)
        if new:
            log.exception("the watcher %r failed; if it does so again, that is not said", watcher)

    def taking(self, take: Take) -> Take:
        @wraps(take)
        def watched(keys: Sequence[str], parts: Parts, now_ms: int) -> Answer:
            began = perf_counter()
            answer = take(keys, parts, now_ms)  # which does not fail: it is in this process
            self.settled(1, perf_counter() - began, True)
            return answer

        return watched

    def settling(self, settle: SettleBatch) -> SettleBatch:
        def watched(batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
            with _Settling(self, len(batch)):
                return settle(batch, now_ms)

        return watched

    def settling_later(self, settle: AsyncSettleBatch) -> AsyncSettleBatch:
        async def watched(batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
            with _Settling(self, len(batch)):
                return await settle(batch, now_ms)

        return watched


class _Settling:
    """A call to the store."""

    __slots__ = ("_began", "_requests", "_watchers")

    def __init__(self, watchers: Watchers, requests: int) -> None:
        self._watchers = watchers
        self._requests = requests

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ok = error is None or isinstance(error, SettledThenCancelled)
        self._watchers.settled(self._requests, perf_counter() - self._began, ok)


class Deciding:
    """Asks under way, each a stored id and a resource. Of those that are wrong nobody hears: nothing was decided."""

    __slots__ = ("_asks", "_began", "_watchers")

    def __init__(self, watchers: Watchers, asks: Iterable[tuple[str, str]]) -> None:
        self._watchers = watchers
        self._asks = asks

    def __enter__(self) -> Deciding:
        self._began = perf_counter()
        return self

    def over(self, outcomes: Iterable[Outcome]) -> None:
        """What became of each."""
        seconds, decided = perf_counter() - self._began, self._watchers.decided
        for (entity_id, resource), outcome in zip(self._asks, outcomes):
            decided(entity_id, resource, outcome, seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, (*UNANSWERED, RateLimitExceeded)):
            outcome: Outcome = "refused" if isinstance(error, RateLimitExceeded) else "unavailable"
            seconds = perf_counter() - self._began
            with suppress(ValidationError):  # where the store is away, not all of them have been looked at
                for entity_id, resource in self._asks:
                    self._watchers.decided(entity_id, check_resource(resource), outcome, seconds)


class _Unwatched:
    """In the place of Deciding."""

    def __enter__(self) -> _Unwatched:
        return self

    def over(self, outcomes: Iterable[Outcome]) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


_UNWATCHED = _Unwatched()


def deciding(watchers: Watchers, asks: Iterable[tuple[str, str]]) -> Deciding | _Unwatched:
    return Deciding(watchers, asks) if watchers else _UNWATCHED
