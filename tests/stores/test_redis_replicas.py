"""`wait_replicas`: what was granted counts when replicas have confirmed it, and else the store is unavailable."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis_helpers import both_kinds, fixed, opened, patiently
from redis_play import A, deliver, in_turn, new_router, nodes

from headgate import RateLimiterUnavailable
from headgate.stores.redis.exchange import ReplyError, Unconfirmed
from headgate.stores.redis.router import RedisCommand
from headgate.stores.redis.script import READ, SETTLE
from headgate.testing.servers.process import eventually
from headgate.testing.servers.redis import RedisServer

TEN = [fixed(10)]
WAIT = ("WAIT", "1", "40")
OPTIONS = "?wait_replicas=1&wait_timeout_ms=40"


def write(slot: int = 0) -> RedisCommand:
    return RedisCommand(("EVALSHA", SETTLE.sha, 0), slot, script=SETTLE)


class TestRouter:
    def test_write_is_followed_by_a_wait_on_its_connection(self) -> None:
        play = deliver(new_router(f"redis://a:1{OPTIONS}"), write(), by=in_turn([[5], 1]))
        assert [command for _, command in play.sent] == [write().arguments, WAIT]
        assert play.replies == [[5]]

    def test_reads_are_not_waited_for(self) -> None:
        read = RedisCommand(("EVALSHA", READ.sha, 0), script=READ)
        play = deliver(new_router(f"redis://a:1{OPTIONS}"), read, by=in_turn([[5]]))
        assert play.sent == [(A, read.arguments)]

    @pytest.mark.parametrize(
        ("count", "why"), [(0, "0 of 1 replicas confirmed it"), (ReplyError("NOPERM", "no WAIT"), "NOPERM no WAIT")]
    )
    def test_unconfirmed_write_keeps_its_reply_and_is_not_sent_again(self, count: object, why: str) -> None:
        play = deliver(new_router(f"redis://a:1{OPTIONS}"), write(), by=in_turn([[5], count]))
        (reply,) = play.replies
        assert isinstance(reply, Unconfirmed)
        assert reply.reply == [5]
        assert why in str(reply.error)
        assert len(play.sent) == 2

    def test_write_that_was_not_done_needs_no_confirmation(self) -> None:
        play = deliver(new_router(f"redis://a:1{OPTIONS}"), write(), by=in_turn([ReplyError("OOM", "full"), 0]))
        assert "Redis says OOM" in play.told

    def test_unconfirmed_write_makes_sentinels_be_asked_again(self) -> None:
        router = new_router(f"redis+sentinel://a:1/main{OPTIONS}")
        for _ in range(2):
            play = deliver(router, write(), by=in_turn([[b"p", b"9"]], [[5], 0]))
            assert play.sent[0] == (A, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"))

    def test_every_node_of_a_cluster_waits_for_its_own_replicas(self) -> None:
        counts = {"a": 1, "b": 0}
        by = nodes(lambda address, command: counts[address[0]] if command == WAIT else [address[0]])
        play = deliver(new_router(f"redis+cluster://a:1{OPTIONS}"), write(7), write(16_000), by=by)
        confirmed, unconfirmed = play.replies
        assert confirmed == ["a"]
        assert isinstance(unconfirmed, Unconfirmed)


@pytest.fixture
def pair(redis_installed: None) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A primary, and a replica that keeps up."""
    with RedisServer() as primary, RedisServer(options={"replicaof": f"127.0.0.1 {primary.port}"}) as replica:

        def confirms() -> bool:
            with primary.client(single_connection_client=True) as client:
                client.set("x", 1)
                return bool(client.wait(1, 100) == 1)

        eventually(confirms, "the replica confirms what is written")
        yield primary, replica


@both_kinds
def test_grant_that_no_replica_has_is_unavailable_and_counts_once(
    kind: str, pair: tuple[RedisServer, RedisServer]
) -> None:
    primary, replica = pair
    with opened(kind, f"{primary.url}?wait_replicas=1&wait_timeout_ms=5000", store_timeout=20) as patient:
        assert patient.try_acquire("e", "r", {"n": 4}, TEN)
        assert int(replica.command("DBSIZE")) > 1, "the replica has it when the caller knows of it"
    with opened(kind, f"{primary.url}{OPTIONS}", store_timeout=20) as limiter:
        assert limiter.available("e", "r", TEN) == {"n": 6}
        replica.pause()
        for call in (
            lambda: limiter.try_acquire("e", "r", {"n": 1}, TEN),
            lambda: limiter.adjust("e", "r", {"n": 1}, TEN),
            lambda: limiter.set_limits("e", TEN),
        ):
            with pytest.raises(RateLimiterUnavailable, match=r"0 of 1 replicas confirmed it within 40 ms"):
                call()
        assert limiter.available("e", "r", TEN) == {"n": 4}, "it counts, once each"
        assert not limiter.try_acquire("e", "r", {"n": 5}, TEN), "a refusal has moved nothing, and stays one"
        assert limiter.try_acquire("e", "r", {"n": 1}, TEN, on_unavailable="allow").degraded
        replica.resume()
        patiently(lambda: limiter.adjust("e", "r", {"n": 1}, TEN))
