"""Of whom something is stored, whatever the shape of its keys. A purge takes all of one, and nothing of others."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from redis_helpers import Relay

from headgate import Limit, RateLimiterUnavailable
from headgate.core.decide import TAKE, Part, Request
from headgate.core.names import bucket_key
from headgate.core.records import Put
from headgate.core.usage import HOUR_MS
from headgate.stores import Store, open_store
from headgate.stores.redis.keys import tag_of_slot
from headgate.testing.servers.redis import RedisCluster, RedisServer

START = 1_700_000_000_000
RPM, SLOTS = Limit.per_minute("rpm", 100), Limit.concurrent("par", 3)
TOGETHER = ("entity", "tenant", "namespace")
# Each is a part of another, or looks like something else.
NAMES = ["a", "a:b", "a:b:c", "A", "records", "birth", "b", "a.b", tag_of_slot(0)]
ENTITIES = ["a", "a:b", "b:a", "records", "birth"]
ROWS_IN_ALL_SHAPES = 5 + 2 + 5  # without a colon, those of an entity are those of its tenant


@dataclass
class Place:
    url: str
    servers: list[RedisServer]

    def open(self, together: str = "entity") -> Store:
        store = open_store(f"{self.url}?together={together}&cold_start=0.5", 10.0)
        store.usage_ms = 90 * 24 * HOUR_MS
        return store

    def there(self) -> set[str]:
        return {key for server in self.servers for key in server.command("KEYS", "*")}


@pytest.fixture(params=["server", "cluster"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "server":
        server: RedisServer = request.getfixturevalue("redis_server")
        found = Place(server.url, [server])
    else:
        cluster: RedisCluster = request.getfixturevalue("redis_cluster")
        found = Place(cluster.url, cluster.servers)
    for server in found.servers:
        server.command("FLUSHALL")
    return found


def fill(store: Store, namespace: str) -> int:
    """Buckets, slots, usage and records; how many rows and records."""
    for entity_id in ENTITIES:
        key = bucket_key(namespace, entity_id, "api/v1")
        parts = Part(0, RPM, 1000), Part(0, SLOTS, 2000)
        for hour in range(2):
            store.settle([Request(TAKE, (key,), parts, lease_id="l")], START + hour * HOUR_MS)
    store.write_records([Put(f"{namespace}/entity#{number}", {}) for number in range(3)], START)
    return len(ENTITIES) + 3


def of(namespace: str, keys: set[str]) -> set[str]:
    return {key for key in keys if key.startswith((f"headgate:{{{namespace}}}:", f"headgate:{namespace}:{{"))}


@pytest.mark.parametrize("together", TOGETHER)
def test_one_goes_and_the_others_stay(place: Place, together: str) -> None:
    store = place.open(together)
    assert store.list_stored() == []
    counts = {namespace: fill(store, namespace) for namespace in NAMES}
    fill(store, "_")
    births = {key for key in place.there() if key.endswith(":birth")}
    assert births
    for number, namespace in enumerate(NAMES):
        assert store.list_stored() == sorted(NAMES[number:])
        others = place.there() - (of(namespace, place.there()) - births)
        assert store.count_stored(namespace) == counts[namespace]
        assert store.purge(namespace) == counts[namespace]
        assert place.there() == others
        assert store.purge(namespace) == store.count_stored(namespace) == 0
    assert store.list_stored() == []
    assert store.count_stored("_") == len(ENTITIES) + 3
    store.close()


def test_purge_removes_keys_of_every_together(place: Place) -> None:
    """What was written with another `together` is nobody's any more, and is removed all the same."""
    stores = [place.open(together) for together in TOGETHER]
    for store in stores:
        fill(store, "a:b")
        fill(store, "a")
    records = {key for key in place.there() if ":records" in key}
    births = {key for key in place.there() if key.endswith("birth")}
    assert all(store.list_stored() == ["a", "a:b"] for store in stores)
    assert stores[0].purge("a:b") == stores[1].count_stored("a") == ROWS_IN_ALL_SHAPES + 3
    assert of("a:b", place.there()) == set()
    assert place.there() >= {key for key in records | births if "{a:b}" not in key}
    for store in stores:
        store.close()


@pytest.mark.parametrize("delivers", [True, False])
def test_one_that_was_stopped_can_be_gone_on_with(redis_server: RedisServer, delivers: bool) -> None:
    redis_server.command("FLUSHALL")
    with Relay(redis_server) as relay:
        place = Place(relay.url, [redis_server])
        store = place.open("namespace")
        fill(store, "other")
        others = place.there()
        fill(store, "n")
        for word in ["SCAN", "UNLINK", "HLEN", "records:keys"]:
            relay.cut(word, delivers=delivers, times=1000)  # until it gives up
            with pytest.raises(RateLimiterUnavailable):
                store.purge("n")
            relay.cut(word, times=0)
            assert store.list_stored() in (["n", "other"], ["other"])
        store.purge("n")
        assert store.purge("n") == 0
        assert store.list_stored() == ["other"]
        assert place.there() == others
        store.close()
