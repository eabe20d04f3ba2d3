"""Stores on a table of their own, and what the tests of several files ask of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headgate.core.decide import FORCE, PEEK, TAKE, Mode, Part, Request
from headgate.core.limit import Limit
from headgate.core.usage import DAY_MS, hour_of
from headgate.stores import open_store
from headgate.stores.dynamodb.blocking import _Talk
from headgate.stores.dynamodb.places import ItemPlace
from local_servers.dynamodb import Engine

START_MS = 1_700_000_000_000
USAGE_MS = 90 * DAY_MS


def new_table(engine: Engine) -> str:
    """The URL of a table that was set up just now."""
    url = engine.url(f"t{uuid.uuid4().hex}")
    store = open_store(url, 20.0)
    store.setup()
    store.close()
    return url


@contextmanager
def opened(url: str, timeout_seconds: float = 20.0) -> Iterator[Any]:
    store = open_store(url, timeout_seconds)
    try:
        yield store
    finally:
        store.close()


def used(store: Any, *place: str | None, now_ms: int = START_MS, namespace: str = "n") -> dict[Any, int]:
    """What was ever used by an entity on a resource, or by all of them (None).

    Millitokens by (entity, resource, limit, hour).
    """
    found: dict[Any, int] = {}
    cursor = None
    while True:
        entity_id, resource = place or ("e", "r")
        page = store.list_usage(namespace, entity_id, resource, (0, hour_of(now_ms) + 10**5), cursor, now_ms)
        for row in page:
            for limit, hours in row.used.items():
                for hour, milli in hours.items():
                    if milli:
                        key = row.entity_id, row.resource, limit, hour
                        assert key not in found
                        found[key] = milli
        cursor = page.cursor
        if cursor is None:
            return found


def request(limit: Limit, amount: int, mode: Mode = TAKE, *keys: str, max_wait_ms: int = 0) -> Request:
    """In whole tokens, of the bucket `n/e#r` or of the buckets with these keys."""
    keys = keys or ("n/e#r",)
    parts = tuple(Part(level, limit, amount * 1000) for level in range(len(keys)))
    return Request(mode, keys, parts, max_wait_ms)


def hold(limit: Limit, key: str, lease_id: str, amount: int = 1, mode: Mode = TAKE) -> Request:
    """Of slots, for a lease."""
    return Request(mode, (key,), (Part(0, limit, amount * 1000),), lease_id=lease_id)


def available(store: Any, limit: Limit, now_ms: int = START_MS, key: str = "n/e#r") -> int:
    """In millitokens."""
    (answer,) = store.settle([request(limit, 0, PEEK, key)], now_ms)
    return int(answer.levels[0][0])


def take_all(store: Any, limit: Limit, amount: int = 1, now_ms: int = START_MS) -> int:
    """Take as often as it passes; how often."""
    taken = 0
    while store.settle([request(limit, amount)], now_ms)[0].allowed:
        taken += 1
    return taken


def force(store: Any, limit: Limit, amount: int, now_ms: int = START_MS) -> None:
    store.settle([request(limit, amount, FORCE)], now_ms)


def place_of(store: Any, shard: int = 0, namespace: str = "n", entity: str = "e") -> ItemPlace:
    """The item of a shard of `n/e#r`."""
    namespaces = store._plans.namespaces
    ns = namespaces.known(namespace) or store._run(namespaces.id_plan(namespace, register=False))  # known for a minute
    return ItemPlace(ns, entity, "r", shard)


def split(store: Any, shard: int = 0, namespace: str = "n") -> int:
    return int(store._run(store._plans.shards.split_plan(place_of(store, shard, namespace))))


def split_halfway(store: Any) -> None:
    """As by one who dies before the sibling is there."""
    plan = store._plans.shards.split_plan(place_of(store))
    call = next(plan)
    while not any(send.operation == "TransactWriteItems" for send in call.sends):
        call = plan.send(_Talk(store._wire).perform(call))
    plan.close()


def spread(store: Any, limit: Limit, shards: int, entity: str = "e", now_ms: int = START_MS) -> None:
    """A bucket of which nothing is taken, over so many items."""
    store.settle([request(limit, 0, FORCE, f"n/{entity}#r")], now_ms)
    count = 1
    while count < shards:
        for shard in range(count):
            store._run(store._plans.shards.split_plan(place_of(store, shard, entity=entity)))
        count *= 2
