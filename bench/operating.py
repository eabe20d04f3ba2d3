"""What operating costs: an acquire with usage and audit on and off, one from a bucket and one from a quota."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headgate import Limit, RateLimiter, SyncRateLimiter

from . import ours
from .measure import Contender, Turn, calls, tasks
from .peers import PLENTY

ON, OFF = "headgate, usage and audit on", "headgate, usage and audit off"
BUCKET, QUOTA = "headgate, a bucket", "headgate, a quota"
USAGE, KINDS = "usage, {place}", "bucket and quota, {place}"
DASHBOARD = "dashboard"
PLACES = ("memory", "sqlite", "redis, one thread", "redis, 64 tasks")
TASKS = 64
# Of each table two contenders, the first of which is what the other is compared with: their settings, and their limits.
_PAIRS: dict[str, dict[str, tuple[dict[str, Any], list[Limit]]]] = {
    USAGE: {OFF: ({"usage_days": 0, "audit_days": 0}, ours.one_limit()), ON: ({}, ours.one_limit())},
    KINDS: {BUCKET: ({}, ours.one_limit()), QUOTA: ({}, [Limit.quota("requests", PLENTY, "day")])},
}


def pair(table: str, place: str, redis_url: str, loop: asyncio.AbstractEventLoop) -> list[Contender]:
    urls = {"memory": ours.memory, "sqlite": ours.sqlite}
    url = urls.get(place, lambda _: redis_url)
    opened = _crowd if place == "redis, 64 tasks" else _alone
    return [
        Contender(name, opened(url, loop, {"namespace": f"{number}", **settings}, limits))
        for number, (name, (settings, limits)) in enumerate(_PAIRS[table].items())
    ]


def _alone(url: ours.URL, _: Any, settings: dict[str, Any], limits: list[Limit]) -> Any:
    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        with SyncRateLimiter(url(folder), **settings) as limiter:
            limiter.set_system_defaults(limits)
            yield calls(ours.hit_of(limiter))

    return opened


def _crowd(url: ours.URL, loop: asyncio.AbstractEventLoop, settings: dict[str, Any], limits: list[Limit]) -> Any:
    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        limiter = RateLimiter(url(folder), **settings)
        loop.run_until_complete(limiter.set_system_defaults(limits))
        try:
            yield tasks(loop, [ours.async_hit(limiter, f"user-{number}") for number in range(TASKS)])
        finally:
            loop.run_until_complete(limiter.close())

    return opened
