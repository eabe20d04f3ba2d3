"""What lies on the server: readable keys, each for as long as it matters, and nothing for those who only looked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis_helpers import both_kinds, calls, changes, fixed, on_server, opened

from headgate import Limit
from headgate.stores import open_store
from headgate.testing import ManualClock
from headgate.testing.servers.process import eventually
from headgate.testing.servers.redis import RedisCluster, RedisServer

TEN = fixed(10)
PER_SECOND = Limit.per_second("n", 10)
BILLIONS = Limit.custom("n", 10**12, 10**12, 100)
PER_DAY = Limit.per_day("day", 10)
SLOW = Limit.custom("n", 100, 1, 7)
TEN_A_YEAR = Limit.custom("n", 10, 10, 366 * 86_400)
ROUNDING = 1.00001
SLACK_MS = 1000  # between two looks at the server's clock
MARGIN_MS, SPARE_MS, INJECTED_CLOCK_MARGIN_MS = 60_000, 30_000, 86_400_000  # as in settle.lua
RECORDS = {f"headgate:{{default}}:{name}" for name in ("records", "records:keys", "records:expiring")}
ROW = "headgate:{default}:e#r"


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    redis_server.command("FLUSHALL")
    return redis_server


@pytest.fixture
def cluster(redis_cluster: RedisCluster) -> RedisCluster:
    for one in redis_cluster.servers:
        one.command("FLUSHALL")
    return redis_cluster


def keys(*servers: RedisServer) -> set[str]:
    """All, but for those of the namespaces themselves."""
    return {key for server in servers for key in server.command("KEYS", "*") if not key.startswith("headgate:{_}:")}


NAMES = {
    "entity": "headgate:default:{acme:bob}#api/v1",
    "tenant": "headgate:default:{acme}:bob#api/v1",
    "namespace": "headgate:{default}:acme:bob#api/v1",
}


class TestNames:
    @both_kinds
    @pytest.mark.parametrize("together", NAMES)
    def test_keys_on_a_server_are_named_by_together(self, kind: str, server: RedisServer, together: str) -> None:
        with opened(kind, f"{server.url}?together={together}") as limiter:
            limiter.adjust("acme:bob", "api/v1", {"n": 1}, [TEN])
            assert keys(server) == {NAMES[together]}
            limiter.set_limits("acme:bob", [TEN])
            assert keys(server) - {NAMES[together]} <= RECORDS
            limiter.reset("acme:bob", "api/v1")
            assert any("##" in key for key in keys(server)), "what was used stays"

    @both_kinds
    @pytest.mark.parametrize("together", NAMES)
    def test_keys_on_a_cluster_are_named_by_together(self, kind: str, cluster: RedisCluster, together: str) -> None:
        with opened(kind, f"{cluster.url}?together={together}") as limiter:
            limiter.adjust("acme:bob", "api/v1", {"n": 1}, [TEN])
            assert keys(*cluster.servers) == {NAMES[together]}
            limiter.set_limits("acme:bob", [TEN])
            assert keys(*cluster.servers) - {NAMES[together]} <= RECORDS

    def test_default_of_together_is_namespace_on_a_server_and_entity_on_a_cluster(
        self, server: RedisServer, cluster: RedisCluster
    ) -> None:
        for url, servers, expected in (
            (server.url, [server], NAMES["namespace"]),
            (cluster.url, cluster.servers, NAMES["entity"]),
        ):
            with opened("sync", url) as limiter:
                limiter.adjust("acme:bob", "api/v1", {"n": 1}, [TEN])
                assert keys(*servers) == {expected}


@both_kinds
@pytest.mark.parametrize("together", ["entity", "tenant", "namespace"])
@pytest.mark.parametrize("where", ["server", "cluster"])
def test_namespaces_do_not_see_each_other(
    kind: str, server: RedisServer, redis_cluster: RedisCluster, together: str, where: str
) -> None:
    url = f"{server.url if where == 'server' else redis_cluster.url}?together={together}"
    names = ["a", "a:b", "a:b:c", "a.", "A"]
    wishes = [(namespace, entity_id) for namespace in names for entity_id in ("c", "b:c", "a:b:c")]
    expected: dict[str, dict[str, int]] = {namespace: {} for namespace in names}
    for number, (namespace, entity_id) in enumerate(wishes, 1):
        with opened(kind, url, namespace=namespace) as limiter:
            limiter.reset(entity_id, "r")
            limiter.adjust(entity_id, "r", {"n": number}, [fixed(100)])
            expected[namespace][entity_id] = 100 - number
    for namespace in names:
        with opened(kind, url, namespace=namespace) as limiter:
            found = {one.entity_id: one.available for one in limiter.get_resource_capacity("r", "n").entities}
            assert found == expected[namespace]
            for entity_id, left in expected[namespace].items():
                (bucket,) = limiter.get_buckets(entity_id)
                assert (bucket.entity_id, bucket.resource, bucket.available) == (entity_id, "r", left)


class TestLife:
    """A row lives until all its buckets are full, and a margin longer; with usage, as long as that at least."""

    def expires_at_ms(self, server: RedisServer) -> int:
        with server.client() as client, client.pipeline() as together:
            left, (seconds, microseconds) = together.pttl(ROW).time().execute()
        assert left > 0
        return int(left) + int(seconds) * 1000 + int(microseconds) // 1000

    def full_at_ms(self, server: RedisServer) -> tuple[int, int]:
        """When the last bucket of the row is full, and when the first was written."""
        store = open_store(server.url, 5.0)
        (row,) = store.list_buckets("default", "e", "r", None, 0)
        store.close()
        return max(bucket.full_at_ms() for bucket in row.buckets), min(bucket.settled_at_ms for bucket in row.buckets)

    @both_kinds
    @pytest.mark.parametrize(
        "use",
        [
            lambda it: it.try_acquire("e", "r", {"n": 1}, [PER_SECOND]),
            lambda it: it.try_acquire("e", "r", {"n": 10}, [PER_SECOND]),
            lambda it: it.adjust("e", "r", {"n": 5_000}, [PER_SECOND]),
            lambda it: it.adjust("e", "r", {"n": 900_000_000}, [PER_SECOND]),
            lambda it: it.adjust("e", "r", {"n": 7_000_000_000_000}, [BILLIONS]),
            lambda it: it.penalize("e", "r", seconds=500, limits=[PER_SECOND]),
            lambda it: it.penalize("e", "r", seconds=500, factor=0, limits=[PER_SECOND, PER_DAY]),
            lambda it: it.try_acquire("e", "r", {"n": 10, "day": 1}, [PER_SECOND, PER_DAY]),
            lambda it: it.adjust("e", "r", {"n": 2_000_000, "day": 1}, [PER_SECOND, PER_DAY]),
            lambda it: [it.adjust("e", "r", {"day": 7}, [PER_DAY]), it.adjust("e", "r", {"n": 1}, [PER_SECOND])],
            lambda it: [it.adjust("e", "r", {"day": 7}, [PER_DAY]), it.adjust("e", "r", {"day": -7}, [PER_DAY])],
            lambda it: [it.adjust("e", "r", {"n": 7}, [PER_SECOND]), it.adjust("e", "r", {"n": 1}, [TEN_A_YEAR])],
        ],
        ids=[
            "taken", "empty", "debt", "large debt", "huge debt", "penalty", "penalty and empty", "two periods",
            "two periods, debt", "one after the other", "given back", "a slower limit",
        ],
    )  # fmt: skip
    def test_row_lives_until_its_buckets_are_full_by_the_servers_clock(
        self, kind: str, server: RedisServer, use: Callable[[Any], Any]
    ) -> None:
        with opened(kind, server.url, usage_days=0, audit_days=0) as limiter:
            use(limiter)
        full_at_ms, written_at_ms = self.full_at_ms(server)
        lives_ms = self.expires_at_ms(server) - written_at_ms
        matters_ms = full_at_ms - written_at_ms
        assert matters_ms + MARGIN_MS - SLACK_MS <= lives_ms <= matters_ms * ROUNDING + MARGIN_MS + SPARE_MS + SLACK_MS

    @both_kinds
    @pytest.mark.parametrize("usage_days", [0, 30])
    def test_most_writes_leave_the_expiry_as_it_is_and_none_too_early(
        self, kind: str, server: RedisServer, usage_days: int
    ) -> None:
        with opened(kind, server.url, usage_days=usage_days, audit_days=0) as limiter:
            before = calls(server, "psetex")
            for number in range(40):
                if number % 4 == 3:
                    limiter.adjust("e", "r", {"n": 1}, [SLOW])  # done by another part of the script
                else:
                    assert limiter.try_acquire("e", "r", {"n": 1}, [SLOW])
                full_at_ms, written_at_ms = self.full_at_ms(server)
                least_ms = max(full_at_ms, written_at_ms + usage_days * 86_400_000) + MARGIN_MS
                assert least_ms - SLACK_MS <= self.expires_at_ms(server) <= least_ms * ROUNDING + SPARE_MS + SLACK_MS
        assert calls(server, "psetex") - before <= 10 + 20

    def test_an_expiry_of_an_earlier_version_is_late_enough(self, server: RedisServer) -> None:
        """It is a minute after the row's buckets are full. A write that leaves it must not rely on more."""
        with opened("sync", server.url, usage_days=0) as limiter:
            for _ in range(40):
                assert limiter.try_acquire("e", "r", {"n": 1}, [SLOW])
                full_at_ms, _ = self.full_at_ms(server)
                assert self.expires_at_ms(server) >= full_at_ms + MARGIN_MS - SPARE_MS - SLACK_MS
                server.command("PEXPIREAT", ROW, full_at_ms + MARGIN_MS + 1)

    @both_kinds
    def test_by_a_clock_of_the_limiters(self, kind: str, server: RedisServer) -> None:
        """It may stand still while the server's goes on: a day longer."""
        with opened(kind, server.url, usage_days=0, clock=ManualClock()) as limiter:
            longest_ms = INJECTED_CLOCK_MARGIN_MS + SPARE_MS + 1000 * ROUNDING + 1
            for _ in range(2):
                assert limiter.try_acquire("e", "r", {"n": 5}, [PER_SECOND])
                assert INJECTED_CLOCK_MARGIN_MS - 60_000 < server.command("PTTL", ROW) <= longest_ms
                server.command("PEXPIRE", ROW, 60_000)  # as if that much had passed

    @both_kinds
    def test_no_longer_than_the_server_can_count(self, kind: str, server: RedisServer) -> None:
        slow = Limit.custom("n", 10**12, 0.001, 366 * 86_400)
        with opened(kind, server.url) as limiter:
            limiter.adjust("e", "r", {"n": 9_000_000_000_000}, [slow])
            assert server.command("PTTL", ROW) > 1000 * 366 * 86_400_000
            assert limiter.available("e", "r", [slow]) == {"n": -8_000_000_000_000}

    @both_kinds
    @pytest.mark.parametrize("usage_days", [0, 30])
    def test_keys_of_full_buckets_expire(self, kind: str, stepped_redis_server: RedisServer, usage_days: int) -> None:
        server = stepped_redis_server
        with opened(kind, server.url, usage_days=usage_days, audit_days=0) as limiter:
            for number in range(20):
                limiter.adjust(f"e{number}", "r", {"n": number}, [PER_SECOND])
            limiter.penalize("punished", "r", seconds=20, limits=[PER_SECOND])
            assert len(keys(server)) == 21
            if usage_days:
                server.step_clock(usage_days * 86_400 - 5)
                assert len(keys(server)) == 21
            server.step_clock((MARGIN_MS + SPARE_MS) / 1000 + 25)
            eventually(lambda: not keys(server), "all rows are gone")

    @both_kinds
    def test_all_but_records_expire(self, kind: str, server: RedisServer) -> None:
        with opened(kind, server.url) as limiter:
            limiter.set_system_defaults([PER_SECOND, PER_DAY])
            limiter.create_entity("org")
            limiter.create_entity("e", parent_id="org", cascade=True)
            limiter.set_limits("e", [PER_SECOND])
            for resource in ("r", "s"):
                assert limiter.try_acquire("e", resource, {"n": 1})
            limiter.penalize("org", "r", factor=0.5)
            limiter.adjust("org", "s", {"day": 3})
            limiter.try_acquire("e", "r", {"n": 1}).lease.rollback()
        lasting = {key for key in keys(server) if server.command("PTTL", key) == -1}
        assert lasting <= RECORDS
        assert len(keys(server) - lasting) == 4


class TestLookers:
    @pytest.fixture(params=["server", "cluster"])
    def place(self, request: pytest.FixtureRequest) -> tuple[str, list[RedisServer]]:
        found = request.getfixturevalue(request.param)
        return found.url, ([found] if request.param == "server" else found.servers)

    @both_kinds
    def test_refused_and_curious_they_write_nothing(self, kind: str, place: tuple[str, list[RedisServer]]) -> None:
        url, servers = place
        with opened(kind, url) as limiter:
            limiter.create_entity("org")
            limiter.create_entity("e", parent_id="org", cascade=True)
            limiter.set_limits("org", [TEN])
            limiter.set_limits("e", [TEN])
            assert limiter.try_acquire("e", "r", {"n": 10})
            before, there = changes(*servers), keys(*servers)
            for _ in range(3):
                assert not limiter.try_acquire("e", "r", {"n": 1})
                assert not limiter.try_acquire("e", "r", {"n": 1}, max_wait=1)
                assert not limiter.try_acquire("e", "new", {"n": 11})
                assert not limiter.try_acquire("org", "r", {"n": 1})
                assert limiter.available("e", "r") == {"n": 0}
                assert limiter.available("e", "unused") == {"n": 10}
                assert limiter.available("e", "r", [fixed(100)]) == {"n": 0}
                assert limiter.time_until_available("e", "r", {"n": 1}) > 0
                limiter.get_buckets("e")
                limiter.get_buckets("e", "r")
                limiter.get_resource_capacity("r", "n")
                limiter.invalidate_config_cache()
                limiter.resolve_limits("e", "r")
                limiter.get_limits("e")
                limiter.get_entity("e")
                limiter.get_children("org")
                limiter.ping()
            assert keys(*servers) == there
            assert changes(*servers) - before == 0

    @both_kinds
    def test_across_slots_what_was_taken_comes_back(self, kind: str, cluster: RedisCluster) -> None:
        parent, child = (on_server(cluster, server, "e")[0] for server in cluster.servers[:2])
        with opened(kind, cluster.url) as limiter:
            limiter.create_entity(parent)
            limiter.create_entity(child, parent_id=parent, cascade=True)
            limiter.set_limits(parent, [fixed(1)])
            assert limiter.try_acquire(child, "r", {"n": 1}, [TEN])
            before = changes(*cluster.servers)
            assert not limiter.try_acquire(child, "r", {"n": 1}, [TEN])
            assert changes(*cluster.servers) - before == 2, "a take and its return"
            assert [bucket.available for bucket in limiter.get_buckets(child)] == [9]
