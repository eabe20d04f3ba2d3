"""Coalescing: while one call to the store is under way, requests queue up, and the next call takes them all.

A lone request finds nothing under way and leaves at once: there is no timer. Requests are sent in the
order in which they came, so the answers are those of one call each.

Cancellation. A take that is cancelled has no effect: it is withdrawn if it was not sent yet, otherwise it is
given back as soon as its answer is known. A force that is cancelled is sent and lands all the same, before its caller
hears of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from ..core.decide import Answer, Mode, Request, refund
from ..core.errors import PartlyUnavailable, RateLimiterUnavailable
from ..plan import to_the_end
from ..stores import LostThenCancelled, SettledThenCancelled
from .fork import anew_after_fork

MAX_BATCH = 512


def settle_each(
    settle: Callable[[Sequence[Request]], list[Answer]], batch: Sequence[Request]
) -> list[Answer | RateLimiterUnavailable]:
    """In as few calls as there can be."""
    results: list[Answer | RateLimiterUnavailable] = []
    for start in range(0, len(batch), MAX_BATCH):
        some = batch[start : start + MAX_BATCH]
        try:
            results += settle(some)
        except PartlyUnavailable as partial:
            results += [partial if answer is None else answer for answer in partial.answers]
        except RateLimiterUnavailable as away:
            results += [away] * len(some)
    return results


class _ThreadEntry:
    __slots__ = ("answer", "error", "gate", "leads", "request", "sent")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.answer: Answer | None = None
        self.error: BaseException | None = None
        self.leads = self.sent = False
        self.gate = threading.Lock()  # released by whoever has news for this thread
        self.gate.acquire()

    def result(self) -> Answer:
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer


class ThreadCoalescer:
    """Group commit. A thread that finds nobody under way sends its own request, and then appoints the first of those
    who have come in the meantime: it leads, sends everything that waits, answers the others, and so on."""

    def __init__(self, settle: Callable[[Sequence[Request]], list[Answer]]) -> None:
        self._settle = settle
        self.after_fork()
        anew_after_fork(self)

    def after_fork(self) -> None:
        """Nobody leads, nobody waits."""
        self._mutex = threading.Lock()
        self._queue: list[_ThreadEntry] = []
        self._led = False

    def settle(self, request: Request) -> Answer:
        alone, entry = False, None
        try:  # an interrupt may come at any moment, and somebody has to lead
            with self._mutex:
                alone = not self._led
                if alone:
                    self._led = True
                else:
                    entry = _ThreadEntry(request)
                    self._queue.append(entry)
            if entry is None:
                return self._settle((request,))[0]
            entry.gate.acquire()
            if entry.leads:
                self._lead(entry)
        except BaseException:
            if entry is not None:
                self._abandon(entry)
            raise
        finally:
            if alone:
                self._appoint()
        return entry.result()

    def _lead(self, leader: _ThreadEntry) -> None:
        batch: list[_ThreadEntry] = []
        try:
            with self._mutex:
                batch, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
                for entry in batch:
                    entry.sent = True
            for entry, answer in zip(batch, self._settle([entry.request for entry in batch])):
                entry.answer = answer
        except PartlyUnavailable as partial:
            for entry, part in zip(batch, partial.answers):
                entry.answer, entry.error = part, partial if part is None else None
        except Exception as error:
            _fail(batch, error)
        except BaseException:
            _fail(batch, RateLimiterUnavailable("the call was interrupted in the thread that made it"))
            raise
        finally:
            self._hand_over(leader, batch)

    def _hand_over(self, leader: _ThreadEntry, batch: list[_ThreadEntry]) -> None:
        leader.leads = False
        for entry in batch:
            if entry is not leader:
                entry.gate.release()
        self._appoint()

    def _appoint(self) -> None:
        """The next leader, if anybody waits."""
        with self._mutex:
            successor = self._queue[0] if self._queue else None
            self._led = successor is not None
            if successor is not None:
                successor.leads = True
        if successor is not None:
            successor.gate.release()

    def _abandon(self, entry: _ThreadEntry) -> None:
        """This thread was interrupted (KeyboardInterrupt): leave nothing taken, and nobody waiting for it."""
        with self._mutex:
            if not entry.leads and not entry.sent:
                if entry in self._queue:
                    self._queue.remove(entry)
                return
        if entry.leads:
            self._lead(entry)
        elif entry.answer is None and entry.error is None:
            entry.gate.acquire()
        if entry.request.mode is Mode.TAKE and entry.answer is not None and entry.answer.allowed:
            self.settle(refund(entry.request))


def _fail(batch: list[_ThreadEntry], error: BaseException) -> None:
    for entry in batch:
        entry.error = error


class _TaskEntry:
    __slots__ = ("answer", "future", "landed", "over", "request", "sent")

    def __init__(self, request: Request, future: asyncio.Future[Answer]) -> None:
        self.request = request
        self.future = future
        self.answer: Answer | None = None
        self.sent = False
        self.over = False  # it has landed, with an answer or an error
        self.landed: asyncio.Future[None] | None = None  # for a caller that was cancelled, whose future is gone

    def land(self, answer: Answer | None, error: Exception | None) -> None:
        self.answer = answer
        self.over = True
        if self.landed is not None:
            self.landed.set_result(None)
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            assert answer is not None
            self.future.set_result(answer)


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
        if (
            self._alone
            and not self._flying
            and request.mode in (Mode.TAKE, Mode.PEEK)  # others land even if their caller is gone
            and self._loop is asyncio.get_running_loop()
        ):
            return await self._fly_alone(request)
        entry = self._submit(request)
        try:
            return await entry.future
        except asyncio.CancelledError:
            await _surely(self._let_go(entry))
            raise

    async def settle_each(self, batch: Sequence[Request]) -> list[Answer | RateLimiterUnavailable]:
        entries = [self._submit(request) for request in batch]
        results: list[Answer | RateLimiterUnavailable] = []
        try:
            for entry in entries:
                try:
                    results.append(await entry.future)
                except RateLimiterUnavailable as away:
                    results.append(away)
        except BaseException:
            for entry in entries:
                if not entry.future.cancel() and not entry.future.cancelled():
                    entry.future.exception()  # it was seen, though nobody waits for it any more
            for entry in entries:
                await _surely(self._let_go(entry))
            raise
        return results

    async def _fly_alone(self, request: Request) -> Answer:
        """As long as nobody else comes, there is no need for a task, and for the turn of the loop until it starts. If
        others do come, that turn is what lets all who were answered together leave together again."""
        self._flying = True
        try:
            try:
                return (await self._settle((request,)))[0]
            finally:
                self._flying = False
                if self._queue:
                    self._launch(asyncio.get_running_loop())
        except SettledThenCancelled as settled:
            if request.mode is Mode.TAKE and settled.answers[0].allowed:
                await _surely(self._give_back(request))
            raise

    def _submit(self, request: Request) -> _TaskEntry:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # Nothing of an earlier event loop can still arrive.
            self._loop, self._queue, self._flying = loop, [], False
        entry = _TaskEntry(request, loop.create_future())
        self._queue.append(entry)
        if not self._flying or not self._together:
            self._launch(loop)
        return entry

    def _launch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._flying = True
        flight = loop.create_task(self._fly())
        self._flights.add(flight)  # the loop itself holds tasks only weakly
        flight.add_done_callback(self._ended)

    def _ended(self, flight: asyncio.Task[None]) -> None:
        self._flights.discard(flight)
        if flight.cancelled():  # before it began
            self._flying = False
            if self._queue:
                self._launch(flight.get_loop())

    async def _fly(self) -> None:
        size = MAX_BATCH if self._together else 1
        closing = False
        while self._queue:
            batch, self._queue = self._queue[:size], self._queue[size:]
            for entry in batch:
                entry.sent = True
            self._alone = self._together and len(batch) == 1
            try:
                answers = await self._settle([entry.request for entry in batch])
            except PartlyUnavailable as partial:
                for entry, part in zip(batch, partial.answers):
                    entry.land(part, partial if part is None else None)
            except Exception as error:
                for entry in batch:
                    entry.land(None, error)
            except SettledThenCancelled as settled:
                for entry, answer in zip(batch, settled.answers):
                    entry.land(answer, None)
            except BaseException as error:
                if type(error) is asyncio.CancelledError and not closing:
                    # By an event loop that is closing, before anything was sent. Its tasks still wait for their
                    # answers, or to give back.
                    closing = True
                    self._put_back(batch)
                    continue
                for entry in batch:
                    entry.land(None, RateLimiterUnavailable("the call was interrupted"))
                if not isinstance(error, LostThenCancelled):
                    raise
            else:
                for entry, answer in zip(batch, answers):
                    entry.land(answer, None)
        self._flying = False

    def _put_back(self, batch: list[_TaskEntry]) -> None:
        for entry in batch:
            entry.sent = False
        self._queue[:0] = batch

    async def _let_go(self, entry: _TaskEntry) -> None:
        takes = entry.request.mode is Mode.TAKE
        if not entry.sent and (takes or entry.request.mode is Mode.PEEK):
            self._queue.remove(entry)
            return
        if not entry.over:
            entry.landed = asyncio.get_running_loop().create_future()
            await entry.landed
        if takes and entry.answer is not None and entry.answer.allowed:
            await self._give_back(entry.request)

    async def _give_back(self, request: Request) -> None:
        await self._submit(refund(request)).future


async def _surely(work: Coroutine[Any, Any, None]) -> None:
    """Wait for it, whoever else may cancel us meanwhile; it takes no longer than the store's deadline."""
    with suppress(Exception, asyncio.CancelledError):
        await to_the_end(work)
