"""The webhook: alerts go from the store to an endpoint, at least once, whichever process wrote them.

Every few seconds, and at once when this process has written an alert, the newest alerts are listed. One that is not
delivered is posted, and then marked in the store. One process at a time does so for a namespace. If it dies between the
two, another one posts the alert again.

An alert that was not accepted is tried again, after a pause that doubles. After some failures in a row nothing is sent
for such a pause, and then one alert, to try.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Literal, NamedTuple, TypeAlias, get_args

from ..core.errors import HeadgateError
from ..http.failures import Minutely
from ..limiter import Alert, RateLimiter
from ..limiter.bind import coroutine
from ..limiter.observe.delivery import leave_plan, turn_plan
from ..limiter.observe.thresholds import delivered_plan
from .endpoint import Endpoint, NotDelivered

log = logging.getLogger("headgate")

Result: TypeAlias = Literal["delivered", "failed"]
RESULTS: tuple[Result, ...] = get_args(Result)

_EVERY_SECONDS = 3.0
_REST = 9.0  # times as long as a look takes: thousands of namespaces do not keep decisions waiting
_PAGE = 500
_LATE = timedelta(minutes=5)  # that the clock of a process may be behind
_ALL_SECONDS = 3600.0  # between looks at all alerts, also those of clocks that are further behind
_DOWN_AFTER = 3
_LONGEST_PAUSE_SECONDS = 300.0
_MOST_FAILED = 10_000
_GRACE_SECONDS = 2.0

_NEVER = datetime(1970, 1, 1, tzinfo=timezone.utc)

_turn = coroutine(turn_plan)
_leave = coroutine(leave_plan)
_delivered = coroutine(delivered_plan)


class _Down(Exception):
    """The endpoint does not accept anything."""


class _Others(Exception):
    """Another process delivers the alerts of the namespace."""


class _Attempt(NamedTuple):
    number: int
    next_at: float


@dataclass(slots=True)
class _Looked:
    """How far a namespace was looked through. `since`: all alerts before are delivered."""

    since: datetime = _NEVER
    all_at: float = 0.0


class Webhook:
    """`limiters`: of the namespaces whose alerts it delivers."""

    def __init__(self, endpoint: Endpoint, limiters: Callable[[], Iterable[RateLimiter]]) -> None:
        self.counts: dict[tuple[str, Result], int] = {}
        self._endpoint = endpoint
        self._limiters = limiters
        self._holder = secrets.token_hex(8)
        self._alerted = asyncio.Event()
        self._stopped = asyncio.Event()
        self._looked: dict[str, _Looked] = {}
        self._unmarked: set[str] = set()  # ids of alerts that are delivered, but are not marked yet
        self._failed: dict[str, _Attempt] = {}  # by the id of the alert
        self._failures = 0  # in a row
        self._minutely = Minutely()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        """There is a new alert."""
        self._alerted.set()

    async def close(self) -> None:
        self._stopped.set()
        self._alerted.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_GRACE_SECONDS)
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        for limiter in self._limiters():
            with suppress(HeadgateError):
                await _leave(limiter, self._holder)

    async def _run(self) -> None:
        while not self._stopped.is_set():
            self._alerted.clear()
            began = time.perf_counter()
            try:
                await self._deliver_all()
            except _Down:
                await _until(self._stopped, _pause(self._failures - _DOWN_AFTER + 1))
                continue
            rest = max(_EVERY_SECONDS, min(_REST * (time.perf_counter() - began), _LONGEST_PAUSE_SECONDS))
            await _until(self._alerted, rest * random.uniform(0.8, 1.2))

    async def _deliver_all(self) -> None:
        for limiter in self._limiters():
            try:
                await self._deliver(limiter)
            except _Others:
                continue
            except HeadgateError as error:
                if times := self._minutely.times(limiter.namespace):
                    told = "alerts of %r cannot be read (%d times since the last message): %s"
                    log.warning(told, limiter.namespace, times, error)
            except (_Down, asyncio.CancelledError):
                raise
            except Exception:
                if self._minutely.times("unexpected"):
                    log.exception("alerts of %r could not be delivered", limiter.namespace)

    async def _deliver(self, limiter: RateLimiter) -> None:
        looked = self._looked.setdefault(limiter.namespace, _Looked())
        began, now = datetime.now(timezone.utc), time.monotonic()
        looks_at_all = now >= looked.all_at
        since, left, cursor = looked.since - _LATE if not looks_at_all else None, began, None
        while not self._stopped.is_set():
            page = await limiter.list_alerts(limit=_PAGE, cursor=cursor)
            for alert in page:
                if since is not None and alert.at < since:
                    cursor = None
                    break
                if not alert.delivered and not await self._handled(limiter, alert):
                    left = min(left, alert.at)
            else:
                cursor = page.cursor
            if cursor is None:
                looked.since = left
                looked.all_at = now + _ALL_SECONDS if looks_at_all else looked.all_at
                return

    async def _handled(self, limiter: RateLimiter, alert: Alert) -> bool:
        """Whether it is delivered now."""
        if alert.id not in self._unmarked:
            attempt = self._failed.get(alert.id, _Attempt(0, 0.0))
            if self._stopped.is_set() or time.monotonic() < attempt.next_at:
                return False
            turn = await _turn(limiter, self._holder, alert.id)
            if turn == "others":
                raise _Others
            if turn == "done":
                return True
            if not await self._sent(limiter, alert, attempt.number + 1):
                return False
        await _delivered(limiter, alert)
        self._unmarked.discard(alert.id)
        return True

    async def _sent(self, limiter: RateLimiter, alert: Alert, number: int) -> bool:
        try:
            await self._endpoint.post(message(limiter.namespace, alert))
        except NotDelivered as why:
            self._count(limiter, "failed")
            if times := self._minutely.times(self._endpoint):
                told = "the webhook %s failed (%d times since the last message): %s"
                log.warning(told, self._endpoint, times, why)
            if len(self._failed) >= _MOST_FAILED:
                self._failed.clear()
            self._failed[alert.id] = _Attempt(number, time.monotonic() + _pause(number))
            self._failures += 1
            if self._failures >= _DOWN_AFTER:
                raise _Down from None
            return False
        self._count(limiter, "delivered")
        self._unmarked.add(alert.id)
        self._failed.pop(alert.id, None)
        self._failures = 0
        return True

    def _count(self, limiter: RateLimiter, result: Result) -> None:
        place = limiter.namespace, result
        self.counts[place] = self.counts.get(place, 0) + 1


def message(namespace: str, alert: Alert) -> bytes:
    told = {name: value for name, value in alert.as_dict().items() if name != "delivered"}
    return json.dumps({"event": "limit.threshold", "namespace": namespace, **told}).encode()


def _pause(number: int) -> float:
    """After so many failures in a row."""
    return min(2.0 ** (min(number, 20) - 1), _LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1.0)


async def _until(event: asyncio.Event, seconds: float) -> None:
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
