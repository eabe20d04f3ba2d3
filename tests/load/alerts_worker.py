"""A process that takes, and writes a line for each alert that it tells.

Usage: alerts_worker.py URL COUNT tasks|threads
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from headgate import RateLimiter, SyncRateLimiter

AT_ONCE = 20


def tell(event: Any) -> None:
    if event.name == "limit.threshold":
        sys.stdout.write(f"{event.fields['limit_name']} {event.fields['threshold']}\n")
        sys.stdout.flush()


async def tasks(url: str, count: int) -> None:
    async with RateLimiter(url, store_timeout=30, on_event=tell) as limiter:
        for _ in range(count // AT_ONCE):
            await asyncio.gather(*(limiter.try_acquire("hot", "api", {"usd": 1, "n": 1}) for _ in range(AT_ONCE)))


def threads(url: str, count: int) -> None:
    with SyncRateLimiter(url, store_timeout=30, on_event=tell) as limiter:
        for _ in range(count):
            limiter.try_acquire("hot", "api", {"usd": 1, "n": 1})


if __name__ == "__main__":
    url, count, kind = sys.argv[1:]
    if kind == "tasks":
        asyncio.run(tasks(url, int(count)))
    else:
        threads(url, int(count))
