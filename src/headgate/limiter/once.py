"""The same work, wished for by many at once, done once: when the cached limits of a busy resource expire, one caller
reads them again and the others wait for it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import CancelledError, Future
from typing import Any


class ThreadOnce:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Hashable, Future[Any]] = {}

    def run(self, key: Hashable, work: Callable[[], Any]) -> Any:
        place = (os.getpid(), key)  # a thread that works in the parent does not go through a fork
        while True:
            with self._lock:
                running = self._running.get(place)
                if running is None:
                    mine = self._running[place] = Future()
            if running is None:
                return self._work(place, mine, work)
            try:
                return running.result()
            except CancelledError:
                continue  # its thread was interrupted: somebody else has to do it

    def _work(self, place: Hashable, mine: Future[Any], work: Callable[[], Any]) -> Any:
        try:
            result = work()
        except Exception as error:
            mine.set_exception(error)
            raise
        except BaseException:
            mine.cancel()
            raise
        else:
            mine.set_result(result)
            return result
        finally:
            del self._running[place]


class TaskOnce:
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
            ended.exception()  # it was seen, even if everybody who waited for it is gone
