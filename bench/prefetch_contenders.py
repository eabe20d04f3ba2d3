"""headgate with and without prefetch, and on Redis all the others, on one key."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from headgate import RateLimiter, SyncRateLimiter

from . import ours, redis_contenders
from .measure import AsyncHit, Contender, Hit, Turn, tasks, threads
from .peers import KEY
from .prefetch_scenes import HOT, PREFETCH, THREADS, WITH, WITHOUT
from .redis_peers import AsyncOpen, Loop, Open, client

PROCESSES = 4


def on_redis(url: str, loop: Loop) -> dict[str, list[Contender]]:
    aio: list[tuple[str, AsyncOpen, str]] = [(WITH, aio_ours(PREFETCH), ""), (WITHOUT, aio_ours(0), "")]
    blocking: list[tuple[str, Open, str]] = [(WITH, sync_ours(PREFETCH), ""), (WITHOUT, sync_ours(0), "")]
    return {
        HOT: [
            Contender(name, _in_tasks(url, loop, open_at), note=note)
            for name, open_at, note in (*aio, *redis_contenders.ASYNC[1:])
        ],
        THREADS: [
            Contender(name, _in_threads(url, open_at), note=note)
            for name, open_at, note in (*blocking, *redis_contenders.BLOCKING[1:])
        ],
    }


def in_processes() -> list[Contender]:
    return [Contender(name, _in_processes(prefetch)) for name, prefetch in ((WITH, PREFETCH), (WITHOUT, 0))]


def aio_ours(prefetch: float) -> AsyncOpen:
    @contextmanager
    def opened(url: str, loop: Loop) -> Iterator[Callable[[str], AsyncHit]]:
        with aio_limiter(url, loop, prefetch) as limiter:
            yield partial(ours.async_hit, limiter)

    return opened


@contextmanager
def aio_limiter(url: str, loop: asyncio.AbstractEventLoop, prefetch: float, **settings: Any) -> Iterator[RateLimiter]:
    limiter = RateLimiter(url, prefetch=prefetch, **settings)
    loop.run_until_complete(limiter.setup())
    loop.run_until_complete(limiter.set_system_defaults(ours.one_limit()))
    try:
        yield limiter
    finally:
        loop.run_until_complete(limiter.close())


def sync_ours(prefetch: float) -> Open:
    @contextmanager
    def opened(url: str) -> Iterator[Callable[[str], Hit]]:
        with SyncRateLimiter(url, prefetch=prefetch) as limiter:
            limiter.set_system_defaults(ours.one_limit())
            yield partial(ours.hit_of, limiter)

    return opened


def _in_tasks(url: str, loop: Loop, open_at: AsyncOpen) -> Any:
    @contextmanager
    def opened(_: Path) -> Iterator[Turn]:
        with client(url) as server:
            server.flushall()
        with open_at(url, loop) as hit_of:
            yield tasks(loop, [hit_of(KEY) for _ in range(redis_contenders.TASKS)])

    return opened


def _in_threads(url: str, open_at: Open) -> Any:
    @contextmanager
    def opened(_: Path) -> Iterator[Turn]:
        with client(url) as server:
            server.flushall()
        with open_at(url) as hit_of:
            yield threads([hit_of(KEY) for _ in range(redis_contenders.THREADS)])

    return opened


def _in_processes(prefetch: float) -> Any:
    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        url = ours.sqlite(folder)
        with sync_ours(0)(url):  # the limits
            pass
        command = [sys.executable, "-m", f"{__package__}.prefetch_worker", url, str(prefetch)]
        workers = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(PROCESSES)
        ]

        def turn(hits: int) -> float:
            each = -(-hits // PROCESSES)
            start = time.perf_counter()
            for worker in workers:
                assert worker.stdin is not None
                print(each, file=worker.stdin, flush=True)
            for worker in workers:
                assert worker.stdout is not None
                if worker.stdout.readline() != "admitted\n":
                    raise RuntimeError("a hit was refused, or a process has failed")
            return (time.perf_counter() - start) * hits / (each * PROCESSES)

        try:
            yield turn
        finally:
            for worker in workers:
                worker.communicate()

    return opened
