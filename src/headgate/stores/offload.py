"""A blocking store for coroutines: called on a thread of its own if it may wait, directly if it never does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from ..core.decide import Answer, Request
from ..core.errors import LimiterClosed
from .contract import CoroutineMethods, SettledThenCancelled, Store, cancelled_late

T = TypeVar("T")


class OffloadedStore(CoroutineMethods):
    def __init__(self, blocking: Store) -> None:
        self.blocking = blocking
        self.own_clock = blocking.own_clock
        self.in_process = blocking.in_process
        self._pid = 0
        self._worker: ThreadPoolExecutor | None = None
        self._closed = False

    @property
    def usage_ms(self) -> int:
        return self.blocking.usage_ms

    @usage_ms.setter
    def usage_ms(self, ms: int) -> None:
        self.blocking.usage_ms = ms

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        work = partial(getattr(self.blocking, method), *args, **kwargs)
        return work() if self.in_process else await self._started(work)

    def _started(self, method: Callable[..., T], *args: object) -> asyncio.Future[T]:
        if self._closed:  # the call would open it again
            raise LimiterClosed("this RateLimiter was closed meanwhile; make a new one")
        if self._worker is None or self._pid != os.getpid():  # threads do not survive a fork
            self._pid = os.getpid()
            self._worker = ThreadPoolExecutor(1, "headgate-store")
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._worker, method, *args)
        except RuntimeError:  # the main thread has ended, and no other can be started
            done: asyncio.Future[T] = loop.create_future()
            try:
                done.set_result(method(*args))
            except Exception as error:
                done.set_exception(error)
            return done

    async def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        if self.in_process:
            return self.blocking.settle(batch, now_ms)
        answers = self._started(self.blocking.settle, batch, now_ms)
        cancelled: asyncio.CancelledError | None = None
        while not answers.done():
            try:
                await asyncio.shield(answers)
            except asyncio.CancelledError as error:
                # The thread continues: its answers must be known, so that what it takes can be given back.
                cancelled = error
            except Exception:
                break
        if cancelled is not None:
            failed = None if answers.cancelled() else answers.exception()
            if answers.cancelled() or failed:
                raise cancelled_late(failed, cancelled)
            raise SettledThenCancelled(answers.result(), cancelled)
        return answers.result()

    async def close(self) -> None:
        if self.in_process:
            self.blocking.close()
            return
        closing, self._closed = self._started(self.blocking.close), True
        try:
            await asyncio.shield(closing)  # it is closed even if this task is cancelled
        finally:
            assert self._worker is not None
            self._worker.shutdown(wait=False)
