"""A connection is cut, and nobody knows whether the server did what it was told.

A take is sent again: at worst it is charged twice. What gives back is not: done twice, it would make tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from redis_helpers import Load, Relay, both_kinds, calls, fixed, opened

from headgate import Limit, RateLimiterUnavailable
from headgate.stores.redis.blocking import RedisStore
from headgate.stores.redis.exchange import Pipeline
from headgate.stores.redis.url import read_url
from headgate.testing.servers.redis import RedisServer

TEN = fixed(10)
MANY = fixed(300)

arrives = pytest.mark.parametrize("arrives", [True, False], ids=["done", "not-done"])


@pytest.fixture
def relay(own_redis_server: RedisServer) -> Iterator[Relay]:
    with Relay(own_redis_server) as relay:
        yield relay


def done(server: RedisServer) -> int:
    """How many calls of scripts the server did."""
    return calls(server, "evalsha", "eval")


def left(limiter: Any, limit: Limit = TEN) -> int:
    return int(limiter.available("e", "r", [limit])["n"])


@both_kinds
@arrives
class TestCut:
    def test_a_take_is_sent_again(self, kind: str, arrives: bool, relay: Relay, own_redis_server: RedisServer) -> None:
        with opened(kind, relay.url) as limiter:
            assert limiter.try_acquire("e", "r", {"n": 1}, [TEN])
            relay.cut(delivers=arrives)
            decision = limiter.try_acquire("e", "r", {"n": 1}, [TEN])
            assert decision.allowed
            assert not decision.degraded
            assert relay.cuts == 1
            assert left(limiter) == (7 if arrives else 8)

    def test_the_last_token_may_be_lost_and_is_never_sold_twice(
        self, kind: str, arrives: bool, relay: Relay, own_redis_server: RedisServer
    ) -> None:
        with opened(kind, relay.url) as limiter:
            assert limiter.try_acquire("e", "r", {"n": 9}, [TEN])
            relay.cut(delivers=arrives)
            assert limiter.try_acquire("e", "r", {"n": 1}, [TEN]).allowed is not arrives
            assert left(limiter) == 0

    def test_at_the_third_attempt_it_is_enough(
        self, kind: str, arrives: bool, relay: Relay, own_redis_server: RedisServer
    ) -> None:
        with opened(kind, relay.url) as limiter:
            assert limiter.try_acquire("e", "r", {"n": 1}, [TEN])
            relay.cut(delivers=arrives, times=100)
            with pytest.raises(RateLimiterUnavailable, match="closed the connection"):
                limiter.try_acquire("e", "r", {"n": 1}, [TEN])
            assert relay.cuts == 3
            relay.cut(times=0)
            assert left(limiter) == (6 if arrives else 9)

    def test_adjustment_with_a_cut_connection_is_not_sent_again(
        self, kind: str, arrives: bool, relay: Relay, own_redis_server: RedisServer
    ) -> None:
        with opened(kind, relay.url) as limiter:
            limiter.adjust("e", "r", {"n": 8}, [TEN])
            for amount in (-3, 2):
                before, sent = left(limiter), done(own_redis_server)
                relay.cut(delivers=arrives)
                with pytest.raises(RateLimiterUnavailable, match="closed the connection"):
                    limiter.adjust("e", "r", {"n": amount}, [TEN])
                assert done(own_redis_server) == sent + arrives
                assert left(limiter) == before - (amount if arrives else 0)
            assert relay.cuts == 2

    def test_a_lease_gives_back_once(
        self, kind: str, arrives: bool, relay: Relay, own_redis_server: RedisServer
    ) -> None:
        with opened(kind, relay.url) as limiter:
            for give_back in (lambda it: it.release(n=2), lambda it: it.adjust(n=-2), lambda it: it.rollback()):
                limiter.adjust("e", "r", {"n": 8 - (10 - left(limiter))}, [TEN])
                assert left(limiter) == 2
                lease = limiter.try_acquire("e", "r", {"n": 2}, [TEN]).lease
                relay.cut(delivers=arrives)
                with pytest.raises(RateLimiterUnavailable):
                    give_back(lease)
                assert left(limiter) == (2 if arrives else 0)

    def test_the_error_of_the_body_comes_first(
        self, kind: str, arrives: bool, relay: Relay, own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        with opened(kind, relay.url) as limiter:
            with pytest.raises(KeyError), limiter.acquire("e", "r", {"n": 4}, [TEN]):
                relay.cut(delivers=arrives)
                raise KeyError
            assert "could not be rolled back" in caplog.text
            assert left(limiter) == (10 if arrives else 6)

    def test_a_penalty_is_not_sent_again(
        self, kind: str, arrives: bool, relay: Relay, own_redis_server: RedisServer
    ) -> None:
        with opened(kind, relay.url, audit_days=0) as limiter:
            limiter.register_namespace(limiter.namespace)
            assert left(limiter) == 10
            sent = done(own_redis_server)
            relay.cut(delivers=arrives)
            with pytest.raises(RateLimiterUnavailable):
                limiter.penalize("e", "r", factor=0.5, limits=[TEN])
            assert done(own_redis_server) == sent + arrives
            assert left(limiter) == (5 if arrives else 10)

    def test_records_are_written_once(
        self, kind: str, arrives: bool, relay: Relay, own_redis_server: RedisServer
    ) -> None:
        with opened(kind, relay.url) as limiter:
            limiter.set_limits("e", [TEN])
            limiter.get_limits("e")
            sent = done(own_redis_server)
            relay.cut(delivers=arrives)
            with pytest.raises(RateLimiterUnavailable):
                limiter.set_limits("e", [MANY])
            assert done(own_redis_server) == sent + arrives
            assert limiter.get_limits("e") == [MANY if arrives else TEN]

    def test_a_look_is_repeated(self, kind: str, arrives: bool, relay: Relay, own_redis_server: RedisServer) -> None:
        with opened(kind, relay.url) as limiter:
            assert left(limiter) == 10
            for word, look in (
                ("EVALSHA", lambda: left(limiter)),
                ("HMGET", lambda: limiter.get_limits("e")),
                ("SCAN", lambda: limiter.get_buckets("e")),
            ):
                before = relay.cuts
                relay.cut(word, delivers=arrives)
                look()
                assert relay.cuts == before + 1


@both_kinds
@arrives
@pytest.mark.parametrize("coalesce", [True, False])
def test_many_cuts_and_never_oversold(
    kind: str, arrives: bool, coalesce: bool, relay: Relay, own_redis_server: RedisServer
) -> None:
    relay.cut(delivers=arrives, times=1_000_000, every=3)
    with Load(kind, relay.url, [("e", "r", {"n": 1}, [MANY])], callers=6, coalesce=coalesce) as load:
        load.until(lambda: load.refused >= 20, "the tokens are gone")
    assert relay.cuts > 10
    assert 0 < load.admitted["e"] <= 300
    with opened(kind, own_redis_server.url) as limiter:
        assert left(limiter, MANY) == 0


@both_kinds
@pytest.mark.parametrize("coalesce", [True, False])
class TestClosedAtRest:
    """The server closed the connections between two calls. That is seen before anything is sent."""

    def test_the_next_call_just_works(self, kind: str, coalesce: bool, own_redis_server: RedisServer) -> None:
        with opened(kind, own_redis_server.url, coalesce=coalesce) as limiter:
            assert limiter.try_acquire("e", "r", {"n": 1}, [TEN])
            lease = limiter.try_acquire("e", "r", {"n": 5}, [TEN]).lease
            for call in (
                lambda: limiter.try_acquire("e", "r", {"n": 1}, [TEN]),
                lambda: limiter.adjust("e", "r", {"n": 2}, [TEN]),
                lambda: limiter.adjust("e", "r", {"n": -2}, [TEN]),
                lambda: lease.release(n=1),
                lambda: lease.rollback(),
                lambda: limiter.create_entity("e"),
                lambda: limiter.set_limits("e", [TEN]),
                lambda: limiter.get_buckets("e"),
                lambda: limiter.reset("f", "r"),
                lambda: limiter.ping(),
            ):
                own_redis_server.command("CLIENT", "KILL", "TYPE", "normal")
                call()
            assert left(limiter) == 8

    def test_connections_closed_at_rest_cost_no_call(
        self, kind: str, coalesce: bool, own_redis_server: RedisServer
    ) -> None:
        with opened(kind, own_redis_server.url, coalesce=coalesce) as limiter:
            for _ in range(3):
                assert all(limiter.together([("try_acquire", ("e", "r", {"n": 1}, [MANY]))] * 8))
                own_redis_server.command("CLIENT", "KILL", "TYPE", "normal")
                limiter.together([("adjust", ("e", "r", {"n": 1}, [MANY]))] * 8)
                own_redis_server.command("CLIENT", "KILL", "TYPE", "normal")
            assert left(limiter, MANY) == 300 - 3 * 16

    def test_again_and_again_amid_load(self, kind: str, coalesce: bool, own_redis_server: RedisServer) -> None:
        plenty = fixed(1_000_000)
        with Load(kind, own_redis_server.url, [("e", "r", {"n": 1}, [plenty])], coalesce=coalesce) as load:
            for _ in range(20):
                own_redis_server.command("CLIENT", "KILL", "TYPE", "normal")
                load.goes_on(5)
        with opened(kind, own_redis_server.url) as limiter:
            assert load.admitted["e"] <= 1_000_000 - left(limiter, plenty)


def test_connections_are_hung_up_while_other_threads_come_and_go(own_redis_server: RedisServer) -> None:
    """Whoever loses a connection closes all that rest, one by one. Meanwhile one is taken, and another returned."""
    store = RedisStore(read_url(own_redis_server.url), 10.0)
    wire, address = store._wire, ("127.0.0.1", own_redis_server.port)
    connections = [wire.take(Pipeline(address, ()), time.monotonic() + 10) for _ in range(4)]
    for one in connections[:3]:
        wire.rest(address, one)
    resting = wire._resting[address]  # another thread has it in its hands
    hung_up = []

    def disconnect(one: Any, really: Callable[[], None]) -> None:
        really()
        hung_up.append(one)
        if len(hung_up) == 1:
            taken, _ = resting.pop()
            taken.disconnect()
            resting.append((connections[3], time.monotonic()))

    for one in connections:
        one.disconnect = partial(disconnect, one, one.disconnect)
    wire.hang_up(address)
    assert len(hung_up) >= 2
    connections[3].disconnect()
