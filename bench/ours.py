"""headgate in the same seat: stored limits, one key, one token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from headgate import Limit, RateLimiter, SyncRateLimiter

from .measure import AsyncHit, Hit, Turn, calls, coroutines, tasks, threads
from .peers import KEY, PLENTY

URL = Callable[[Path], str]


def memory(_: Path) -> str:
    return "memory://"


def sqlite(folder: Path) -> str:
    return f"sqlite:///{folder / 'headgate.db'}"


@contextmanager
def limiter_at(url: str, limits: Sequence[Limit]) -> Iterator[SyncRateLimiter]:
    with SyncRateLimiter(url) as limiter:
        limiter.set_system_defaults(limits)
        yield limiter


def one_limit() -> list[Limit]:
    return [Limit.per_hour("requests", PLENTY)]


def hit_of(limiter: SyncRateLimiter, key: str = KEY) -> Hit:
    return lambda: limiter.try_acquire(key, "api", {"requests": 1}).allowed


def one_caller(url: URL) -> Any:
    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        with limiter_at(url(folder), one_limit()) as limiter:
            yield calls(hit_of(limiter))

    return opened


def as_lease(url: URL) -> Any:
    """The `with` form: what most callers write."""

    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        with limiter_at(url(folder), one_limit()) as limiter:

            def hit() -> bool:
                with limiter.acquire(KEY, "api", {"requests": 1}):
                    return True

            yield calls(hit)

    return opened


def many_threads(url: URL, count: int, *, one_key: bool) -> Any:
    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        with limiter_at(url(folder), one_limit()) as limiter:
            yield threads([hit_of(limiter, KEY if one_key else f"user-{number}") for number in range(count)])

    return opened


def async_hit(limiter: RateLimiter, key: str) -> AsyncHit:
    async def hit() -> bool:
        return (await limiter.try_acquire(key, "api", {"requests": 1})).allowed

    return hit


def one_task(url: URL) -> Any:
    return _async(url, lambda loop, limiter: coroutines(loop, async_hit(limiter, KEY)))


def many_tasks(url: URL, count: int) -> Any:
    return _async(
        url, lambda loop, limiter: tasks(loop, [async_hit(limiter, f"user-{number}") for number in range(count)])
    )


@contextmanager
def on(url: str) -> Iterator[Callable[[str], Hit]]:
    """What makes the hit on a key."""
    with limiter_at(url, one_limit()) as limiter:
        yield partial(hit_of, limiter)


@contextmanager
def aio_on(url: str, loop: asyncio.AbstractEventLoop) -> Iterator[Callable[[str], AsyncHit]]:
    with _aio_limiter_at(url, loop) as limiter:
        yield partial(async_hit, limiter)


@contextmanager
def _aio_limiter_at(url: str, loop: asyncio.AbstractEventLoop) -> Iterator[RateLimiter]:
    limiter = RateLimiter(url)
    loop.run_until_complete(limiter.set_system_defaults(one_limit()))
    try:
        yield limiter
    finally:
        loop.run_until_complete(limiter.close())


def _async(url: URL, turn_of: Callable[[asyncio.AbstractEventLoop, RateLimiter], Turn]) -> Any:
    def opened(loop: asyncio.AbstractEventLoop) -> Any:
        @contextmanager
        def in_loop(folder: Path) -> Iterator[Turn]:
            with _aio_limiter_at(url(folder), loop) as limiter:
                yield turn_of(loop, limiter)

        return in_loop

    return opened
