"""Coalescing for threads: group commit (see `coalesce.py`)."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...core.decide import Answer, Mode, Request, refund
from ...core.errors import UNANSWERED, HeadgateError, PartlyAnswered, RateLimiterUnavailable
from ...stores.locks import reentered
from ..fork import anew_after_fork
from .coalesce import INTERRUPTED, MAX_BATCH

log = logging.getLogger("headgate")

LOOK_AGAIN_SECONDS = 0.1  # a thread that waits, in case the one that should wake it was interrupted
_NOT_SENT = -1


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
            raise error or RateLimiterUnavailable(INTERRUPTED)
        answer = answers[self.place]
        if isinstance(answer, HeadgateError):
            raise answer
        return answer

    @property
    def taken(self) -> bool:
        """It was granted, and has to be given back if its caller is gone."""
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
            flight.error = RateLimiterUnavailable(INTERRUPTED)
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
