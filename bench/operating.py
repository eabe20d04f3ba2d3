"""What operating costs: an acquire with usage and audit on and off, and the tables of what is beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headgate import RateLimiter, SyncRateLimiter

from . import ours
from .measure import Contender, Turn, calls, tasks

ON, OFF = "headgate, usage and audit on", "headgate, usage and audit off"
USAGE = "usage, {place}"
DASHBOARD = "dashboard"
PLACES = ("memory", "sqlite", "redis, one thread", "redis, 64 tasks")
TASKS = 64
_SETTINGS: dict[str, dict[str, Any]] = {OFF: {"usage_days": 0, "audit_days": 0}, ON: {}}


def usage(place: str, redis_url: str, loop: asyncio.AbstractEventLoop) -> list[Contender]:
    """Off is the first: the ratio is what it costs."""
    if place == "redis, 64 tasks":
        return [Contender(name, _crowd(redis_url, loop, settings)) for name, settings in _SETTINGS.items()]
    urls = {"memory": ours.memory, "sqlite": ours.sqlite}
    url = urls.get(place, lambda _: redis_url)
    return [Contender(name, _alone(url, settings)) for name, settings in _SETTINGS.items()]


def _alone(url: ours.URL, settings: dict[str, Any]) -> Any:
    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        with SyncRateLimiter(url(folder), namespace=_namespace(settings), **settings) as limiter:
            limiter.set_system_defaults(ours.one_limit())
            yield calls(ours.hit_of(limiter))

    return opened


def _crowd(url: str, loop: asyncio.AbstractEventLoop, settings: dict[str, Any]) -> Any:
    @contextmanager
    def opened(_: Path) -> Iterator[Turn]:
        limiter = RateLimiter(url, namespace=_namespace(settings), **settings)
        loop.run_until_complete(limiter.set_system_defaults(ours.one_limit()))
        try:
            yield tasks(loop, [ours.async_hit(limiter, f"user-{number}") for number in range(TASKS)])
        finally:
            loop.run_until_complete(limiter.close())

    return opened


def _namespace(settings: dict[str, Any]) -> str:
    return "off" if settings else "on"
