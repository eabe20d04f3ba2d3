"""A node of a cluster hangs, or is dead: whoever does not need it goes on, and of whoever does nothing stays taken."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis_helpers import Load, attempt, both_kinds, fixed, on_server, opened, patiently

from headgate import RateLimiterUnavailable
from headgate.core.decide import Answer, Mode, Part, Request
from headgate.core.errors import PartlyAnswered
from headgate.core.names import StoredId, bucket_key
from headgate.stores import open_async_store, open_store
from headgate.testing.servers.process import eventually
from headgate.testing.servers.redis import RedisCluster

TEN = fixed(10)
PLENTY = fixed(1_000_000)


@pytest.fixture(scope="module")
def started_cluster(redis_installed: None) -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        for server in cluster.servers:
            # Otherwise all nodes refuse all requests as soon as they know that one is dead.
            server.command("CONFIG", "SET", "cluster-require-full-coverage", "no")
        child, parent, grandparent = chain_of(cluster)
        with opened("sync", cluster.url) as limiter:
            limiter.create_entity(grandparent)
            limiter.create_entity(parent, parent_id=grandparent, cascade=True)
            limiter.create_entity(child, parent_id=parent, cascade=True)
        yield cluster


def entities_of(cluster: RedisCluster) -> list[str]:
    """One on each node, the first on the one that hangs or dies."""
    return [on_server(cluster, server, "e")[0] for server in cluster.servers]


def chain_of(cluster: RedisCluster) -> list[str]:
    """A child, its parent on the node that hangs or dies, and its grandparent."""
    parent, grandparent, child = (on_server(cluster, server, "link")[0] for server in cluster.servers)
    return [child, parent, grandparent]


@pytest.fixture
def cluster(started_cluster: RedisCluster) -> RedisCluster:
    """The first node, which every client asks first, may be paused or killed; the others stay."""
    if not started_cluster.servers[0].running:
        started_cluster.servers[0].start()
        started_cluster.wait_until_ok()
    return started_cluster


@pytest.fixture
def damaged_cluster(started_cluster: RedisCluster) -> RedisCluster:
    """The first node is dead."""
    started_cluster.servers[0].kill()
    return started_cluster


@contextmanager
def hanging(cluster: RedisCluster) -> Iterator[None]:
    cluster.servers[0].pause()
    try:
        yield
    finally:
        cluster.servers[0].resume()
        cluster.wait_until_ok()


@pytest.fixture
def r(request: pytest.FixtureRequest) -> str:
    """A resource for a test alone."""
    return request.node.name.replace("[", "-").replace("]", "")


def url_of(cluster: RedisCluster) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in cluster.servers)


def used(limiter: Any, entity_id: str, resource: str) -> int:
    return sum(int(bucket.limit.capacity - bucket.available) for bucket in limiter.get_buckets(entity_id, resource))


def takes(entities: list[str], resource: str) -> list[Request]:
    part = Part(0, TEN, 1000)
    return [Request(Mode.TAKE, (bucket_key("default", StoredId(one), resource),), (part,)) for one in entities]


@contextmanager
def settling(kind: str, url: str, timeout_seconds: float) -> Iterator[Callable[[list[Request]], Any]]:
    """`settle` of a store of either kind."""
    if kind == "sync":
        store = open_store(url, timeout_seconds)
        yield lambda batch: store.settle(batch, None)
        store.close()
    else:
        loop, coroutines = asyncio.new_event_loop(), open_async_store(url, timeout_seconds)
        yield lambda batch: loop.run_until_complete(coroutines.settle(batch, None))
        loop.run_until_complete(coroutines.close())
        loop.close()


@both_kinds
class TestHanging:
    def test_it_does_not_keep_others_from_the_rest(self, kind: str, cluster: RedisCluster, r: str) -> None:
        """A call may lose its time on it. Then somebody else is asked about the slots."""
        hung, *others = entities_of(cluster)
        with hanging(cluster), opened(kind, url_of(cluster), store_timeout=0.3) as limiter:
            for _ in range(2):
                with pytest.raises(RateLimiterUnavailable):
                    limiter.try_acquire(hung, r, {"n": 1}, [TEN])
                for one in others:
                    assert patiently(lambda one=one: limiter.try_acquire(one, r, {"n": 1}, [PLENTY]))

    def test_those_in_the_same_batch_get_their_answers(self, kind: str, cluster: RedisCluster, r: str) -> None:
        entities = entities_of(cluster)
        calls = [("try_acquire", (one, r, {"n": 1}, [PLENTY])) for one in entities * 3]
        with opened(kind, url_of(cluster), store_timeout=0.3, on_unavailable="allow") as limiter:
            limiter.together(calls)
            with hanging(cluster):
                eventually(
                    lambda: [decision.degraded for decision in limiter.together(calls)] == [True, False, False] * 3,
                    "all but those who need it get an answer",
                )

    def test_nor_when_it_goes_on_hanging(self, kind: str, cluster: RedisCluster, r: str) -> None:
        """Then there is no connection to it any more, and to make one takes for ever."""
        batch = takes(entities_of(cluster), r)
        with settling(kind, url_of(cluster), 0.4) as settle:
            patiently(lambda: settle(batch))

            def answered() -> list[bool]:
                error = attempt(lambda: settle(batch))
                return [isinstance(answer, Answer) for answer in getattr(error, "results", [])]

            with hanging(cluster):
                answered()
                eventually(lambda: answered() == [False, True, True], "all but those who need it get an answer")

    def test_of_a_cascade_nothing_stays_taken_elsewhere(self, kind: str, cluster: RedisCluster, r: str) -> None:
        child, _, grandparent = chain_of(cluster)
        with opened(kind, url_of(cluster), store_timeout=2) as limiter:
            assert limiter.try_acquire(child, r, {"n": 1}, [TEN])
            with hanging(cluster), pytest.raises(RateLimiterUnavailable):
                limiter.try_acquire(child, r, {"n": 1}, [TEN])
            assert [used(limiter, one, r) for one in (child, grandparent)] == [1, 1]


class TestDead:
    def test_the_others_go_on_amid_load(self, cluster: RedisCluster, r: str) -> None:
        dead, *others = entities_of(cluster)
        wishes = [(one, r, {"n": 1}, [PLENTY]) for one in (dead, *others)]
        url = url_of(cluster)
        with Load("sync", url, wishes) as threads, Load("async", url, wishes) as tasks:
            for load in (threads, tasks):
                load.goes_on()
            cluster.servers[0].kill()
            for load in (threads, tasks):
                load.gets_no_answer(2)
                wanted = Counter({one: load.admitted[one] + 2 for one in others})
                load.until(lambda load=load, wanted=wanted: wanted <= load.admitted, "the others go on")
        with opened("sync", url) as limiter:
            for one in others:
                assert used(limiter, one, r) == threads.admitted[one] + tasks.admitted[one]

    @both_kinds
    def test_a_batch_is_answered_in_part(self, kind: str, damaged_cluster: RedisCluster, r: str) -> None:
        partly = pytest.raises(PartlyAnswered, match="cannot be reached")
        with settling(kind, url_of(damaged_cluster), 10.0) as settle, partly as caught:
            settle(takes(entities_of(damaged_cluster) * 2, r))
        left = [one.levels[0][0] if isinstance(one, Answer) else None for one in caught.value.results]
        assert left == [None, 9000, 9000, None, 8000, 8000]

    @both_kinds
    def test_each_caller_gets_what_is_his(self, kind: str, damaged_cluster: RedisCluster, r: str) -> None:
        entities = entities_of(damaged_cluster)
        with opened(kind, url_of(damaged_cluster), on_unavailable="allow") as limiter:
            decisions = limiter.together([("try_acquire", (one, r, {"n": 1}, [TEN])) for one in entities * 2])
            assert [decision.degraded for decision in decisions] == [True, False, False] * 2
            assert [used(limiter, one, r) for one in entities[1:]] == [2, 2]

    @both_kinds
    @pytest.mark.parametrize("max_wait", [0, 5])
    def test_of_a_cascade_nothing_stays_taken(
        self, kind: str, damaged_cluster: RedisCluster, r: str, max_wait: float
    ) -> None:
        child, _, grandparent = chain_of(damaged_cluster)
        with opened(kind, url_of(damaged_cluster)) as limiter:
            with pytest.raises(RateLimiterUnavailable):
                limiter.try_acquire(child, r, {"n": 1}, [TEN], max_wait=max_wait)
            assert [used(limiter, one, r) for one in (child, grandparent)] == [0, 0]

    def test_calls_work_again_when_a_dead_node_is_back(self, damaged_cluster: RedisCluster, r: str) -> None:
        dead, *_ = entities_of(damaged_cluster)
        url = url_of(damaged_cluster)
        with opened("sync", url) as first, opened("async", url) as second:
            for limiter in (first, second):
                with pytest.raises(RateLimiterUnavailable, match="cannot be reached"):
                    limiter.try_acquire(dead, r, {"n": 1}, [TEN])
            damaged_cluster.servers[0].start()
            damaged_cluster.wait_until_ok()
            for limiter in (first, second):
                assert limiter.try_acquire(dead, r, {"n": 1}, [TEN])
