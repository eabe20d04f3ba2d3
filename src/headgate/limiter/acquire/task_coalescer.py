"""Coalescing for tasks (see `coalesce.py`).

A store that can have several batches in progress has two: while the server works on one, the answers of the other are
handed out, and its callers ask again. As soon as half of all callers have asked, their batch leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    _Future = asyncio.Future[Answer]
else:
    _Future = asyncio.Future


class _TaskEntry(_Future):
    """A request, and the future that its caller awaits: cancelled if the caller is gone."""

    request: Request
    ended = False  # it has landed, or was withdrawn, after its caller was gone
    _landed: asyncio.Future[None] | None = None  # for a caller that is gone, and waits for the landing

    @property
    def over(self) -> bool:
        return self.ended or (self.done() and not self.cancelled())

    @property
    def taken(self) -> bool:
        """It has an answer, and took something."""
        if not self.done() or self.cancelled() or self.exception() is not None:
            return False
        return self.request.mode is Mode.TAKE and self.result().allowed

    def land(self, answer: Answer | None, error: Exception | None) -> None:
        """With an answer, or with an error instead."""
        if self.done():
            self.end()
        elif error is not None:
            self.set_exception(error)
        else:
            assert answer is not None
            self.set_result(answer)

    def end(self) -> None:
        self.ended = True
        if self._landed is not None and not self._landed.done():
            self._landed.set_result(None)

    def gives_back(self, answer: Answer | None) -> bool:
        """Its caller is gone, and what it took has to fly back."""
        if not self.cancelled() or self.request.mode is not Mode.TAKE or answer is None or not answer.allowed:
            return False
        self.request = refund(self.request)
        return True

    async def landing(self) -> None:
        """Wait for it, however often the caller is cancelled; it takes no longer than the store's deadline."""
        while not self.over:
            if not self.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([self])
                continue
            if self._landed is None:
                self._landed = self.get_loop().create_future()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._landed])


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
        self._tasks: set[asyncio.Task[None]] = set()
        self._reset()

    def _reset(self) -> None:
        self._queue: list[_TaskEntry] = []
        self._started: dict[int, list[_TaskEntry]] = {}  # batches in progress that no task waits for
        self._half = 1  # so many leave at once
        self._woken = 0  # callers answered in this turn of the loop, who will ask again

    async def settle(self, request: Request) -> Answer:
        entry = self.submit(request)
        try:
            return await entry
        except asyncio.CancelledError:
            await self.let_go([entry])
            raise

    async def settle_each(self, batch: Sequence[Request]) -> list[Answer | Unanswered]:
        entries = [self.submit(request) for request in batch]
        results: list[Answer | Unanswered] = []
        try:
            for entry in entries:
                try:
                    results.append(await entry)
                except UNANSWERED as why:
                    results.append(why)
        except BaseException:
            await self.let_go(entries)
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
            self._loop, self._tasks = loop, set()
            self._reset()
        return loop

    async def drain(self, seconds: float) -> None:
        """Before the store is closed: wait until what was sent, and what is given back, has landed. `asyncio.gather`
        ends with the first of its tasks that is cancelled, while the others still give back."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        asking = [entry for entry in self._queue if entry.request.mode in WITHDRAWN]
        self._queue = [entry for entry in self._queue if entry.request.mode not in WITHDRAWN]
        for entry in asking:
            entry.land(None, LimiterClosed("this RateLimiter was closed meanwhile; make a new one"))
        while self._loop is loop and loop.time() < until:
            if tasks := [task for task in self._tasks if not task.done()]:
                await asyncio.wait(tasks, timeout=until - loop.time())
            elif self._started or self._queue:
                await asyncio.sleep(0.001)
            else:
                break

    def submit(self, request: Request) -> _TaskEntry:
        loop = self.enter()
        entry = _TaskEntry(loop=loop)
        entry.request = request
        self._queue.append(entry)
        if len(self._queue) >= self._half or not self._together:
            self._depart(loop)
        elif len(self._queue) == 1 or not (self._started or self._tasks):
            loop.call_soon(self._leave, loop)
        return entry

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
            self._tasks = {task for task in self._tasks if not task.done()}
        if len(self._started) < MOST_FLIGHTS and not self._tasks and not self._sent(loop) and not self._started:
            self._launch(loop)

    def _sent(self, loop: asyncio.AbstractEventLoop) -> bool:
        if self._start is None:
            return False
        batch = self._queue[:MAX_BATCH]
        self._started[id(batch)] = batch
        sent = False
        try:
            sent = self._start([entry.request for entry in batch], partial(self._arrived, loop, batch))
        finally:
            if sent:
                self._queue = self._queue[MAX_BATCH:]
            else:
                self._started.pop(id(batch), None)
        return sent

    def _arrived(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: list[_TaskEntry],
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
        aboard: list[_TaskEntry] | None = None,
    ) -> None:
        aboard = [] if aboard is None else aboard
        task = loop.create_task(work or self._fly(aboard))
        task.add_done_callback(partial(self._ended, aboard))
        self._tasks.add(task)  # last: an interrupt before it leaves the next one free to launch

    def _ended(self, aboard: list[_TaskEntry], task: asyncio.Task[None]) -> None:
        """If it was cancelled before it began, or interrupted (KeyboardInterrupt), others must not wait for it."""
        self._tasks.discard(task)
        loop = task.get_loop()
        if loop is not self._loop:
            return
        if task.cancelled() or task.exception() is not None:
            self._interrupted(aboard)
        if self._queue:
            loop.call_soon(self._leave, loop)

    def _interrupted(self, batch: Sequence[_TaskEntry]) -> None:
        for entry in batch:
            if entry not in self._queue and not entry.over:
                entry.land(None, RateLimiterUnavailable(INTERRUPTED))

    async def _fly(self, aboard: list[_TaskEntry]) -> None:
        """`aboard`: those that it carries just now, for the case that it is interrupted."""
        size = MAX_BATCH if self._together else 1
        closing = False
        while self._queue:
            aboard[:] = batch = self._queue[:size]
            self._queue = self._queue[size:]
            try:
                await self._finish(batch, again=not closing)
            except asyncio.CancelledError:
                # By an event loop that is closing, before anything was sent. Its tasks still wait for their answers, or
                # to give back.
                closing = True
                self._queue[:0] = batch
            if self._start is not None:
                break  # the next one may be started

    async def _finish(
        self, batch: Sequence[_TaskEntry], rest: Awaitable[list[Answer]] | None = None, *, again: bool = False
    ) -> None:
        """Settle the batch, or do the `rest` of it. `again`: if it is cancelled before anything was sent, that is
        raised."""
        try:
            answers = await (rest or self._settle([entry.request for entry in batch]))
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

    def _land(
        self, batch: Sequence[_TaskEntry], results: Sequence[Answer | HeadgateError], error: Exception | None = None
    ) -> None:
        """What a caller took that is gone by now is given back from here, not by a task of the caller's: an event loop
        that closes cancels those."""
        for index, entry in enumerate(batch):
            result = results[index] if results else error
            if type(result) is Answer:
                if not entry.done():
                    entry.set_result(result)
                elif entry.gives_back(result):
                    self._queue.append(entry)
                else:
                    entry.end()
            else:
                entry.land(None, result)  # type: ignore[arg-type]  # the only other results are errors

    async def let_go(self, entries: Sequence[_TaskEntry]) -> None:
        """Their caller was cancelled: withdraw what was not sent, wait for the rest, leave nothing taken."""
        for entry in entries:
            if not entry.cancel() and not entry.cancelled():
                if entry.taken:
                    await self.submit(refund(entry.request)).landing()
            elif entry in self._queue and entry.request.mode in WITHDRAWN:
                self._queue.remove(entry)
                entry.end()
        for entry in entries:
            await entry.landing()
