"""Redis goes away, stands still, forgets its scripts, or can do nothing: callers are told in time, and nobody gains."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis_helpers import FAR_TOO_LONG_SECONDS, Load, both_kinds, changes, fixed, opened, patiently

from headgate import RateLimiter, RateLimiterUnavailable
from headgate.testing.servers.redis import RedisServer

PLENTY = fixed(1_000_000)
TEN = fixed(10)
WISH = ("e", "r", {"n": 1}, [PLENTY])


@pytest.fixture
def lasting_server(redis_installed: None) -> Iterator[RedisServer]:
    """What it said is still true after it was killed."""
    with RedisServer(persistent=True) as server:
        yield server


def used(limiter: Any, entity_id: str = "e") -> int:
    """What is gone of PLENTY, from the entity's own bucket."""
    (bucket,) = limiter.get_buckets(entity_id)
    return int(PLENTY.capacity) - int(bucket.available)


@both_kinds
class TestKilled:
    def test_calls_go_on_after_a_restart_under_load(self, kind: str, lasting_server: RedisServer) -> None:
        with Load(kind, lasting_server.url, [WISH]) as load:
            load.goes_on()
            for _ in range(2):
                lasting_server.kill()
                load.gets_no_answer()
                lasting_server.start()
                load.goes_on()
        with opened(kind, lasting_server.url) as limiter:
            assert load.admitted["e"] <= used(limiter)
        told = ("cannot be reached", "closed the connection", "still loading")
        assert [why for why in load.unavailable if not any(part in why for part in told)] == []

    def test_after_a_restart_the_first_call_passes(self, kind: str, lasting_server: RedisServer) -> None:
        """Its connections are dead, and the server has forgotten the script."""
        with opened(kind, lasting_server.url) as limiter:
            assert limiter.try_acquire("e", "r", {"n": 1}, [TEN])
            for call in (
                lambda: limiter.try_acquire("e", "r", {"n": 1}, [TEN]),
                lambda: limiter.adjust("e", "r", {"n": 1}, [TEN]),
                lambda: limiter.set_limits("e", [TEN]),
                lambda: limiter.get_buckets("e"),
                lambda: limiter.reset("f", "r"),
            ):
                lasting_server.kill()
                lasting_server.start()
                call()
            assert limiter.available("e", "r", [TEN]) == {"n": 7}

    def test_allow_lets_pass_and_says_so(self, kind: str, lasting_server: RedisServer) -> None:
        with opened(kind, lasting_server.url, on_unavailable="allow") as limiter:
            assert not limiter.try_acquire("e", "r", {"n": 1}, [TEN]).degraded
            lasting_server.kill()
            for entity_id in ("e", "unheard-of"):
                decision = limiter.try_acquire(entity_id, "r", {"n": 11}, [TEN])
                assert decision.allowed
                assert decision.degraded
                with limiter.acquire(entity_id, "r", {"n": 11}, [TEN]) as lease:
                    assert lease.degraded
            with pytest.raises(RateLimiterUnavailable):
                limiter.try_acquire("e", "r", {"n": 1}, [TEN], on_unavailable="block")
            lasting_server.start()
            patiently(limiter.ping)  # the breaker waits a moment before it tries again
            assert not limiter.try_acquire("e", "r", {"n": 1}, [TEN]).degraded
            assert limiter.available("e", "r", [TEN]) == {"n": 8}


def stop_writes(server: RedisServer) -> Callable[[], Any]:
    server.command("CLIENT", "PAUSE", 600_000, "WRITE")
    return lambda: server.command("CLIENT", "UNPAUSE")


def stop_process(server: RedisServer) -> Callable[[], Any]:
    server.pause()
    return server.resume


@both_kinds
@pytest.mark.parametrize("stop", [stop_writes, stop_process])
@pytest.mark.parametrize("coalesce", [True, False])
class TestPaused:
    TIMEOUT_SECONDS = 0.3

    def test_callers_are_told_in_time(
        self, kind: str, stop: Callable[[RedisServer], Any], coalesce: bool, own_redis_server: RedisServer
    ) -> None:
        with opened(kind, own_redis_server.url, store_timeout=self.TIMEOUT_SECONDS, coalesce=coalesce) as limiter:
            assert patiently(lambda: limiter.try_acquire("e", "r", {"n": 1}, [TEN]))
            resume = stop(own_redis_server)
            for call in (
                lambda: limiter.try_acquire("e", "r", {"n": 1}, [TEN]),
                lambda: limiter.adjust("e", "r", {"n": 1}, [TEN]),
            ):
                started = time.monotonic()
                with pytest.raises(RateLimiterUnavailable, match=r"did not answer within 0\.3 s|Timeout"):
                    call()
                assert 0.9 * self.TIMEOUT_SECONDS < time.monotonic() - started < FAR_TOO_LONG_SECONDS
            assert limiter.try_acquire("e", "r", {"n": 1}, [TEN], on_unavailable="allow").degraded
            resume()
            admitted = 1
            while patiently(lambda: limiter.try_acquire("e", "r", {"n": 1}, [TEN])):
                admitted += 1
            assert 1 < admitted <= 10, "what came too late may have been done all the same, and was not sold again"

    def test_no_late_reply_is_taken_for_another(
        self, kind: str, stop: Callable[[RedisServer], Any], coalesce: bool, own_redis_server: RedisServer
    ) -> None:
        limits = {f"e{number}": fixed(1000 * number) for number in range(1, 7)}
        settings = {"store_timeout": self.TIMEOUT_SECONDS, "coalesce": coalesce, "on_unavailable": "allow"}
        with opened(kind, own_redis_server.url, **settings) as limiter:
            takes = [("try_acquire", (one, "r", {"n": 1}, [limit])) for one, limit in limits.items()]
            limiter.together(takes)
            resume = stop(own_redis_server)
            assert all(decision.degraded for decision in limiter.together(takes))
            resume()
            patiently(limiter.ping)  # the breaker waits a moment before it tries again
            answered = 0
            for _ in range(5):
                for limit, decision in zip(limits.values(), limiter.together(takes)):
                    for status in decision.statuses:  # none if it timed out, which on a busy machine it may
                        answered += 1
                        assert limit.capacity - 7 <= status.available < limit.capacity
            assert answered > 0


@both_kinds
def test_scripts_are_forgotten_amid_load(kind: str, own_redis_server: RedisServer) -> None:
    with Load(kind, own_redis_server.url, [WISH]) as load:
        load.goes_on()
        for _ in range(20):
            own_redis_server.command("SCRIPT", "FLUSH")
            load.goes_on(5)
    assert load.unavailable == []
    with opened(kind, own_redis_server.url) as limiter:
        assert used(limiter) == load.admitted["e"]
        own_redis_server.command("SCRIPT", "FLUSH")
        limiter.adjust("e", "r", {"n": 5}, [PLENTY])
        own_redis_server.command("SCRIPT", "FLUSH")
        assert len(limiter.get_buckets("e")) == 1
        own_redis_server.command("SCRIPT", "FLUSH")
        limiter.set_limits("e", [PLENTY])
        assert used(limiter) == load.admitted["e"] + 5


@both_kinds
class TestUnwilling:
    """It answers, but not what it was asked."""

    def check(self, kind: str, server: RedisServer, begin: Callable[[], Any], end: Callable[[], Any], why: str) -> None:
        with opened(kind, server.url) as limiter:
            limiter.create_entity("org")
            limiter.create_entity("e", parent_id="org", cascade=True)
            assert limiter.try_acquire("e", "r", {"n": 1}, [TEN])
            begin()
            before = changes(server)
            for call in (
                lambda: limiter.try_acquire("e", "r", {"n": 1}, [TEN]),
                lambda: limiter.adjust("e", "r", {"n": -1}, [TEN]),
                lambda: limiter.set_limits("e", [TEN]),
            ):
                with pytest.raises(RateLimiterUnavailable, match=why):
                    call()
            assert limiter.try_acquire("e", "r", {"n": 1}, [TEN], on_unavailable="allow").degraded
            assert changes(server) == before
            end()
            assert [limiter.available(one, "r", [TEN]) for one in ("e", "org")] == [{"n": 9}] * 2
            assert limiter.try_acquire("e", "r", {"n": 1}, [TEN])

    def test_a_replica_is_unavailable_and_the_error_says_why(self, kind: str, own_redis_server: RedisServer) -> None:
        self.check(
            kind,
            own_redis_server,
            lambda: own_redis_server.command("REPLICAOF", "127.0.0.1", 1),
            lambda: own_redis_server.command("REPLICAOF", "NO", "ONE"),
            "READONLY.*replica; give the address of the primary",
        )

    def test_a_replica_that_lost_its_primary(self, kind: str, own_redis_server: RedisServer) -> None:
        own_redis_server.command("CONFIG", "SET", "replica-serve-stale-data", "no")
        self.check(
            kind,
            own_redis_server,
            lambda: own_redis_server.command("REPLICAOF", "127.0.0.1", 1),
            lambda: own_redis_server.command("REPLICAOF", "NO", "ONE"),
            "MASTERDOWN.*Link with MASTER is down",
        )

    def test_too_few_replicas_are_unavailable_and_the_error_says_why(
        self, kind: str, own_redis_server: RedisServer
    ) -> None:
        self.check(
            kind,
            own_redis_server,
            lambda: own_redis_server.command("CONFIG", "SET", "min-replicas-to-write", 1),
            lambda: own_redis_server.command("CONFIG", "SET", "min-replicas-to-write", 0),
            "NOREPLICAS.*min-replicas-to-write asks for, and nothing was changed",
        )

    def test_full_memory_is_unavailable_and_the_error_says_why(self, kind: str, own_redis_server: RedisServer) -> None:
        self.check(
            kind,
            own_redis_server,
            lambda: own_redis_server.command("CONFIG", "SET", "maxmemory", 1),
            lambda: own_redis_server.command("CONFIG", "SET", "maxmemory", 0),
            "OOM.*memory is full; raise maxmemory",
        )

    def test_memory_is_full_amid_load(self, kind: str, own_redis_server: RedisServer) -> None:
        """An error is an answer: whoever got one was not charged, at no level."""
        children = ["a", "b", "c", "d"]
        with opened(kind, own_redis_server.url) as limiter:
            limiter.create_entity("org")
            for child in children:
                limiter.create_entity(child, parent_id="org", cascade=True)
            with Load(kind, own_redis_server.url, [(child, "r", {"n": 1}, [PLENTY]) for child in children]) as load:
                for _ in range(5):
                    load.goes_on()
                    own_redis_server.command("CONFIG", "SET", "maxmemory", 1)
                    load.gets_no_answer()
                    own_redis_server.command("CONFIG", "SET", "maxmemory", 0)
            assert {child: used(limiter, child) for child in children} == load.admitted
            assert used(limiter, "org") == load.admitted.total()

    def test_a_server_still_loading_is_unavailable_until_it_is_ready(self, kind: str, redis_installed: None) -> None:
        slowly = {"key-load-delay": "500", "loading-process-events-interval-bytes": "1024"}
        with RedisServer(options=slowly) as server, opened(kind, server.url) as limiter:
            assert limiter.try_acquire("e", "r", {"n": 1}, [TEN])
            with server.client() as client:
                client.mset({f"other:{number}": "x" * 100 for number in range(30_000)})
                client.save()
            server.kill()
            server.start()
            for call in (
                lambda: limiter.try_acquire("e", "r", {"n": 1}, [TEN]),
                lambda: limiter.adjust("e", "r", {"n": -1}, [TEN]),
            ):
                with pytest.raises(RateLimiterUnavailable, match=r"LOADING.*still loading"):
                    call()
            assert limiter.try_acquire("e", "r", {"n": 1}, [TEN], on_unavailable="allow").degraded
            assert server.info("persistence")["loading"]
            server.command("CONFIG", "SET", "key-load-delay", 0)
            patiently(limiter.ping)
            assert limiter.available("e", "r", [TEN]) == {"n": 9}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="nobody knows there how often a task was cancelled")
@pytest.mark.parametrize("first", [True, False])
def test_task_cancelled_at_the_deadline_ends_cancelled(first: bool, own_redis_server: RedisServer) -> None:
    """By a timeout of the caller's as long as the store's, perhaps. It does not go on."""

    async def scenario() -> None:
        async with RateLimiter(own_redis_server.url, store_timeout=1.5, on_unavailable="allow") as limiter:
            for _ in range(2):
                assert await limiter.try_acquire(*WISH)
            own_redis_server.pause()
            task = asyncio.create_task(limiter.try_acquire(*WISH))
            await asyncio.sleep(0)
            (connection,) = limiter.engine.store._wire._pipelined.values()  # type: ignore[attr-defined]
            ((at, _),) = connection._calls
            asyncio.get_running_loop().call_at(at - 1e-6 if first else at, task.cancel)
            await asyncio.wait([task])
            assert task.cancelled()

    try:
        asyncio.run(scenario())
    finally:
        own_redis_server.resume()
