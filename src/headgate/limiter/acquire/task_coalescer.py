"""Coalescing for tasks (see `coalesce.py`).

A store that can have several batches in progress has two: while the server works on one, the answers of the other are
handed out, and its callers ask again. As soon as half of all callers have asked, their batch leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from ...core.decide import Answer, Mode, Request, refund
from ...core.errors import (
    UNANSWERED,
    HeadgateError,
    LimiterClosed,
    PartlyAnswered,
    RateLimiterUnavailable,
    Unanswered,
    ValidationError,
)
from ...stores import LostThenCancelled, SettledThenCancelled
from ...stores.contract import Landed, Rest
from .coalesce import INTERRUPTED, MAX_BATCH, WITHDRAWN

MOST_FLIGHTS = 2

# The requests of callers, in the order in which they came, by the future that the caller awaits: it is cancelled if the
# caller is gone. Plain futures and no objects of ours: tasks await them at two thirds of the cost.
Asked: TypeAlias = "dict[asyncio.Future[Answer], Request]"


class TaskCoalescer:
    """The same for tasks. No flight runs in a task of a caller, so that no cancellation of one can hurt the others.

    `settle` does a batch, in a task of its own. `start` sends one at once, if the store can do that just now.
    With `together` False every request flies alone and at once.
    """

    def __init__(
        self,
        settle: Callable[[Sequence[Request]], Awaitable[list[Answer]]],
        *,
        together: bool,
        start: Callable[[Sequence[Request], Landed], bool] | None = None,
    ) -> None:
        self._settle = settle
        self._start = start
        self._together = together
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reset()

    def _reset(self) -> None:
        self._queue: Asked = {}
        self._started: dict[int, Asked] = {}  # batches in progress that no task waits for
        self._tasks: dict[asyncio.Task[None], Asked] = {}  # the others
        self._half = 1  # so many leave at once
        self._declined = False  # the store takes no second batch before the first has landed
        self._woken = 0  # callers answered in this turn of the loop, who will ask again
        self._next_landing: asyncio.Future[None] | None = None

    async def settle(self, request: Request) -> Answer:
        future = self.submit(request)
        try:
            return await future
        except asyncio.CancelledError:
            await self.let_go({future: request})
            raise

    async def settle_each(self, batch: Sequence[Request]) -> list[Answer | Unanswered]:
        asked = {self.submit(request): request for request in batch}
        results: list[Answer | Unanswered] = []
        try:
            for future in asked:
                try:
                    results.append(await future)
                except UNANSWERED as why:
                    results.append(why)
        except BaseException:
            await self.let_go(asked)
            raise
        return results

    def enter(self) -> asyncio.AbstractEventLoop:
        """The running event loop. One that has ended may be followed by another: nothing of it can still arrive."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None and self._loop.is_running():
                raise ValidationError(
                    "this RateLimiter is in use in another event loop, and its connections belong to it: make a "
                    "RateLimiter for each event loop (they share the limits), or use SyncRateLimiter in threads"
                )
            self._loop = loop
            self._reset()
        return loop

    async def drain(self, seconds: float) -> None:
        """Before the store is closed: wait until what was sent, and what is given back, has landed. `asyncio.gather`
        ends with the first of its tasks that is cancelled, while the others still give back."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        asking = {future: request for future, request in self._queue.items() if request.mode in WITHDRAWN}
        self._queue = {future: request for future, request in self._queue.items() if future not in asking}
        self._land(asking, (), LimiterClosed("this RateLimiter was closed meanwhile; make a new one"))
        while self._loop is loop and loop.time() < until:
            if tasks := [task for task in self._tasks if not task.done()]:
                await asyncio.wait(tasks, timeout=until - loop.time())
            elif self._started or self._queue:
                await asyncio.sleep(0.001)
            else:
                break

    def submit(self, request: Request) -> asyncio.Future[Answer]:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self.enter()
        future: asyncio.Future[Answer] = asyncio.Future(loop=loop)
        queue = self._queue
        queue[future] = request
        if len(queue) >= self._half or not self._together:
            self._depart(loop)
        elif len(queue) == 1 or not (self._started or self._tasks):
            loop.call_soon(self._leave, loop)
        return future

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """A turn of the event loop later: all callers that were answered together ask together again."""
        if loop is self._loop and self._queue:
            self._depart(loop)

    def _depart(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send what waits, unless too much is under way."""
        if not self._together:
            self._launch(loop)
            return
        if self._tasks:  # one that was interrupted may not have said that it ended
            self._tasks = {task: aboard for task, aboard in self._tasks.items() if not task.done()}
        if len(self._started) == MOST_FLIGHTS or self._tasks or self._declined or self._sent(loop):
            return
        self._declined = bool(self._started)
        if not self._started:
            self._launch(loop)

    def _sent(self, loop: asyncio.AbstractEventLoop) -> bool:
        if self._start is None:
            return False
        batch, others = _first(self._queue, MAX_BATCH)
        self._started[id(batch)] = batch
        sent = False
        try:
            sent = self._start([*batch.values()], partial(self._arrived, loop, batch))
        finally:
            if sent:
                self._queue = others
            else:
                self._started.pop(id(batch), None)
        return sent

    def _arrived(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: Asked,
        answers: Sequence[Answer | HeadgateError],
        rest: Rest | None,
    ) -> None:
        if loop is not self._loop or id(batch) not in self._started:
            return  # another event loop, or it was interrupted
        if not self._woken:
            loop.call_soon(self._turned)
        # Half of all callers: those of this batch will ask again.
        self._half = (self._woken + sum(map(len, self._started.values())) + len(self._queue) + 1) // 2
        self._woken += len(batch)
        self._declined = False
        del self._started[id(batch)]
        try:
            if rest is not None:
                self._launch(loop, self._finish(batch, rest()), batch)
            else:
                self._land(batch, answers)
        except BaseException:
            self._interrupted(batch)
            raise
        finally:
            if self._queue:
                loop.call_soon(self._leave, loop)

    def _turned(self) -> None:
        self._woken = 0

    def _launch(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, None] | None = None,
        aboard: Asked | None = None,
    ) -> None:
        aboard = {} if aboard is None else aboard
        task = loop.create_task(work or self._fly(aboard))
        task.add_done_callback(partial(self._ended, aboard))
        self._tasks[task] = aboard  # last: an interrupt before it leaves the next one free to launch

    def _ended(self, aboard: Asked, task: asyncio.Task[None]) -> None:
        """If it was cancelled before it began, or interrupted (KeyboardInterrupt), others must not wait for it."""
        loop = task.get_loop()
        if loop is not self._loop:
            return
        self._tasks.pop(task, None)
        if task.cancelled() or task.exception() is not None:
            self._interrupted(aboard)
        if self._queue:
            loop.call_soon(self._leave, loop)

    def _interrupted(self, batch: Asked) -> None:
        lost = {future: request for future, request in batch.items() if future not in self._queue}
        batch.clear()
        self._land(lost, (), RateLimiterUnavailable(INTERRUPTED))

    async def _fly(self, aboard: Asked) -> None:
        """`aboard`: those that it carries just now, for the case that it is interrupted."""
        size = MAX_BATCH if self._together else 1
        closing = False
        while self._queue:
            batch, others = _first(self._queue, size)
            aboard.clear()
            aboard.update(batch)
            self._queue = others
            try:
                await self._finish(aboard, again=not closing)
            except asyncio.CancelledError:
                # By an event loop that is closing, before anything was sent. Its tasks still wait for their answers, or
                # to give back.
                closing = True
                self._queue = {**batch, **self._queue}
                aboard.clear()
            if self._start is not None:
                break  # the next one may be started

    async def _finish(self, batch: Asked, rest: Awaitable[list[Answer]] | None = None, *, again: bool = False) -> None:
        """Settle the batch, or do the `rest` of it. `again`: if it is cancelled before anything was sent, that is
        raised."""
        try:
            answers = await (rest or self._settle([*batch.values()]))
        except PartlyAnswered as partly:
            self._land(batch, partly.results)
        except Exception as error:
            self._land(batch, (), error)
        except SettledThenCancelled as settled:
            self._land(batch, settled.answers)
        except BaseException as error:
            if type(error) is asyncio.CancelledError and again:
                raise
            self._land(batch, (), RateLimiterUnavailable("the call was interrupted"))
            if not isinstance(error, LostThenCancelled):
                raise
        else:
            self._land(batch, answers)

    def _land(self, batch: Asked, results: Sequence[Answer | Exception], error: Exception | None = None) -> None:
        """What a caller took that is gone by now is given back from here, not by a task of the caller's: an event loop
        that closes cancels those."""
        results = results if error is None else [error] * len(batch)
        for (future, request), result in zip(batch.items(), results, strict=True):
            if future.done():
                if future.cancelled() and _took(request, result):
                    self._queue[future] = refund(request)
            elif isinstance(result, Answer):
                future.set_result(result)
            else:
                future.set_exception(result)
        batch.clear()
        if self._next_landing is not None and not self._next_landing.done():
            self._next_landing.set_result(None)

    async def let_go(self, asked: Asked) -> None:
        """Their caller was cancelled: withdraw what was not sent, wait for the rest, leave nothing taken."""
        back: Asked = {}
        for future, request in asked.items():
            if future.cancel() or future.cancelled():
                waiting = self._queue.get(future)
                if waiting is not None and waiting.mode in WITHDRAWN:  # it is not what gives back already
                    del self._queue[future]
            elif future.exception() is None and _took(request, future.result()):
                request = refund(request)
                back[self.submit(request)] = request
        await self._landed({**asked, **back})

    async def _landed(self, asked: Asked) -> None:
        """Wait for it, however often the caller is cancelled; it takes no longer than the store's deadline."""
        while any(
            not asked.keys().isdisjoint(aboard.keys())
            for aboard in (self._queue, *self._started.values(), *self._tasks.values())
        ):
            if self._next_landing is None or self._next_landing.done():
                self._next_landing = asyncio.get_running_loop().create_future()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._next_landing])


def _first(asked: Asked, count: int) -> tuple[Asked, Asked]:
    """The first ones, and the others."""
    if len(asked) <= count:
        return asked.copy(), {}
    items = [*asked.items()]
    return dict(items[:count]), dict(items[count:])


def _took(request: Request, result: Answer | Exception) -> bool:
    return request.mode is Mode.TAKE and isinstance(result, Answer) and result.allowed
