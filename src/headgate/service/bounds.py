"""Bounds for one client: sizes of bodies, rate of requests, number of waiting requests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ..core.errors import RateLimitExceeded
from ..core.limit import Limit
from ..http.answer import Headers, too_many
from ..limiter import RateLimiter
from .problems import ProblemError
from .reading import Gone, Receive

T = TypeVar("T")

MAX_BODY_BYTES = 64 * 1024
MAX_BATCH_BYTES = 1024 * 1024
MAX_WAITING = 1000
MAX_REQUESTS = "5000/second"
_RESOURCE = "requests"


class RequestBound:
    """A rate limit for each token, by headgate itself, in this process."""

    def __init__(self, limit: Limit) -> None:
        self._limiter = RateLimiter("memory://")
        self._limits = (limit,)
        self._one = {limit.name: 1}
        self._headers = Headers()

    async def check(self, token: str) -> None:
        decision = await self._limiter.try_acquire(token, _RESOURCE, self._one, self._limits)
        if not decision.allowed:
            refused = RateLimitExceeded(decision.statuses)
            headers = self._headers.of_refusal(refused, self._limiter.clock)
            raise ProblemError.with_(too_many(refused, headers))

    async def close(self) -> None:
        await self._limiter.close()


class Waiting:
    """Requests that wait for tokens, up to a maximum. A client that disconnects gives back what was reserved."""

    def __init__(self, most: int = MAX_WAITING) -> None:
        self._most = most
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def run(self, work: Coroutine[Any, Any, T], receive: Receive) -> T:
        """The result of the work, unless the client disconnects or the service shuts down."""
        if len(self._tasks) >= self._most:
            work.close()
            raise _busy(f"{self._most} requests are waiting already: retry later, or do not wait")
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(_until_gone(receive))
        self._tasks.add(task)
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Gone
            if task.cancelled():
                raise _busy("the service is shutting down: use another instance, or retry later")
            return task.result()
        finally:
            self._tasks.discard(task)
            for one in (task, gone):
                one.cancel()
                with suppress(BaseException):
                    await one  # after this, what was reserved has been given back

    def end(self) -> None:
        """Cancel all waiting requests."""
        for task in self._tasks:
            task.cancel()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _busy(detail: str) -> ProblemError:
    return ProblemError(503, detail, [("Retry-After", "1")])
