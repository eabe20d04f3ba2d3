"""A cluster: slots that move, masters that change, and what lies in one slot together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import ResponseError
from redis_helpers import Load, both_kinds, calls, fixed, on_server, opened

from headgate.stores.redis.keys import slot_of
from headgate.testing.servers.redis import RedisCluster, RedisServer

TEN = fixed(10)
PLENTY = fixed(1_000_000)


@pytest.fixture
def cluster(redis_cluster: RedisCluster) -> RedisCluster:
    """The one of all tests, empty."""
    for server in redis_cluster.servers:
        server.command("FLUSHDB")
    return redis_cluster


def other_than(cluster: RedisCluster, slot: int) -> RedisServer:
    return next(server for server in cluster.servers if server is not cluster.owner(slot))


def used(limiter: Any, entity_id: str, resource: str = "r") -> int:
    (bucket,) = limiter.get_buckets(entity_id, resource)
    return int(bucket.limit.capacity - bucket.available)


def errors(cluster: RedisCluster, code: str) -> int:
    """How often the nodes answered so."""
    stats = [server.info("errorstats") for server in cluster.servers]
    return sum(of_server.get(f"errorstat_{code}", {"count": 0})["count"] for of_server in stats)


@both_kinds
class TestMovingSlots:
    ROW = "headgate:default:{e}#r"

    def test_a_limiter_that_has_not_heard_of_it(self, kind: str, cluster: RedisCluster) -> None:
        with opened(kind, cluster.url) as limiter:
            for count in range(3):
                assert limiter.try_acquire("e", "r", {"n": 1}, [TEN])
                limiter.adjust("e", "r", {"n": 1}, [TEN])
                assert used(limiter, "e") == 2 * count + 2
                cluster.move_slot(slot_of(self.ROW), other_than(cluster, slot_of(self.ROW)))

    def test_every_stage_of_a_move(self, kind: str, cluster: RedisCluster) -> None:
        """Nobody notices, and every token is counted once, wherever it is."""
        slot = slot_of(self.ROW)
        asked, moved = errors(cluster, "ASK"), errors(cluster, "MOVED")

        def check(resource: str, before: int) -> None:
            assert limiter.try_acquire("e", resource, {"n": 1}, [TEN])
            limiter.adjust("e", resource, {"n": 2}, [TEN])
            limiter.adjust("e", resource, {"n": -1}, [TEN])
            assert used(limiter, "e", resource) == before + 2

        with opened(kind, cluster.url) as limiter:
            check("r", 0)
            cluster.begin_move_slot(slot, other_than(cluster, slot))
            check("r", 2)  # still here
            check("new", 0)  # not here: made there
            cluster.move_keys(slot, [self.ROW])
            check("r", 4)
            check("new", 2)
            assert errors(cluster, "ASK") > asked
            cluster.end_move_slot(slot)
            check("r", 6)
            assert errors(cluster, "MOVED") > moved

    def test_slots_that_move_under_load_are_counted_once(self, kind: str, cluster: RedisCluster) -> None:
        slot = slot_of(self.ROW)
        with Load(kind, cluster.url, [("e", "r", {"n": 1}, [PLENTY]), ("other", "r", {"n": 1}, [PLENTY])]) as load:
            for _ in range(4):
                load.goes_on(10)
                cluster.begin_move_slot(slot, other_than(cluster, slot))
                load.goes_on(10)
                cluster.move_keys(slot, [self.ROW])
                load.goes_on(10)
                cluster.end_move_slot(slot)
        assert load.unavailable == []
        with opened(kind, cluster.url) as limiter:
            assert {one: used(limiter, one) for one in ("e", "other")} == load.admitted

    def test_a_request_of_which_only_a_part_has_moved(self, kind: str, cluster: RedisCluster) -> None:
        """The node says TRYAGAIN. When the move is over, whoever is still trying gets through."""
        slot = slot_of("{default}")
        url = f"{cluster.url}?together=namespace"
        with opened(kind, url) as limiter:
            limiter.create_entity("org")
            limiter.create_entity("child", parent_id="org", cascade=True)
            with Load(kind, url, [("child", "r", {"n": 1}, [PLENTY])]) as load:
                for _ in range(2):
                    load.goes_on(10)
                    before = errors(cluster, "TRYAGAIN")
                    cluster.begin_move_slot(slot, other_than(cluster, slot))
                    cluster.move_keys(slot, ["headgate:{default}:child#r"])
                    load.until(lambda before=before: errors(cluster, "TRYAGAIN") > before, "a node says TRYAGAIN")
                    cluster.end_move_slot(slot)
                    load.goes_on(10)
            assert [why for why in load.unavailable if "TRYAGAIN" not in why] == []
            assert used(limiter, "child") == used(limiter, "org") == load.admitted["child"]


@both_kinds
class TestTogether:
    @pytest.mark.parametrize(("together", "scripts"), [("entity", 3), ("tenant", 1), ("namespace", 1)])
    def test_a_cascade_in_one_slot_is_one_call(
        self, kind: str, cluster: RedisCluster, together: str, scripts: int
    ) -> None:
        with opened(kind, f"{cluster.url}?together={together}") as limiter:
            limiter.create_entity("acme")
            limiter.create_entity("acme:team", parent_id="acme", cascade=True)
            limiter.create_entity("acme:team:bob", parent_id="acme:team", cascade=True)
            for _ in range(2):  # the second knows its chain, and the servers the script
                before = sum(calls(server, "eval", "evalsha") for server in cluster.servers)
                assert limiter.try_acquire("acme:team:bob", "r", {"n": 1}, [TEN])
                after = sum(calls(server, "eval", "evalsha") for server in cluster.servers)
            assert after - before == scripts
            assert [used(limiter, one) for one in ("acme", "acme:team", "acme:team:bob")] == [2, 2, 2]
            rows = [key for server in cluster.servers for key in server.command("KEYS", "*#*")]
            assert len(rows) == 3
            assert len({slot_of(row) for row in rows}) == scripts

    def test_tenants_are_on_the_nodes_of_their_slots(self, kind: str, cluster: RedisCluster) -> None:
        tenants = [on_server(cluster, server, "tenant")[0] for server in cluster.servers]
        with opened(kind, f"{cluster.url}?together=tenant") as limiter:
            for tenant in tenants:
                assert limiter.try_acquire(f"{tenant}:bob", "r", {"n": 1}, [TEN])
            for server, tenant in zip(cluster.servers, tenants):
                assert server.command("KEYS", "*#*") == [f"headgate:default:{{{tenant}}}:bob#r"]

    def test_all_nodes_are_listed(self, kind: str, cluster: RedisCluster) -> None:
        with opened(kind, cluster.url) as limiter:
            entities = sorted(one for server in cluster.servers for one in on_server(cluster, server, "e", 4))
            for one in entities:
                assert limiter.try_acquire(one, "r", {"n": 1}, [TEN])
            capacity = limiter.get_resource_capacity("r", "n")
            assert sorted(entity.entity_id for entity in capacity.entities) == entities


@both_kinds
def test_nodes_that_do_not_say_where_they_are(kind: str, cluster: RedisCluster) -> None:
    """Behind a balancer they leave out the host: it is the one that was asked."""

    def announce(how: str) -> None:
        for server in cluster.servers:
            server.command("CONFIG", "SET", "cluster-preferred-endpoint-type", how)

    try:
        announce("unknown-endpoint")
    except ResponseError:
        pytest.skip("this server always says where it is")
    try:
        slot = slot_of("{e}")
        with opened(kind, cluster.url) as limiter:
            assert limiter.try_acquire("e", "r", {"n": 1}, [TEN])
            cluster.begin_move_slot(slot, other_than(cluster, slot))
            assert limiter.try_acquire("e", "new", {"n": 1}, [TEN])
            cluster.end_move_slot(slot)
            assert limiter.try_acquire("e", "r", {"n": 1}, [TEN])
            assert used(limiter, "e") == 2
    finally:
        announce("ip")


@pytest.fixture(scope="module")
def replicated_cluster(redis_installed: None) -> Iterator[RedisCluster]:
    with RedisCluster(replicas=1) as cluster:
        yield cluster


class TestFailover:
    def test_by_command_and_by_death(self, replicated_cluster: RedisCluster) -> None:
        cluster = replicated_cluster
        first, *_ = cluster.servers
        entities = [on_server(cluster, server, "e")[0] for server in cluster.servers[:3]]
        wishes = [(one, "r", {"n": 1}, [PLENTY]) for one in entities]
        with Load("sync", cluster.url, wishes) as threads, Load("async", cluster.url, wishes) as tasks:
            threads.goes_on()
            tasks.goes_on()
            new = cluster.failover(first)
            self.all_go_on(threads, tasks, entities)
            new.kill()
            threads.gets_no_answer(1)
            tasks.gets_no_answer(1)
            cluster.failover(new)
            self.all_go_on(threads, tasks, entities)

    def all_go_on(self, threads: Load, tasks: Load, entities: list[str]) -> None:
        for load in (threads, tasks):
            for one in entities:
                wanted = load.admitted[one] + 5
                load.until(lambda load=load, one=one, wanted=wanted: load.admitted[one] >= wanted, "all go on")
