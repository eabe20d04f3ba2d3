"""The other libraries, each as its own documentation uses it, with limits no benchmark reaches.

Every hit asks about one key, checks and counts, and says yes or no.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiolimiter
import limits
import limits.aio.storage
import limits.aio.strategies
import throttled
import throttled.asyncio
from pyrate_limiter import BucketAsyncWrapper, Duration, InMemoryBucket, Limiter, Rate, SQLiteBucket, limiter_factory

from .measure import Turn, calls, coroutines, threads

PLENTY = 1_000_000_000  # an hour
KEY = "user-1"

Strategy = type[limits.strategies.RateLimiter]


def limits_memory(strategy: Strategy) -> Any:
    @contextmanager
    def opened(_: Path) -> Iterator[Turn]:
        limiter = strategy(limits.storage.MemoryStorage())
        item = limits.RateLimitItemPerHour(PLENTY)
        yield calls(lambda: limiter.hit(item, KEY))

    return opened


def throttled_memory(algorithm: str) -> Any:
    @contextmanager
    def opened(_: Path) -> Iterator[Turn]:
        quota = throttled.per_hour(PLENTY, burst=PLENTY)
        throttle = throttled.Throttled(using=algorithm, quota=quota, store=throttled.MemoryStore())
        yield calls(lambda: not throttle.limit(KEY).limited)

    return opened


def _rates() -> list[Rate]:
    return [Rate(PLENTY, Duration.HOUR)]


@contextmanager
def pyrate_memory(_: Path) -> Iterator[Turn]:
    with Limiter(InMemoryBucket(_rates())) as limiter:
        yield calls(lambda: bool(limiter.try_acquire(KEY)))


@contextmanager
def pyrate_token_bucket(_: Path) -> Iterator[Turn]:
    with limiter_factory.create_token_bucket_limiter(PLENTY, Duration.HOUR) as limiter:
        yield calls(lambda: bool(limiter.try_acquire(KEY)))


def pyrate_sqlite(*, use_file_lock: bool) -> Any:
    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        with _sqlite_limiter(folder, use_file_lock) as limiter:
            yield calls(lambda: bool(limiter.try_acquire(KEY)))

    return opened


@contextmanager
def pyrate_sqlite_threads(folder: Path) -> Iterator[Turn]:
    # Without the file lock, which is one of processes only: the source says "Multi Process - Single Thread".
    with _sqlite_limiter(folder, False) as limiter:
        yield threads([lambda: bool(limiter.try_acquire(KEY))] * 16)


@contextmanager
def _sqlite_limiter(folder: Path, use_file_lock: bool) -> Iterator[Limiter]:
    bucket = SQLiteBucket.init_from_file(_rates(), db_path=str(folder / "pyrate.db"), use_file_lock=use_file_lock)
    with Limiter(bucket) as limiter:
        time.sleep(0.1)  # its cleaning thread starts with a look at the file; that shall not count
        yield limiter


def aio_limits_memory(strategy: Any) -> Any:
    def opened(loop: asyncio.AbstractEventLoop) -> Any:
        @contextmanager
        def in_loop(_: Path) -> Iterator[Turn]:
            limiter = strategy(limits.aio.storage.MemoryStorage())
            item = limits.RateLimitItemPerHour(PLENTY)
            yield coroutines(loop, lambda: limiter.hit(item, KEY))

        return in_loop

    return opened


def aio_throttled_memory(algorithm: str) -> Any:
    def opened(loop: asyncio.AbstractEventLoop) -> Any:
        @contextmanager
        def in_loop(_: Path) -> Iterator[Turn]:
            quota = throttled.asyncio.per_hour(PLENTY, burst=PLENTY)
            store = throttled.asyncio.MemoryStore()
            throttle = throttled.asyncio.Throttled(using=algorithm, quota=quota, store=store)

            async def hit() -> bool:
                return not (await throttle.limit(KEY)).limited

            yield coroutines(loop, hit)

        return in_loop

    return opened


def aio_aiolimiter(loop: asyncio.AbstractEventLoop) -> Any:
    @contextmanager
    def in_loop(_: Path) -> Iterator[Turn]:
        limiter = aiolimiter.AsyncLimiter(PLENTY, 3600)

        async def hit() -> bool:
            await limiter.acquire()
            return True

        yield coroutines(loop, hit)

    return in_loop


def aio_pyrate_memory(loop: asyncio.AbstractEventLoop) -> Any:
    @contextmanager
    def in_loop(_: Path) -> Iterator[Turn]:
        bucket = BucketAsyncWrapper(InMemoryBucket(_rates()))

        async def made() -> Limiter:  # it starts a task that forgets old items, so it needs the running loop
            return Limiter(bucket)

        with loop.run_until_complete(made()) as limiter:
            yield coroutines(loop, lambda: limiter.try_acquire_async(KEY))
            limiter.dispose(bucket)
            loop.run_until_complete(asyncio.sleep(0))

    return in_loop
