"""The other libraries on one Redis server, each as its own documentation uses it, and the bare client.

All of them use redis-py with hiredis and a connection for each caller. An opener yields what makes the hit on a key:
a caller who has a key to itself and one who shares it differ in nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import limits
import limits.aio.storage
import limits.aio.strategies
import redis
import redis.asyncio
import throttled
import throttled.asyncio
from limify.core.algorithms.token_bucket import AsyncTokenBucketAlgorithm, TokenBucketAlgorithm
from limify.core.context import RequestContext
from limify.core.plans import Plan
from limify.core.redis_adapter import RedisAsyncAdapter, RedisSyncAdapter
from pyrate_limiter import (
    Duration,
    Limiter,
    Rate,
    RedisBucket,
    RedisStateStore,
    SingleBucketFactory,
    StateBucket,
    TokenBucket,
)

from headgate.stores.redis.pipelined import PipelinedConnection

from .measure import AsyncHit, Hit
from .peers import PLENTY, Strategy

Loop = asyncio.AbstractEventLoop
HitOf = Callable[[str], Hit]
AsyncHitOf = Callable[[str], AsyncHit]
Open = Callable[[str], AbstractContextManager[HitOf]]
AsyncOpen = Callable[[str, Loop], AbstractContextManager[AsyncHitOf]]

NOTHING = "return 1"
GET_AND_SET = "redis.call('SET', KEYS[1], (redis.call('GET', KEYS[1]) or 0) + ARGV[1]) return 1"
GET_AND_SET_EACH = """
local found = redis.call('MGET', unpack(KEYS))
for n = 1, #KEYS do redis.call('PSETEX', KEYS[n], 3600000, found[n] or ARGV[1]) found[n] = n end
return found
"""
ROW = "x" * 48  # as long as a row of headgate's with one limit


@contextmanager
def client(url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url) as opened:
        yield opened


@contextmanager
def aio_client(url: str, loop: Loop) -> Iterator[redis.asyncio.Redis]:
    opened = redis.asyncio.Redis.from_url(url)
    try:
        yield opened
    finally:
        loop.run_until_complete(opened.aclose())


@contextmanager
def ping(url: str) -> Iterator[HitOf]:
    with client(url) as opened:
        yield lambda _: opened.ping


@contextmanager
def aio_ping(url: str, loop: Loop) -> Iterator[AsyncHitOf]:
    with aio_client(url, loop) as opened:
        yield lambda _: opened.ping


def evalsha(script: str) -> Open:
    @contextmanager
    def opened(url: str) -> Iterator[HitOf]:
        with client(url) as bare:
            sha = bare.script_load(script)
            yield lambda key: lambda: bool(bare.evalsha(sha, 1, key, 1))

    return opened


def aio_evalsha(script: str) -> AsyncOpen:
    @contextmanager
    def opened(url: str, loop: Loop) -> Iterator[AsyncHitOf]:
        with aio_client(url, loop) as bare:
            sha = loop.run_until_complete(bare.script_load(script))
            yield lambda key: lambda: bare.evalsha(sha, 1, key, 1)

    return opened


class _Flights:
    """The least that tasks who share calls could do: a future each, half of them in a call, two calls under way."""

    def __init__(self, loop: Loop, callers: int, send: Callable[[list[str], Callable[[Any], None]], object]) -> None:
        self._loop, self._half, self._send = loop, callers // 2, send
        self._keys: list[str] = []
        self._futures: list[asyncio.Future[bool]] = []

    def ask(self, key: str) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = asyncio.Future(loop=self._loop)
        self._keys.append(key)
        self._futures.append(future)
        if len(self._futures) == self._half:
            keys, self._keys, futures, self._futures = self._keys, [], self._futures, []

            def landed(reply: Any) -> None:
                for each in futures:
                    each.set_result(type(reply) is list)

            self._send(keys, landed)
        return future

    def hit_of(self, key: str) -> AsyncHit:
        async def hit() -> bool:
            return await self.ask(key)

        return hit


def aio_futures(callers: int) -> AsyncOpen:
    @contextmanager
    def opened(_: str, loop: Loop) -> Iterator[AsyncHitOf]:
        yield _Flights(loop, callers, lambda keys, landed: loop.call_soon(landed, keys)).hit_of

    return opened


def aio_shared_calls(callers: int) -> AsyncOpen:
    @contextmanager
    def opened(url: str, loop: Loop) -> Iterator[AsyncHitOf]:
        with client(url) as server:
            sha = server.script_load(GET_AND_SET_EACH)

        async def connected() -> PipelinedConnection:
            plain: Any = redis.asyncio.ConnectionPool.from_url(url).make_connection()
            await plain.connect()
            return PipelinedConnection(plain, timeout_seconds=5)

        connection = loop.run_until_complete(connected())

        def send(keys: list[str], landed: Callable[[Any], None]) -> None:
            distinct = dict.fromkeys(keys)
            connection.send(("EVALSHA", sha, str(len(distinct)), *distinct, ROW), landed)

        try:
            yield _Flights(loop, callers, send).hit_of
        finally:
            loop.run_until_complete(connection.close())

    return opened


def limits_redis(strategy: Strategy) -> Open:
    @contextmanager
    def opened(url: str) -> Iterator[HitOf]:
        with client(url) as own:
            limiter = strategy(limits.storage.RedisStorage(url, connection_pool=own.connection_pool))
            item = limits.RateLimitItemPerHour(PLENTY)
            yield lambda key: lambda: limiter.hit(item, key)

    return opened


def aio_limits_redis(strategy: Any) -> AsyncOpen:
    @contextmanager
    def opened(url: str, loop: Loop) -> Iterator[AsyncHitOf]:
        with aio_client(url, loop) as own:
            # Its default is another client, coredis.
            storage = limits.aio.storage.RedisStorage(
                f"async+{url}", implementation="redispy", connection_pool=own.connection_pool
            )
            limiter = strategy(storage)
            item = limits.RateLimitItemPerHour(PLENTY)
            yield lambda key: lambda: limiter.hit(item, key)

    return opened


def throttled_redis(algorithm: str) -> Open:
    @contextmanager
    def opened(url: str) -> Iterator[HitOf]:
        store = throttled.RedisStore(server=url)
        quota = throttled.per_hour(PLENTY, burst=PLENTY)
        throttle = throttled.Throttled(using=algorithm, quota=quota, store=store)
        try:
            yield lambda key: lambda: not throttle.limit(key).limited
        finally:
            store._backend.get_client().connection_pool.disconnect()

    return opened


def aio_throttled_redis(algorithm: str) -> AsyncOpen:
    @contextmanager
    def opened(url: str, loop: Loop) -> Iterator[AsyncHitOf]:
        store = throttled.asyncio.RedisStore(server=url)
        quota = throttled.asyncio.per_hour(PLENTY, burst=PLENTY)
        throttle = throttled.asyncio.Throttled(using=algorithm, quota=quota, store=store)

        def hit_of(key: str) -> AsyncHit:
            async def hit() -> bool:
                return not (await throttle.limit(key)).limited

            return hit

        try:
            yield hit_of
        finally:
            loop.run_until_complete(store._backend.get_client().connection_pool.disconnect())

    return opened


def _rates() -> list[Rate]:
    return [Rate(PLENTY, Duration.HOUR)]


def pyrate_log(own: Any, key: str) -> Any:
    return RedisBucket.init(_rates(), own, key)


def pyrate_token_bucket(own: Any, key: str) -> Any:
    return StateBucket(_rates(), algorithm=TokenBucket(), store=RedisStateStore(own, key))


# A Limiter lets one caller at a time through, also while that one waits for Redis. So every caller gets its own, as if
# it were a process; the bucket in Redis is what they share. Nothing is old enough to be cleaned up in a turn.
def _pyrate_limiter(bucket: Any) -> Limiter:
    return Limiter(SingleBucketFactory(bucket, schedule_leak=False))


def pyrate_redis(bucket_of: Callable[[Any, str], Any]) -> Open:
    @contextmanager
    def opened(url: str) -> Iterator[HitOf]:
        with client(url) as own:

            def hit_of(key: str) -> Hit:
                limiter = _pyrate_limiter(bucket_of(own, key))
                return lambda: bool(limiter.try_acquire(key))

            yield hit_of

    return opened


def aio_pyrate_redis(bucket_of: Callable[[Any, str], Any]) -> AsyncOpen:
    @contextmanager
    def opened(url: str, loop: Loop) -> Iterator[AsyncHitOf]:
        with aio_client(url, loop) as own:

            def hit_of(key: str) -> AsyncHit:
                bucket = bucket_of(own, key)
                limiter = _pyrate_limiter(loop.run_until_complete(bucket) if asyncio.iscoroutine(bucket) else bucket)
                return lambda: limiter.try_acquire_async(key)

            yield hit_of

    return opened


# Its Limiter is for requests of a web framework: it matches rules, and only then asks the algorithm. As a library
# call, the algorithm is what is used, which is also the faster.
PLAN = Plan(id="default", limit=PLENTY, period_seconds=3600)
CONTEXT = RequestContext(method="GET", path="/api")


def limify_key(key: str) -> str:
    return f"limify:api:default:user:{key}"


@contextmanager
def limify(url: str) -> Iterator[HitOf]:
    with client(url) as own:
        algorithm = TokenBucketAlgorithm(RedisSyncAdapter(own))

        def hit_of(key: str) -> Hit:
            full = limify_key(key)
            return lambda: algorithm.allow(full, PLAN, CONTEXT).allowed

        yield hit_of


@contextmanager
def aio_limify(url: str, loop: Loop) -> Iterator[AsyncHitOf]:
    with aio_client(url, loop) as own:
        algorithm = AsyncTokenBucketAlgorithm(RedisAsyncAdapter(own))
        loop.run_until_complete(algorithm.initialize())

        def hit_of(key: str) -> AsyncHit:
            full = limify_key(key)

            async def hit() -> bool:
                return (await algorithm.allow(full, PLAN, CONTEXT)).allowed

            return hit

        yield hit_of
