"""A store that lost its memory: `?cold_start=` says how full a bucket is of which it knows nothing."""

from __future__ import annotations

from typing import Any

import pytest
from redis_helpers import both_kinds, changes, on_server, opened

from headgate import Limit
from headgate.stores.redis.keys import slot_of
from headgate.testing import ManualClock
from headgate.testing.servers.redis import RedisCluster, RedisServer

MINUTE = Limit.per_minute("n", 60)
UNEVEN = Limit.custom("u", 7.5, 1, 3)


def left(limiter: Any, entity_id: str = "e") -> int:
    return int(limiter.available(entity_id, "r", [MINUTE])["n"])


def restart(server: RedisServer) -> None:
    server.kill()
    server.start()


@both_kinds
@pytest.mark.parametrize(
    ("share", "first"), [("?cold_start=0", 0), ("?cold_start=0.5", 30), ("?cold_start=1", 60), ("", 60)]
)
def test_server_that_forgot_starts_with_the_share_of_cold_start(
    kind: str, own_redis_server: RedisServer, share: str, first: int
) -> None:
    clock = ManualClock()
    with opened(kind, own_redis_server.url + share, clock=clock) as limiter:
        for _ in range(2):
            assert left(limiter) == first
            clock.advance(10)
            assert left(limiter) == min(60, first + 10)
            assert left(limiter, "another") == min(60, first + 10), "they all fill from the same moment on"
            assert limiter.try_acquire("e", "r", {"n": 10}, [MINUTE])
            assert left(limiter) == min(60, first + 10) - 10
            clock.advance(60)
            assert left(limiter) == left(limiter, "third") == 60
            assert limiter.try_acquire("e", "r", {"n": 60}, [MINUTE])
            clock.advance(1)
            assert left(limiter) == 1
            restart(own_redis_server)
        assert left(limiter) == first


@both_kinds
def test_cold_start_is_exact_to_the_millisecond(kind: str, own_redis_server: RedisServer) -> None:
    clock = ManualClock()
    with opened(kind, f"{own_redis_server.url}?cold_start=0.333", clock=clock) as limiter:
        # 2.4975 of 7.5 tokens, in whole thousandths 2.497, and 503 more of them at a third of one a millisecond.
        assert limiter.time_until_available("e", "r", {"u": 3}, [UNEVEN]) == 1.509
        clock.advance(1.508)
        assert not limiter.try_acquire("e", "r", {"u": 3}, [UNEVEN])
        clock.advance(0.001)
        assert limiter.try_acquire("e", "r", {"u": 3}, [UNEVEN])
        assert not limiter.try_acquire("e", "r", {"u": 0.001}, [UNEVEN])


@both_kinds
def test_cold_start_refills_by_the_servers_clock(kind: str, stepped_redis_server: RedisServer) -> None:
    hour = Limit.per_hour("n", 10)
    with opened(kind, f"{stepped_redis_server.url}?cold_start=0") as limiter:
        assert limiter.available("e", "r", [hour]) == {"n": 0}
        stepped_redis_server.step_clock(1800)
        assert limiter.available("e", "r", [hour]) == {"n": 5}
        assert limiter.available("f", "r", [hour]) == {"n": 5}
        restart(stepped_redis_server)
        assert limiter.available("e", "r", [hour]) == {"n": 0}
        stepped_redis_server.step_clock(-1800)
        assert limiter.available("f", "r", [hour]) == {"n": 0}
        stepped_redis_server.step_clock(1800)
        assert limiter.available("f", "r", [hour])["n"] <= 5


@both_kinds
def test_a_server_that_remembers_is_not_cold(kind: str, redis_installed: None) -> None:
    clock = ManualClock()
    with RedisServer(persistent=True) as server, opened(kind, f"{server.url}?cold_start=0", clock=clock) as limiter:
        assert left(limiter) == 0
        clock.advance(90)
        assert limiter.try_acquire("e", "r", {"n": 50}, [MINUTE])
        restart(server)
        assert left(limiter) == 10
        assert left(limiter, "unseen") == 60


@both_kinds
def test_a_cascade_is_cold_at_every_level(kind: str, own_redis_server: RedisServer) -> None:
    clock = ManualClock()
    with opened(kind, f"{own_redis_server.url}?cold_start=0", clock=clock) as limiter:
        limiter.create_entity("org")
        limiter.create_entity("e", parent_id="org", cascade=True)
        assert not limiter.try_acquire("e", "r", {"n": 1}, [MINUTE])
        clock.advance(3)
        assert limiter.try_acquire("e", "r", {"n": 3}, [MINUTE])
        assert not limiter.try_acquire("org", "r", {"n": 1}, [MINUTE])


@both_kinds
def test_a_cluster_of_which_a_node_forgot(kind: str, redis_cluster: RedisCluster) -> None:
    clock = ManualClock()
    forgetful, *_ = redis_cluster.servers
    entities = [on_server(redis_cluster, server, "cold")[0] for server in redis_cluster.servers]
    for server in redis_cluster.servers:
        server.command("FLUSHALL")
    with opened(kind, f"{redis_cluster.url}?cold_start=0.5", clock=clock) as limiter:
        assert [left(limiter, one) for one in entities] == [30, 30, 30]
        clock.advance(60)
        assert [left(limiter, one) for one in entities] == [60, 60, 60]
        assert all(limiter.try_acquire(one, "r", {"n": 20}, [MINUTE]) for one in entities)
        forgetful.command("FLUSHALL")  # which is what a restart without its data amounts to
        assert [left(limiter, one) for one in entities] == [30, 40, 40]
        clock.advance(10)
        assert [left(limiter, one) for one in entities] == [40, 50, 50]
    lasting = {key for server in redis_cluster.servers for key in server.command("KEYS", "*:birth")}
    assert {slot_of(key) for key in lasting} == {slot_of(f"{{{one}}}") for one in entities}
    for server in redis_cluster.servers:
        server.command("FLUSHALL")


@both_kinds
def test_the_birth_is_written_once(kind: str, own_redis_server: RedisServer) -> None:
    with opened(kind, f"{own_redis_server.url}?cold_start=0") as limiter:
        limiter.register_namespace(limiter.namespace)
        left(limiter)
        before = changes(own_redis_server)
        for _ in range(3):
            left(limiter)
            limiter.try_acquire("e", "r", {"n": 60}, [MINUTE])
        there = own_redis_server.command("KEYS", "*")
        assert [key for key in there if not key.startswith("headgate:{_}:")] == ["headgate:birth"]
        assert own_redis_server.command("PTTL", "headgate:birth") == -1
        assert changes(own_redis_server) == before
