"""Limiters and stores of either kind, in tests of what goes wrong between them and DynamoDB."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from dynamodb_helpers import new_table

from headgate import Limit, RateLimiterUnavailable, SyncRateLimiter
from headgate.core.decide import Answer, Request
from headgate.stores import open_async_store, open_store
from headgate.stores.dynamodb.url import read_url
from headgate.testing.driver import DRIVERS
from local_servers.dynamodb import Engine, Proxy

# No timing decides a test: a call that takes longer than this has forgotten its deadline.
FAR_TOO_LONG_SECONDS = 40.0

both_kinds = pytest.mark.parametrize("kind", ["sync", "async"])
_numbers = itertools.count()


def new_entity(prefix: str = "e") -> str:
    """One that no other test uses: the tests of a file share a table."""
    return f"{prefix}{next(_numbers)}"


def fixed(capacity: int, name: str = "n") -> Limit:
    """A limit that gains a thousandth of a token a year, in a test nothing: every token can be accounted for."""
    return Limit.custom(name, capacity, 0.001, 366 * 86_400)


TEN = fixed(10)


@contextmanager
def limiter_of(kind: str, url: str, **settings: Any) -> Iterator[Any]:
    """Both kinds have the face of SyncRateLimiter. On a busy machine they are patient."""
    driver = DRIVERS[kind](url, **({"store_timeout": 20.0} | settings))
    try:
        yield driver
    finally:
        driver.shut()


class StoreDriver:
    """A store of coroutines, with the face of a blocking one."""

    def __init__(self, url: str, timeout_seconds: float) -> None:
        self.loop = asyncio.new_event_loop()
        self.store = open_async_store(url, timeout_seconds)

    def settle(self, batch: Sequence[Request], now_ms: int) -> list[Answer]:
        return self.loop.run_until_complete(self.store.settle(batch, now_ms))

    def close(self) -> None:
        self.loop.run_until_complete(self.store.close())
        self.loop.close()


@contextmanager
def store_of(kind: str, url: str, timeout_seconds: float = 20.0) -> Iterator[Any]:
    store = open_store(url, timeout_seconds) if kind == "sync" else StoreDriver(url, timeout_seconds)
    try:
        yield store
    finally:
        store.close()


class Table:
    """A new table, a limiter that goes straight to it, and what is in it: all of that is true."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.url = new_table(engine)
        self.name = read_url(self.url).table
        self.direct = SyncRateLimiter(self.url, store_timeout=20)
        self._client = engine.client()

    def close(self) -> None:
        self.direct.close()
        self._client.close()

    def items(self, part: str = "") -> list[dict[str, Any]]:
        """Those in whose key this is."""
        pages = self._client.get_paginator("scan").paginate(TableName=self.name, ConsistentRead=True)
        return [item for page in pages for item in page["Items"] if part in item["PK"]["S"] + item["SK"]["S"]]

    def left(self, *entities: str, limit: Limit = TEN) -> Any:
        """Whole tokens in an entity's own bucket; of several entities, a list."""
        found = [self.direct.get_buckets(entity, "r") for entity in entities]
        left = [int(buckets[0].available) if buckets else int(limit.capacity) for buckets in found]
        return left if len(left) > 1 else left[0]

    def shards(self, entity: str) -> dict[str, str]:
        """Of how many each shard believes to be one."""
        items = self.items(f"/BUCKET#{entity}#")
        return {item["PK"]["S"].rpartition("#")[2]: item["shard_count"]["N"] for item in items}

    def family(self) -> tuple[str, str]:
        """A child and its parent."""
        child, parent = new_entity("child"), new_entity("parent")
        self.direct.create_entity(parent)
        self.direct.create_entity(child, parent_id=parent, cascade=True)
        return child, parent


class Scene:
    """A table behind a proxy that fails on demand."""

    def __init__(self, table: Table, proxy: Proxy) -> None:
        self.table = table
        self.proxy = proxy
        self.direct, self.left, self.items = table.direct, table.left, table.items
        self.shards, self.family = table.shards, table.family

    @property
    def url(self) -> str:
        return self.proxy.url(self.table.name)

    @property
    def unsplit(self) -> str:
        """Where a bucket stays one item, so that every write can be counted."""
        return self.proxy.url(self.table.name, shards=1)

    def writes(self) -> int:
        """How many requests came that may have changed something."""
        return sum(self.proxy.count(one) for one in _WRITES)


@contextmanager
def scene_on(table: Table) -> Iterator[Scene]:
    with Proxy(table.engine.endpoint_url) as proxy:
        yield Scene(table, proxy)


_WRITES = ("UpdateItem", "BatchExecuteStatement", "TransactWriteItems", "PutItem", "DeleteItem")


def take(limiter: Any, entity: str, amount: int = 1, limit: Limit = TEN) -> Any:
    return limiter.try_acquire(entity, "r", {"n": amount}, [limit])


def told(call: Callable[[], Any]) -> str:
    """What the caller hears of a store that does not answer."""
    with pytest.raises(RateLimiterUnavailable) as caught:
        call()
    return str(caught.value)


def patiently(call: Callable[[], Any]) -> Any:
    """What a call returns that may be late now and then, on a busy machine."""
    deadline = time.monotonic() + FAR_TOO_LONG_SECONDS
    while True:
        try:
            return call()
        except RateLimiterUnavailable:
            if time.monotonic() > deadline:
                raise


def at_once(work: Sequence[Callable[[], None]]) -> None:
    """Each in a thread of its own, and none may fail."""
    errors = []

    def attempt(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=attempt, args=[one]) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
