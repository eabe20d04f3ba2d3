"""Stores that can be stopped in the middle of something, taken away, and brought back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from headgate import SyncRateLimiter
from headgate.testing.servers.redis import RedisServer
from local_servers.dynamodb import Engine, Proxy
from local_servers.postgres import PostgresServer


class Outage(Protocol):
    """`url`: of the store. `timeout`: how long to wait for its answers. `forgets`: it comes back with nothing."""

    url: str
    timeout: float
    forgets: bool

    def stall(self) -> None:
        """From now on whoever asks gets no answer."""

    def down(self) -> None:
        """It is away, and those who wait for an answer get none any more."""

    def up(self) -> None: ...


class RedisOutage:
    """redis-server, killed with kill -9. What it was sent while it stood still it never did."""

    timeout = 3.0

    def __init__(self, server: RedisServer, *, forgets: bool) -> None:
        self._server = server
        self.url = server.url
        self.forgets = forgets

    def stall(self) -> None:
        self._server.pause()

    def down(self) -> None:
        self._server.kill()

    def up(self) -> None:
        self._server.start()


class PostgresOutage:
    """PostgreSQL, all its processes killed with kill -9. What it was sent while it stood still it never did."""

    timeout = 3.0
    forgets = False

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.url = server.url
        with SyncRateLimiter(self.url, store_timeout=30) as limiter:
            limiter.setup()

    def stall(self) -> None:
        self._server.pause()

    def down(self) -> None:
        self._server.kill()

    def up(self) -> None:
        self._server.start()


class DynamoDBOutage:
    """The line to DynamoDB is dead. What it was sent while no answer came it did."""

    timeout = 3.0
    forgets = False

    def __init__(self, engine: Engine, proxy: Proxy) -> None:
        self._proxy = proxy
        table = f"faults-{uuid4().hex}"
        with SyncRateLimiter(engine.url(table), store_timeout=30) as limiter:
            limiter.setup()
        self.url = proxy.url(table)

    def stall(self) -> None:
        self._proxy.lose_replies(1_000_000, silently=True)

    def down(self) -> None:
        self._proxy.down()

    def up(self) -> None:
        self._proxy.forget()
        self._proxy.up()


class SqliteOutage:
    """Somebody has locked the file, and does not let go of it."""

    timeout = 1.0  # callers wait for the file one after the other
    forgets = False

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self._path = path
        self._lock: sqlite3.Connection | None = None

    def stall(self) -> None:
        if self._lock is None:
            self._lock = sqlite3.connect(self._path, timeout=30, isolation_level=None, check_same_thread=False)
            self._lock.execute("BEGIN IMMEDIATE")

    down = stall

    def up(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


@contextmanager
def redis_outage(*, forgets: bool) -> Iterator[Outage]:
    with RedisServer(persistent=not forgets) as server:
        yield RedisOutage(server, forgets=forgets)


@contextmanager
def postgres_outage() -> Iterator[Outage]:
    with PostgresServer() as server:
        yield PostgresOutage(server)


@contextmanager
def dynamodb_outage(engine: Engine) -> Iterator[Outage]:
    with Proxy(engine.endpoint_url) as proxy:
        yield DynamoDBOutage(engine, proxy)


@contextmanager
def sqlite_outage(folder: Path) -> Iterator[Outage]:
    outage = SqliteOutage(folder / "faults.db")
    with SyncRateLimiter(outage.url, store_timeout=20) as limiter:
        limiter.ping()
    yield outage
    outage.up()
