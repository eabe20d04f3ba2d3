"""Slow calls into the application: one at a time for each caller, and with a timeout for those that wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextvars import copy_context
from time import monotonic
from typing import Any

GIVE_UP_SECONDS = 30.0  # then the call is started again
MAX_THREADS = 64
_threads = threading.BoundedSemaphore(MAX_THREADS)


class NoAnswer(Exception):
    """There was no answer in time."""


def in_thread(function: Callable[[], Any]) -> Future[Any]:
    """The result of a function, called in a separate thread with the context of this one."""
    threads = _threads
    if not threads.acquire(blocking=False):
        raise NoAnswer(f"{MAX_THREADS} calls have not returned yet, and no more are started")
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # a waiter may give up, and the thread goes on

    def work() -> None:
        try:
            settle(future, function)
        finally:
            threads.release()

    context = copy_context()
    try:
        threading.Thread(target=context.run, args=(work,), name="headgate-plan", daemon=True).start()
    except BaseException:
        threads.release()
        raise
    return future


def settle(future: Future[Any], function: Callable[[], Any]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)


class Flight:
    """A call in progress. `answer`: a Future for threads, a task for tasks."""

    __slots__ = ("answer", "began")

    def __init__(self) -> None:
        self.began = monotonic()
        self.answer: Any = None

    def left(self, timeout: float | None) -> float | None:
        return None if timeout is None else max(0.0, self.began + timeout - monotonic())


class Flights:
    """`timeout`: seconds to wait for an answer, from the start of the call; None: until there is one."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._lock = threading.Lock()
        self._running: dict[Hashable, Flight] = {}

    def run(self, key: Hashable, work: Callable[[], Any], *, apart: bool) -> Any:
        """The answer to a call, for threads. `apart`: call in a separate thread."""
        flight, mine = self._join(key)
        if mine:
            self._start(key, flight, work, apart=apart and self.timeout is not None)
        try:
            return flight.answer.result(flight.left(self.timeout))
        except FutureTimeoutError as error:
            if flight.answer.done() and flight.answer.exception() is error:
                raise  # by the function itself
            raise self._late() from None

    def _start(self, key: Hashable, flight: Flight, work: Callable[[], Any], *, apart: bool) -> None:
        def fly() -> Any:
            try:
                return work()
            finally:
                self._end(key, flight)

        if not apart:
            settle(flight.answer, fly)
            return
        try:
            answer = in_thread(fly)
        except BaseException as error:
            self._end(key, flight)
            flight.answer.set_exception(error)
        else:
            answer.add_done_callback(lambda ended: settle(flight.answer, ended.result))

    async def arun(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """The answer to a call, for tasks."""
        loop = asyncio.get_running_loop()
        key = (id(loop), key)
        flight, mine = self._join(key)
        if mine:
            bound = None if self.timeout is None else max(GIVE_UP_SECONDS, self.timeout)
            flight.answer = loop.create_task(asyncio.wait_for(work(), bound))
            flight.answer.add_done_callback(lambda task: self._landed(key, flight, task))
        done, _ = await asyncio.wait([flight.answer], timeout=flight.left(self.timeout))
        if not done:
            raise self._late()
        return flight.answer.result()

    def _landed(self, key: Hashable, flight: Flight, task: asyncio.Task[Any]) -> None:
        self._end(key, flight)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it if no task waits any more

    def _join(self, key: Hashable) -> tuple[Flight, bool]:
        with self._lock:
            flight = self._running.get(key)
            if flight is not None and (self.timeout is None or monotonic() - flight.began < GIVE_UP_SECONDS):
                return flight, False
            flight = self._running[key] = Flight()
            flight.answer = Future()
            flight.answer.set_running_or_notify_cancel()
            return flight, True

    def _end(self, key: Hashable, flight: Flight) -> None:
        with self._lock:
            if self._running.get(key) is flight:
                del self._running[key]

    def _late(self) -> NoAnswer:
        return NoAnswer(f"there was no answer within {self.timeout:g} s")
