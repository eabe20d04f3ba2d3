"""Coalescing for tasks (see `coalesce.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

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
from ...stores import CancelledLate, LostThenCancelled, SettledThenCancelled
from .coalesce import INTERRUPTED, MAX_BATCH, WITHDRAWN


class _TaskEntry:
    __slots__ = ("_landed", "answer", "future", "over", "request", "sent")

    def __init__(self, request: Request, future: asyncio.Future[Answer]) -> None:
        self.request = request
        self.future = future  # cancelled if the caller is gone
        self.answer: Answer | None = None
        self.sent = False
        self.over = False  # it has landed, with an answer or an error
        self._landed: asyncio.Future[None] | None = None  # for a caller that was cancelled, whose future is gone

    def land(self, answer: Answer | None, error: Exception | None) -> None:
        """With an answer, or with an error instead."""
        self.answer = answer
        self.over = True
        if self._landed is not None and not self._landed.done():
            self._landed.set_result(None)
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            assert answer is not None
            self.future.set_result(answer)

    def gives_back(self, answer: Answer | None) -> bool:
        """Its caller is gone, and what it took has to fly back."""
        if not self.future.cancelled() or self.request.mode is not Mode.TAKE or answer is None or not answer.allowed:
            return False
        self.request = refund(self.request)
        return True

    async def landing(self) -> None:
        """Wait for it, however often the caller is cancelled; it takes no longer than the store's deadline."""
        while not self.over:
            if self._landed is None:
                self._landed = asyncio.get_running_loop().create_future()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._landed])


class TaskCoalescer:
    """The same for tasks. A flight is a task of its own, so that no caller's cancellation can hurt another's request.

    With `together` False every request flies alone and at once.
    """

    def __init__(self, settle: Callable[[Sequence[Request]], Awaitable[list[Answer]]], *, together: bool) -> None:
        self._settle = settle
        self._together = together
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: list[_TaskEntry] = []
        self._flying = False
        self._alone = False  # the last flight had one request
        self._flights: set[asyncio.Task[None]] = set()

    async def settle(self, request: Request) -> Answer:
        if self._alone and not self._flying and request.mode in WITHDRAWN and self._loop is asyncio.get_running_loop():
            return await self._fly_alone(request)
        entry = self._submit(request)
        try:
            return await entry.future
        except asyncio.CancelledError:
            await self._let_go([entry])
            raise

    async def settle_each(self, batch: Sequence[Request]) -> list[Answer | Unanswered]:
        entries = [self._submit(request) for request in batch]
        results: list[Answer | Unanswered] = []
        try:
            for entry in entries:
                try:
                    results.append(await entry.future)
                except UNANSWERED as why:
                    results.append(why)
        except BaseException:
            await self._let_go(entries)
            raise
        return results

    async def _fly_alone(self, request: Request) -> Answer:
        """Without a task, and without the turn of the event loop that a task takes to start, as long as requests come
        one at a time. With several, that turn lets all callers that were answered together ask together again."""
        self._flying = True
        try:
            try:
                return (await self._settle((request,)))[0]
            except PartlyAnswered as partly:
                raise partly.first from None
            finally:
                self._flying = False
                if self._queue:
                    self._launch(asyncio.get_running_loop())
        except CancelledLate as late:
            answer = late.answers[0] if isinstance(late, SettledThenCancelled) else None
            if isinstance(answer, Answer) and answer.allowed and request.mode is Mode.TAKE:
                await self._submit(refund(request)).landing()
            raise late.own from None

    def enter(self) -> asyncio.AbstractEventLoop:
        """The running event loop. One that has ended may be followed by another: nothing of it can still arrive."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None and self._loop.is_running():
                raise ValidationError(
                    "this RateLimiter is in use in another event loop, and its connections belong to it: make a "
                    "RateLimiter for each event loop (they share the limits), or use SyncRateLimiter in threads"
                )
            self._loop, self._queue, self._flying = loop, [], False
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
            if flights := [flight for flight in self._flights if not flight.done()]:
                await asyncio.wait(flights, timeout=until - loop.time())
            elif self._flying:  # one flies alone, in a task of its caller's
                await asyncio.sleep(0.001)
            else:
                break

    def _submit(self, request: Request) -> _TaskEntry:
        loop = self.enter()
        entry = _TaskEntry(request, loop.create_future())
        self._queue.append(entry)
        if not self._flying or not self._together:
            self._launch(loop)
        return entry

    def _launch(self, loop: asyncio.AbstractEventLoop) -> None:
        aboard: list[_TaskEntry] = []
        flight = loop.create_task(self._fly(aboard))
        flight.add_done_callback(partial(self._ended, aboard))
        self._flights.add(flight)  # the loop itself holds tasks only weakly
        self._flying = True  # last: an interrupt before it leaves the next one free to launch

    def _ended(self, aboard: Sequence[_TaskEntry], flight: asyncio.Task[None]) -> None:
        """If it was cancelled before it began, or interrupted (KeyboardInterrupt), others must not wait for it."""
        self._flights.discard(flight)
        if flight.cancelled() or flight.exception() is not None:
            for entry in aboard:
                if entry not in self._queue and not (entry.over and entry.future.done()):
                    entry.land(entry.answer, None if entry.answer else RateLimiterUnavailable(INTERRUPTED))
            self._flying = False
            if self._queue:
                self._launch(flight.get_loop())

    async def _fly(self, aboard: list[_TaskEntry]) -> None:
        """`aboard`: those that it carries just now, for the case that it is interrupted."""
        size = MAX_BATCH if self._together else 1
        closing = False
        while self._queue:
            aboard[:] = batch = self._queue[:size]
            self._queue = self._queue[size:]
            for entry in batch:
                entry.sent = True
            self._alone = self._together and len(batch) == 1
            try:
                answers = await self._settle([entry.request for entry in batch])
            except PartlyAnswered as partly:
                self._land(batch, partly.results)
            except Exception as error:
                self._land(batch, (), error)
            except SettledThenCancelled as settled:
                self._land(batch, settled.answers)
            except BaseException as error:
                if type(error) is asyncio.CancelledError and not closing:
                    # By an event loop that is closing, before anything was sent. Its tasks still wait for their
                    # answers, or to give back.
                    closing = True
                    self._put_back(batch)
                    continue
                self._land(batch, (), RateLimiterUnavailable("the call was interrupted"))
                if not isinstance(error, LostThenCancelled):
                    raise
            else:
                self._land(batch, answers)
        self._flying = False

    def _land(
        self, batch: Sequence[_TaskEntry], results: Sequence[Answer | HeadgateError], error: Exception | None = None
    ) -> None:
        """What a caller took that is gone by now is given back by this flight, not by a task of the caller's: an event
        loop that closes cancels those."""
        for index, entry in enumerate(batch):
            result = results[index] if results else error
            answer = result if isinstance(result, Answer) else None
            if entry.gives_back(answer):
                self._queue.append(entry)
            else:
                entry.land(answer, result if isinstance(result, Exception) else None)

    def _put_back(self, batch: list[_TaskEntry]) -> None:
        for entry in batch:
            entry.sent = False
        self._queue[:0] = batch

    async def _let_go(self, entries: Sequence[_TaskEntry]) -> None:
        """Their caller was cancelled: withdraw what was not sent, wait for the rest, leave nothing taken."""
        for entry in entries:
            if not entry.future.cancel() and not entry.future.cancelled():
                entry.future.exception()  # it was seen, though its caller no longer waits for it
                if entry.request.mode is Mode.TAKE and entry.answer is not None and entry.answer.allowed:
                    await self._submit(refund(entry.request)).landing()
            elif not entry.sent and entry.request.mode in WITHDRAWN:
                self._queue.remove(entry)
                entry.over = True
        for entry in entries:
            await entry.landing()
