"""A table that is made anew, or a namespace that is purged, under clients that go on: they notice, and go on in the new
one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from dynamodb_helpers import START_MS, available, hold, new_table, opened, place_of, request, spread
from dynamodb_limiters import both_kinds, limiter_of, patiently, take

from headgate import Limit, SyncRateLimiter, ValidationError
from headgate.core.decide import FORCE, PEEK, TAKE, Mode, Part, Request
from headgate.stores.dynamodb.url import read_url
from local_servers.dynamodb import Engine, Proxy

LIMIT = Limit.per_minute("n", 100)
SLOTS = Limit.concurrent("c", 10, ttl=600)


@pytest.fixture
def url(dynamodb_engine: Engine, aws_credentials: str) -> str:
    return new_table(dynamodb_engine)


@pytest.fixture
def store(url: str) -> Iterator[Any]:
    with opened(url) as store:
        yield store


def delete(store: Any) -> None:
    client, table = store._wire.client(), store._plans.shards._deliver.table
    client.delete_table(TableName=table)
    client.get_waiter("table_not_exists").wait(TableName=table)


def make_anew(store: Any, url: str) -> None:
    delete(store)
    with opened(url) as another:
        another.setup()


def ids(store: Any) -> set[str]:
    """Under which ids something is stored, besides the registry."""
    client, table = store._wire.client(), store._plans.shards._deliver.table
    items = client.scan(TableName=table, ConsistentRead=True)["Items"]
    return {item["PK"]["S"].partition("/")[0] for item in items} - {"_"}


@pytest.mark.parametrize("mode", [TAKE, FORCE])
def test_a_known_bucket_is_used_in_the_new_table(
    url: str, store: Any, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    store.settle([request(LIMIT, 70)], START_MS)
    old = place_of(store).ns
    make_anew(store, url)
    caplog.set_level(logging.ERROR, "headgate")
    (answer,) = store.settle([request(LIMIT, 60, mode)], START_MS)
    assert (answer.allowed, answer.levels[0][0]) == (True, 40_000)
    assert ids(store) == {place_of(store).ns} != {old}
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "namespace 'n'" in said
    assert "recreated or the namespace was purged" in said
    with opened(url) as another:
        assert available(another, LIMIT) == 40_000


def test_a_batch_is_decided_once_more_and_in_order(url: str, store: Any) -> None:
    store.settle([request(LIMIT, 70)], START_MS)
    make_anew(store, url)
    batch = [request(LIMIT, 60), request(LIMIT, 60), request(LIMIT, 40, TAKE, "n/e#r", "n/unknown#r")]
    assert [answer.allowed for answer in store.settle(batch, START_MS)] == [True, False, True]
    assert available(store, LIMIT) == 0
    assert available(store, LIMIT, key="n/unknown#r") == 60_000


def test_a_look_at_a_known_bucket_sees_the_new_table(url: str, store: Any) -> None:
    store.settle([request(LIMIT, 70)], START_MS)
    make_anew(store, url)
    with opened(url) as another:
        another.settle([request(LIMIT, 10)], START_MS)
    (answer,) = store.settle([request(LIMIT, 0, PEEK)], START_MS)
    assert answer.levels[0][0] == 90_000


@pytest.mark.parametrize("amount", [1, 90])
def test_a_bucket_with_shards_is_used_in_the_new_table(url: str, store: Any, amount: int) -> None:
    """Of one of them, or of all."""
    spread(store, LIMIT, 4)
    assert available(store, LIMIT) == 100_000
    make_anew(store, url)
    assert store.settle([request(LIMIT, amount)], START_MS)[0].allowed
    assert ids(store) == {place_of(store).ns}
    with opened(url) as another:
        assert available(another, LIMIT) == (100 - amount) * 1000


def test_slots_are_held_in_the_new_table(url: str, store: Any) -> None:
    assert store.settle([hold(SLOTS, "n/e#r", "first")], START_MS)[0].allowed
    make_anew(store, url)
    both = Request(TAKE, ("n/e#r",), (Part(0, SLOTS, 9000), Part(0, LIMIT, 1000)), lease_id="second")
    assert store.settle([both], START_MS)[0].allowed
    with opened(url) as another:
        assert (available(another, SLOTS), available(another, LIMIT)) == (1000, 99_000)


@pytest.mark.parametrize("by", ["using it", "making it"])
def test_a_client_that_has_seen_the_table_missing_asks_for_the_namespace_again(url: str, store: Any, by: str) -> None:
    """For buckets that it has never used as well."""
    store.settle([request(LIMIT, 1)], START_MS)
    delete(store)
    with opened(url) as another:
        if by == "using it":
            with pytest.raises(ValidationError, match="does not exist"):
                store.settle([request(LIMIT, 1)], START_MS)
            another.setup()
        else:
            store.setup()
        store.settle([request(LIMIT, 1, TAKE, "n/unknown#r")], START_MS)
        assert available(another, LIMIT, key="n/unknown#r") == 99_000


def test_a_purged_namespace_is_registered_anew(url: str, store: Any) -> None:
    store.settle([request(LIMIT, 70)], START_MS)
    old = place_of(store).ns
    with SyncRateLimiter(url, store_timeout=20) as admin:
        admin.delete_namespace("n")
        admin.purge_namespace("n", confirm="n")
    assert store.settle([request(LIMIT, 60)], START_MS)[0].allowed
    assert ids(store) == {place_of(store).ns} != {old}


def test_an_item_that_is_deleted_alone_is_written_again_in_the_same_namespace(
    dynamodb_engine: Engine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As by its time to live. It costs a look at the registry, once."""
    table = read_url(url).table
    with Proxy(dynamodb_engine.endpoint_url) as proxy, opened(proxy.url(table)) as store:
        store.settle([request(LIMIT, 70)], START_MS)
        ns = place_of(store).ns
        store._wire.client().delete_item(TableName=table, Key=place_of(store).key)
        proxy.forget()
        assert store.settle([request(LIMIT, 20)], START_MS)[0].allowed
        assert [one.operation for one in proxy.requests] == ["UpdateItem", "BatchGetItem", "UpdateItem"]
        assert ids(store) == {ns} == {place_of(store).ns}
    assert not caplog.records


@both_kinds
def test_limiters_go_on_in_the_new_table(kind: str, url: str) -> None:
    limit = Limit.per_day("n", 10)
    with limiter_of(kind, url) as limiter, opened(url) as store:
        assert take(limiter, "e", 7, limit)
        make_anew(store, url)
        assert patiently(lambda: take(limiter, "e", 6, limit))
        with SyncRateLimiter(url, store_timeout=20) as another:
            assert another.available("e", "r", [limit])["n"] == 4
