"""What one idle bucket costs in Redis: fill many, ask the server, divide."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import limits.aio.storage
import limits.aio.strategies
import redis
import redis.asyncio
import throttled.asyncio
from limify.core.algorithms.token_bucket import AsyncTokenBucketAlgorithm
from limify.core.plans import Plan
from limify.core.redis_adapter import RedisAsyncAdapter

from headgate import Limit, RateLimiter

from .redis_peers import CONTEXT, Loop, client, limify_key
from .size import Size

# A bucket that is full again may expire, as a window does when it ends. With 60 of 100 a minute taken all of them last
# for more than half a minute.
TAKEN = 60
LIMITS = (
    (Limit.per_minute("rpm", 100), limits.RateLimitItemPerMinute(100)),
    (Limit.per_hour("rph", 1_000), limits.RateLimitItemPerHour(1_000)),
    (Limit.per_day("rpd", 10_000), limits.RateLimitItemPerDay(10_000)),
    (Limit.custom("rpw", 50_000, 50_000, 7 * 86_400), limits.RateLimitItemPerDay(50_000, 7)),
)
TASKS = 64

Names = Iterable[str]
Fill = Callable[[str, Names], Awaitable[None]]


def on_redis(url: str, loop: Loop, count: int) -> list[Size]:
    rows: list[tuple[str, Fill, str]] = []
    for number in (1, 2, 4):
        several = f"{number} limit{'s' * (number > 1)}"
        rows.append((f"headgate bucket, {several}", _headgate(number), ""))
        rows.append((f"limits fixed window, {several}", _limits(number), "a counter for each limit"))
    rows.append(("throttled token bucket, 1 limit", _throttled, ""))
    rows.append(("limify token bucket, 1 limit", _limify, "for ever: it never expires"))
    return [_size(url, loop, name, fill, count, note) for name, fill, note in rows]


def _size(url: str, loop: Loop, name: str, fill: Fill, count: int, note: str) -> Size:
    with client(url) as server:
        server.flushall()
        # Scripts, stored limits: what is there once, however many buckets.
        loop.run_until_complete(fill(url, ["user-0"]))
        one_usage, one = _memory_usage(server), _used_memory(server)
        loop.run_until_complete(fill(url, [f"user-{100_000 + number}" for number in range(count)]))
        many, keys = _used_memory(server), server.dbsize()
        usage = (_memory_usage(server) - one_usage) / count
        if keys <= count:
            raise RuntimeError(f"{name}: only {keys} keys are left of {count} buckets")
        server.flushall()
    notes = [f"{usage:,.0f} by MEMORY USAGE", note]
    return Size(name, (many - one) / count, "; ".join(text for text in notes if text))


def _used_memory(server: redis.Redis) -> int:
    """Once its tables have settled and the connections of those who filled it are gone."""
    before = 0
    while abs((now := server.info("memory")["used_memory"]) - before) > 1024:
        before = now
        time.sleep(0.25)
    return int(now)


def _memory_usage(server: redis.Redis) -> int:
    with server.pipeline(transaction=False) as asked:
        for key in server.scan_iter(count=1_000):
            asked.memory_usage(key, samples=0)
        return sum(asked.execute())


async def _for_each(names: Names, take: Callable[[str], Awaitable[Any]]) -> None:
    remaining = iter(names)

    async def share() -> None:
        for name in remaining:
            await take(name)

    await asyncio.gather(*[share() for _ in range(TASKS)])


def _headgate(number: int) -> Fill:
    stored = [limit for limit, _ in LIMITS[:number]]
    consume = {limit.name: TAKEN for limit in stored}

    async def fill(url: str, names: Names) -> None:
        async with RateLimiter(url, usage_days=0) as limiter:
            await limiter.set_system_defaults(stored)
            await _for_each(names, lambda name: limiter.try_acquire(name, "api", consume))

    return fill


def _limits(number: int) -> Fill:
    items = [item for _, item in LIMITS[:number]]

    async def fill(url: str, names: Names) -> None:
        async with redis.asyncio.Redis.from_url(url) as own:
            storage = limits.aio.storage.RedisStorage(
                f"async+{url}", implementation="redispy", connection_pool=own.connection_pool
            )
            limiter = limits.aio.strategies.FixedWindowRateLimiter(storage)
            for item in items:
                await _for_each(names, lambda name, item=item: limiter.hit(item, name, cost=TAKEN))

    return fill


async def _throttled(url: str, names: Names) -> None:
    store = throttled.asyncio.RedisStore(server=url)
    throttle = throttled.asyncio.Throttled(
        using="token_bucket", quota=throttled.asyncio.per_min(100, burst=100), store=store
    )
    await _for_each(names, lambda name: throttle.limit(name, cost=TAKEN))
    await store._backend.get_client().connection_pool.disconnect()


async def _limify(url: str, names: Names) -> None:
    plan = Plan(id="default", limit=100, period_seconds=60)
    async with redis.asyncio.Redis.from_url(url) as own:
        algorithm = AsyncTokenBucketAlgorithm(RedisAsyncAdapter(own))
        await algorithm.initialize()
        await _for_each(names, lambda name: algorithm.allow(limify_key(name), plan, CONTEXT))
