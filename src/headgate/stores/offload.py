"""A blocking store for coroutines: on a thread of its own if it may wait, directly if it never does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ..core.decide import Answer, Request
from ..core.errors import LimiterClosed, PartlyAnswered
from ..core.records import BucketRow, Change, Page, Record, Swept
from ..core.usage import UsageRow
from .contract import LostThenCancelled, SettledThenCancelled, Store

T = TypeVar("T")


class OffloadedStore:
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

    async def _call(self, method: Callable[..., T], *args: object) -> T:
        if self.in_process:
            return method(*args)
        return await self._started(method, *args)

    def _started(self, method: Callable[..., T], *args: object) -> asyncio.Future[T]:
        if self._closed:  # it would be opened again
            raise LimiterClosed("this RateLimiter was closed meanwhile; make a new one")
        if self._worker is None or self._pid != os.getpid():  # threads do not go through a fork
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
                # The thread goes on, and what it takes must be known to be given back.
                cancelled = error
            except Exception:
                break
        if cancelled is not None:
            failed = None if answers.cancelled() else answers.exception()
            if isinstance(failed, PartlyAnswered):
                raise SettledThenCancelled(failed.results, cancelled)
            if answers.cancelled() or failed:
                raise LostThenCancelled(cancelled)
            raise SettledThenCancelled(answers.result(), cancelled)
        return answers.result()

    async def delete_buckets(self, keys: Sequence[str]) -> None:
        await self._call(self.blocking.delete_buckets, keys)

    async def list_buckets(
        self, namespace: str, entity_id: str | None, resource: str | None, cursor: str | None, now_ms: int | None
    ) -> Page[BucketRow]:
        return await self._call(self.blocking.list_buckets, namespace, entity_id, resource, cursor, now_ms)

    async def get_records(self, keys: Sequence[str], now_ms: int | None) -> list[Record | None]:
        return await self._call(self.blocking.get_records, keys, now_ms)

    async def write_records(self, changes: Sequence[Change], now_ms: int | None) -> None:
        await self._call(self.blocking.write_records, changes, now_ms)

    async def list_records(self, prefix: str, cursor: str | None, limit: int, now_ms: int | None) -> Page[Record]:
        return await self._call(self.blocking.list_records, prefix, cursor, limit, now_ms)

    async def list_usage(
        self,
        namespace: str,
        entity_id: str | None,
        resource: str | None,
        hours: tuple[int, int],
        cursor: str | None,
        now_ms: int | None,
    ) -> Page[UsageRow]:
        return await self._call(self.blocking.list_usage, namespace, entity_id, resource, hours, cursor, now_ms)

    async def sweep(self, namespace: str, now_ms: int | None) -> Swept:
        return await self._call(self.blocking.sweep, namespace, now_ms)

    async def list_stored(self) -> list[str]:
        return await self._call(self.blocking.list_stored)

    async def count_stored(self, namespace: str) -> int:
        return await self._call(self.blocking.count_stored, namespace)

    async def purge(self, namespace: str) -> int:
        return await self._call(self.blocking.purge, namespace)

    async def setup(self) -> None:
        await self._call(self.blocking.setup)

    async def ping(self) -> None:
        await self._call(self.blocking.ping)

    async def close(self) -> None:
        if self.in_process:
            self.blocking.close()
            return
        closing, self._closed = self._started(self.blocking.close), True
        try:
            await asyncio.shield(closing)  # it is closed even if nobody waits for it
        finally:
            assert self._worker is not None
            self._worker.shutdown(wait=False)
