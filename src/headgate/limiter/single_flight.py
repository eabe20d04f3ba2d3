"""Single flight: concurrent callers share one execution. When the cached limits of a busy resource expire, one caller
reads them again and the others wait for it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import CancelledError, Future, TimeoutError
from typing import Any


class ThreadSingleFlight:
    """`patience_seconds`: how long to wait for another thread. Then a caller does the work itself."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._lock = threading.RLock()
        self._running: dict[Hashable, tuple[int, Future[Any]]] = {}

    def run(self, key: Hashable, work: Callable[[], Any]) -> Any:
        me = threading.get_ident()
        place = (os.getpid(), key)  # a thread that works in the parent does not go through a fork
        mine: Future[Any] = Future()
        leads = False
        try:
            with self._lock:
                worker, running = self._running.get(place) or (me, mine)
                if running is mine:
                    self._running[place], leads = (me, mine), True
            if leads:
                return self._work(mine, work)
        finally:
            if leads:
                del self._running[place]  # before any call, after which an interrupt may come
                mine.cancel()  # if there is no result: this thread was interrupted
        if worker == me:
            return work()  # a signal handler interrupted this very work
        try:
            return running.result(self._patience_seconds)
        except (CancelledError, TimeoutError):
            if running.done() and not running.cancelled():
                raise  # the work itself raised it
            return work()

    def _work(self, mine: Future[Any], work: Callable[[], Any]) -> Any:
        try:
            result = work()
        except Exception as error:
            mine.set_exception(error)
            raise
        mine.set_result(result)
        return result


class TaskSingleFlight:
    """Each is a task of its own, so that no waiting caller's cancellation can hurt another."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}

    async def run(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        place = (id(asyncio.get_running_loop()), key)
        running = self._running.get(place)
        if running is None:
            running = self._running[place] = asyncio.create_task(work())
            running.add_done_callback(lambda ended: self._ended(place, ended))
        return await asyncio.shield(running)

    def _ended(self, place: Hashable, ended: asyncio.Task[Any]) -> None:
        del self._running[place]
        if not ended.cancelled():
            ended.exception()  # it was seen, even if all waiters are gone
