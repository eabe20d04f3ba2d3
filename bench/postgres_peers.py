"""The other library with a PostgreSQL bucket, as its own documentation uses it, and the bare client.

All use psycopg, the bare client one connection, prepared statements and autocommit. An opener yields what makes the hit
on a key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool
from pyrate_limiter import Duration, Limiter, PostgresBucket, Rate, SingleBucketFactory

from .measure import AsyncHit, Hit
from .peers import PLENTY

Loop = asyncio.AbstractEventLoop
HitOf = Callable[[str], Hit]
AsyncHitOf = Callable[[str], AsyncHit]
Open = Callable[[str], AbstractContextManager[HitOf]]
AsyncOpen = Callable[[str, Loop], AbstractContextManager[AsyncHitOf]]

SELECT_1 = "SELECT 1"
NOTHING = "SELECT bench.nothing(%s, 1)"
READ_AND_WRITE = "SELECT bench.read_and_write(%s, 1)"
_CONNECTIONS = 16

_SCHEMA = """
CREATE SCHEMA bench;
CREATE TABLE bench.counted (key text PRIMARY KEY, counted bigint NOT NULL) WITH (fillfactor = 70);
CREATE FUNCTION bench.nothing(of_key text, amount bigint) RETURNS bigint LANGUAGE plpgsql AS
  'BEGIN RETURN amount; END';
CREATE FUNCTION bench.read_and_write(of_key text, amount bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  found bigint;
BEGIN
  SELECT counted INTO found FROM bench.counted WHERE key = of_key FOR NO KEY UPDATE;
  UPDATE bench.counted SET counted = found + amount WHERE key = of_key;
  RETURN found + amount;
END
$$;
"""


def empty(url: str, keys: list[str]) -> None:
    """Nothing but what the bare client uses."""
    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in tables:
            connection.execute(f'DROP TABLE "{table}"'.encode())
        connection.execute("DROP SCHEMA IF EXISTS bench CASCADE")
        connection.execute(_SCHEMA.encode())
        connection.cursor().executemany(
            "INSERT INTO bench.counted VALUES (%s, 0)", [(key,) for key in sorted(set(keys))]
        )
        connection.execute("TRUNCATE headgate.buckets, headgate.slots, headgate.usage, headgate.records")


def call(query: str) -> Open:
    @contextmanager
    def opened(url: str) -> Iterator[HitOf]:
        with psycopg.connect(url, autocommit=True) as connection:

            def hit_of(key: str) -> Hit:
                parameters = (key,) if "%s" in query else None
                return lambda: bool(connection.execute(query.encode(), parameters, prepare=True).fetchone())

            yield hit_of

    return opened


def aio_call(query: str) -> AsyncOpen:
    @contextmanager
    def opened(url: str, loop: Loop) -> Iterator[AsyncHitOf]:
        connection = loop.run_until_complete(psycopg.AsyncConnection.connect(url, autocommit=True))

        def hit_of(key: str) -> AsyncHit:
            parameters = (key,) if "%s" in query else None

            async def hit() -> bool:
                return bool(await (await connection.execute(query.encode(), parameters, prepare=True)).fetchone())

            return hit

        try:
            yield hit_of
        finally:
            loop.run_until_complete(connection.close())

    return opened


# A Limiter lets one caller at a time through, also while that one waits for the server. So every caller gets its own,
# as if it were a process; the table is what they share. It refuses whoever finds the table locked, and is asked again.
@contextmanager
def _pyrate(url: str) -> Iterator[Callable[[str], Limiter]]:
    with ConnectionPool(url, min_size=_CONNECTIONS, max_size=_CONNECTIONS) as pool:
        pool.wait()

        def limiter_of(key: str) -> Limiter:
            bucket = PostgresBucket(pool, key.replace("-", "_"), [Rate(PLENTY, Duration.HOUR)])
            return Limiter(SingleBucketFactory(bucket, schedule_leak=False))

        yield limiter_of


@contextmanager
def pyrate(url: str) -> Iterator[HitOf]:
    with _pyrate(url) as limiter_of:

        def hit_of(key: str) -> Hit:
            limiter = limiter_of(key)
            return lambda: _until(lambda: limiter.try_acquire(key))

        yield hit_of


def _until(hit: Callable[[], Any]) -> bool:
    while not hit():
        pass
    return True


@contextmanager
def aio_pyrate(url: str, loop: Loop) -> Iterator[AsyncHitOf]:
    with _pyrate(url) as limiter_of:

        def hit_of(key: str) -> AsyncHit:
            limiter = limiter_of(key)

            async def hit() -> bool:
                while not await limiter.try_acquire_async(key):
                    pass
                return True

            return hit

        yield hit_of
