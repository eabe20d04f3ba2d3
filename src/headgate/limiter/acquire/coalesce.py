"""Coalescing: while one call to the store is under way, requests queue up, and the next call takes them all.

A lone request finds nothing under way and leaves at once: there is no timer. Requests are sent in the
order in which they came, so the answers are those of one call each.

Cancellation. A take that is cancelled has no effect: it is withdrawn if it was not sent yet, otherwise it is
given back as soon as its answer is known. A force that is cancelled is sent and lands all the same, before its caller
hears of it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
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
from ...stores.locks import reentered
from ..fork import anew_after_fork

log = logging.getLogger("headgate")

MAX_BATCH = 512
LOOK_AGAIN_SECONDS = 0.1  # a thread that waits, in case the one that should wake it was interrupted
_NOT_SENT = -1
_WITHDRAWN = (Mode.TAKE, Mode.PEEK)  # if its caller is gone before it is sent; all others land nevertheless
_INTERRUPTED = "the call was interrupted in the thread that made it"


def settle_each(
    settle: Callable[[Sequence[Request]], list[Answer]], batch: Sequence[Request]
) -> list[Answer | Unanswered]:
    """In as few calls as there can be."""
    results: list[Answer | HeadgateError] = []
    for start in range(0, len(batch), MAX_BATCH):
        some = batch[start : start + MAX_BATCH]
        try:
            results += settle(some)
        except PartlyAnswered as partly:
            results += partly.results
        except RateLimiterUnavailable as away:
            results += [away] * len(some)
    return [_told(result) for result in results]


def _told(result: Answer | HeadgateError) -> Answer | Unanswered:
    """What a store has no answer to is told to who asked; any other error is the whole call's."""
    if isinstance(result, (Answer, *UNANSWERED)):
        return result
    raise result


class _Flight:
    """One call to the store. Its result is one assignment, so that an interrupt finds it made or not made."""

    __slots__ = ("answers", "error")

    def __init__(self) -> None:
        self.answers: Sequence[Answer | HeadgateError] | None = None
        self.error: Exception | None = None

    @property
    def over(self) -> bool:
        return self.answers is not None or self.error is not None


class _ThreadEntry:
    """`flight` is the call that carries the request, `place` where in it; before that it waits in the queue."""

    __slots__ = ("_gate", "flight", "place", "request", "withdrawn")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.flight: _Flight | None = None
        self.place = 0
        self.withdrawn = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def wait(self) -> None:
        self._gate.acquire(timeout=LOOK_AGAIN_SECONDS)

    def wake(self) -> None:
        with suppress(RuntimeError):  # it was woken already
            self._gate.release()

    def result(self) -> Answer:
        assert self.flight is not None
        answers, error = self.flight.answers, self.flight.error
        if answers is None:
            raise error or RateLimiterUnavailable(_INTERRUPTED)
        answer = answers[self.place]
        if isinstance(answer, HeadgateError):
            raise answer
        return answer

    @property
    def taken(self) -> bool:
        """It was granted, and somebody has to give it back if its caller is gone."""
        flight = self.flight
        if self.request.mode is not Mode.TAKE or flight is None or flight.answers is None or self.place < 0:
            return False
        answer = flight.answers[self.place]
        return isinstance(answer, Answer) and answer.allowed


class ThreadCoalescer:
    """Group commit. A thread that finds no call under way leads: it sends all requests that wait, answers their
    threads, and wakes the first of those that have come in the meantime, which leads next.

    A signal handler may raise in the main thread after any call. So it is the lock alone that says that a thread leads,
    and a `with` statement gives it up on every way out. A thread that waits looks again now and then, so that an
    interrupt amid the waking of others costs them a moment and no more.
    """

    def __init__(self, settle: Callable[[Sequence[Request]], list[Answer]]) -> None:
        self._settle = settle
        self.after_fork()
        anew_after_fork(self)

    def after_fork(self) -> None:
        """No thread leads, none waits."""
        self._turn = threading.Lock()
        self._leader = 0  # its thread, as long as it leads
        self._queue: deque[_ThreadEntry] = deque()
        self._flight: _Flight | None = None

    def settle(self, request: Request) -> Answer:
        me = threading.get_ident()
        if self._leader == me:
            raise reentered()
        if not self._queue and not self._turn.locked():
            try:
                with self._turn:
                    try:
                        self._leader = me
                        return self._settle((request,))[0]
                    except PartlyAnswered as partly:
                        raise partly.first from None
                    finally:
                        self._leader = 0
            finally:
                self._wake_next()
        entry = _ThreadEntry(request)
        try:
            self._queue.append(entry)
            self._wait(entry, me)
        except BaseException:
            self._abandon(entry)
            raise
        return entry.result()

    def _wait(self, entry: _ThreadEntry, me: int) -> None:
        while entry.flight is None or not entry.flight.over:
            if self._turn.locked():
                entry.wait()
                continue
            try:
                with self._turn:
                    if entry.flight is not None:
                        return  # its flight is over, or was interrupted before it had a result
                    try:
                        self._leader = me
                        self._fly(entry)
                    finally:
                        self._leader = 0
            finally:
                self._wake_next()

    def _fly(self, leader: _ThreadEntry) -> None:
        flight = self._flight = _Flight()
        batch = self._board(flight)
        try:
            flight.answers = self._settle([entry.request for entry in batch]) if batch else ()
        except PartlyAnswered as partly:
            flight.answers = partly.results
        except Exception as error:
            flight.error = error
        except BaseException:
            flight.error = RateLimiterUnavailable(_INTERRUPTED)
            raise
        finally:
            for entry in batch:
                if entry is not leader:
                    entry.wake()

    def _board(self, flight: _Flight) -> list[_ThreadEntry]:
        """An entry that is on a flight already was left in the queue by a leader that was interrupted."""
        queue, batch = self._queue, list[_ThreadEntry]()
        while queue and len(batch) < MAX_BATCH:
            entry = queue[0]
            if entry.flight is None:
                entry.place, entry.flight = len(batch), flight
                if entry.withdrawn:  # said before it boarded, or its thread waits for the end of the flight
                    entry.place = _NOT_SENT
                else:
                    batch.append(entry)
            queue.popleft()
        return batch

    def _wake_next(self) -> None:
        queue = self._queue
        try:
            first = queue[0]
        except IndexError:
            return
        for entry in (first,) if not first.withdrawn else tuple(queue):
            if not entry.withdrawn:
                entry.wake()
                return

    def _abandon(self, entry: _ThreadEntry) -> None:
        """Its thread was interrupted (KeyboardInterrupt): leave nothing taken."""
        entry.withdrawn = True
        flight = entry.flight
        while flight is not None and not flight.over and flight is self._flight and self._turn.locked():
            entry.wait()
        if entry.taken:
            try:
                self.settle(refund(entry.request))
            except UNANSWERED as away:  # the interrupt matters more to the caller
                log.warning("what an interrupted call took could not be given back: %s", away)


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
        if self._alone and not self._flying and request.mode in _WITHDRAWN and self._loop is asyncio.get_running_loop():
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
        """As long as nobody else comes, there is no need for a task, and for the turn of the loop until it starts. If
        others do come, that turn is what lets all who were answered together leave together again."""
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
        asking = [entry for entry in self._queue if entry.request.mode in _WITHDRAWN]
        self._queue = [entry for entry in self._queue if entry.request.mode not in _WITHDRAWN]
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
                    entry.land(entry.answer, None if entry.answer else RateLimiterUnavailable(_INTERRUPTED))
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
            elif not entry.sent and entry.request.mode in _WITHDRAWN:
                self._queue.remove(entry)
                entry.over = True
        for entry in entries:
            await entry.landing()
