"""Slots on Redis: what beyond the answers (test_redis_script.py) has to hold of them where many share a server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis_helpers import FAR_TOO_LONG_SECONDS, Relay, attempt, calls, changes, fixed, on_server

from headgate import Limit, RateLimiterUnavailable
from headgate.core.bucket import Bucket
from headgate.core.decide import FORCE, LOWER, PEEK, PENALIZE, RENEW, TAKE, Answer, Mode, Part, Request
from headgate.core.slots import Slots
from headgate.stores import Store, open_async_store, open_store
from headgate.stores.redis.keys import Keys
from headgate.stores.redis.wire import Encoder
from headgate.testing.servers.process import eventually
from headgate.testing.servers.redis import RedisCluster, RedisServer

START = 1_700_000_000_000
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
MARGIN_MS, SPARE_MS = 60_000, 30_000  # as in settle.lua
SLACK_MS = 2000  # between two looks at the server's clock
ONE = Limit.concurrent("s", 1, ttl=60)
THREE = Limit.concurrent("s", 3, ttl=60)
FOR_AN_HOUR = Limit.concurrent("s", 3, ttl=3600)
TEN = fixed(10)
MANY = 10_000
ROW, HOLDERS, AMOUNTS = (f"headgate:{{n}}:e#r{more}" for more in ("", "#s", "#s#amounts"))


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    redis_server.command("FLUSHALL")
    return redis_server


@pytest.fixture
def cluster(redis_cluster: RedisCluster) -> RedisCluster:
    for one in redis_cluster.servers:
        one.command("FLUSHALL")
    return redis_cluster


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    store = open_store(server.url, 10.0)
    yield store
    store.close()


@pytest.fixture
def clustered(cluster: RedisCluster) -> Iterator[Store]:
    store = open_store(cluster.url, 10.0)
    yield store
    store.close()


def wish(
    mode: Mode,
    lease_id: str,
    *amounts: tuple[Limit, int],
    keys: tuple[str, ...] = ("n/e#r",),
    max_wait_ms: int = 0,
    block_ms: int = 0,
) -> Request:
    """The amounts are of the keys in turn; what is left over is of the last."""
    parts = tuple(Part(min(n, len(keys) - 1), limit, amount * 1000) for n, (limit, amount) in enumerate(amounts))
    return Request(mode, keys, parts, max_wait_ms, block_ms, lease_id=lease_id)


def ask(store: Store, now_ms: int | None, *wishes: Request) -> list[tuple[bool, int | None]]:
    return [(answer.allowed, answer.wait_ms) for answer in store.settle(wishes, now_ms)]


def do(store: Store, now_ms: int | None, *args: Any, **kwargs: Any) -> Answer:
    (answer,) = store.settle([wish(*args, **kwargs)], now_ms)
    return answer


def left(store: Store, now_ms: int | None, limit: Limit, key: str = "n/e#r") -> float:
    return do(store, now_ms, PEEK, "", (limit, 0), keys=(key,)).levels[0][0] / 1000


def holders(store: Store, entity_id: str | None = None) -> dict[str, tuple[int, int]]:
    """Of all slots that are listed, as they lie there."""
    found: dict[str, tuple[int, int]] = {}
    cursor: str | None = None
    while True:
        page = store.list_buckets("n", entity_id, None, cursor, 0)
        for state in (state for row in page for state in row.buckets if isinstance(state, Slots)):
            found.update(state.holders)
        cursor = page.cursor
        if cursor is None:
            return found


def keys(*servers: RedisServer) -> set[str]:
    return {key for server in servers for key in server.command("KEYS", "*")}


def lives_ms(server: RedisServer, key: str) -> int:
    return int(server.command("PTTL", key))


class TestHolding:
    def test_what_was_lost_is_not_given_back(self, store: Store) -> None:
        """A lease that ran out, and whose slot somebody else has by now, comes back late."""
        assert ask(store, START, wish(TAKE, "late", (ONE, 1)), wish(TAKE, "next", (ONE, 1))) == [
            (True, 0),
            (False, MINUTE_MS),
        ]
        after = START + MINUTE_MS
        assert do(store, after, TAKE, "next", (ONE, 1)).allowed
        for _ in range(2):
            assert do(store, after, RENEW, "late", (ONE, 1)).levels == [(0, None)]
            do(store, after, FORCE, "late", (ONE, -1))
        assert holders(store) == {"next": (1000, after + MINUTE_MS)}
        assert not do(store, after, TAKE, "third", (ONE, 1)).allowed
        do(store, after, FORCE, "next", (ONE, -1))
        assert do(store, after, TAKE, "third", (ONE, 1)).allowed

    def test_some_hold_more_than_others(self, store: Store) -> None:
        limit, long = Limit.concurrent("s", 6, ttl=60), Limit.concurrent("s", 6, ttl=3600)
        wishes = [wish(TAKE, "one", (limit, 1)), wish(TAKE, "two", (limit, 2)), wish(TAKE, "three", (long, 3))]
        assert ask(store, START, *wishes) == [(True, 0)] * 3
        do(store, START + 1, RENEW, "two", (limit, 2))
        waits = [do(store, START + 1, PEEK, "", (limit, slots)).wait_ms for slots in range(1, 7)]
        assert waits == [MINUTE_MS - 1, MINUTE_MS, MINUTE_MS, HOUR_MS - 1, HOUR_MS - 1, HOUR_MS - 1]
        assert left(store, START + MINUTE_MS, limit) == 1
        assert left(store, START + 1 + MINUTE_MS, limit) == 3
        assert do(store, START + 1 + MINUTE_MS, TAKE, "two", (long, 1)).allowed, "with one slot this time"
        assert holders(store) == {"three": (3000, START + HOUR_MS), "two": (1000, START + 1 + MINUTE_MS + HOUR_MS)}

    def test_slots_expire_by_the_servers_clock(self, store: Store) -> None:
        short = Limit.concurrent("s", 1, ttl=3)
        assert do(store, None, TAKE, "a", (short, 1)).allowed
        refused = do(store, None, TAKE, "b", (short, 1))
        assert not refused.allowed
        assert refused.wait_ms is not None
        assert 0 < refused.wait_ms <= 3000
        time.sleep(refused.wait_ms / 1000)
        eventually(lambda: do(store, None, TAKE, "b", (short, 1)).allowed, "its time has run out")
        assert not do(store, None, RENEW, "a", (short, 1)).allowed
        assert do(store, None, RENEW, "b", (short, 1)).allowed

    def test_many_at_once_never_hold_too_many(self, server: RedisServer) -> None:
        most, limit = [], Limit.concurrent("s", 5, ttl=600)
        inside, lock, errors = [0], threading.Lock(), []

        def caller(number: int) -> None:
            store = open_store(server.url, 10.0)
            try:
                for turn in range(20):
                    lease_id = f"{number}.{turn}"
                    if do(store, None, TAKE, lease_id, (limit, 2 if number % 2 else 1)).allowed:
                        amount = 2 if number % 2 else 1
                        with lock:
                            inside[0] += amount
                            most.append(inside[0])
                        with lock:
                            inside[0] -= amount
                        do(store, None, FORCE, lease_id, (limit, -amount))
            except BaseException as error:
                errors.append(error)
            finally:
                store.close()

        threads = [threading.Thread(target=caller, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(FAR_TOO_LONG_SECONDS)
        assert not errors
        assert 0 < max(most) <= 5
        assert keys(server) == {ROW}, "all were given back"

    def test_a_step_back_of_the_clock_frees_nothing_and_loses_nothing(self, stepped_redis_server: RedisServer) -> None:
        store = open_store(stepped_redis_server.url, 10.0)
        try:
            assert do(store, None, TAKE, "a", (ONE, 1)).allowed
            for step in (-1800, 1790, -30, 30):
                stepped_redis_server.step_clock(step)
                refused = do(store, None, TAKE, "b", (ONE, 1))
                assert not refused.allowed
                assert 0 < (refused.wait_ms or 0) <= MINUTE_MS
                assert do(store, None, RENEW, "a", (ONE, 1)).allowed
            stepped_redis_server.step_clock(80)
            assert do(store, None, TAKE, "b", (ONE, 1)).allowed
        finally:
            store.close()

    def test_a_batch_of_more_keys_than_lua_takes_at_once(self, store: Store) -> None:
        chain = tuple(f"n/e{level}#r" for level in range(8))
        everywhere = [(Limit.concurrent("s", 511, ttl=60), 1)] * len(chain)
        wishes = [wish(TAKE, f"l{number}", *everywhere, keys=chain) for number in range(512)]
        answers = ask(store, START, *wishes)
        assert answers == [(True, 0)] * 511 + [(False, MINUTE_MS)]

    def test_the_coroutines_do_the_same(self, server: RedisServer) -> None:
        async def main() -> None:
            store = open_async_store(server.url, 10.0)
            try:
                batch = [wish(TAKE, lease_id, (ONE, 1), (TEN, 1)) for lease_id in "ab"]
                assert [answer.allowed for answer in await store.settle(batch, START)] == [True, False]
                (row,) = await store.list_buckets("n", None, None, None, START)
                bucket, slots = row.buckets
                assert isinstance(bucket, Bucket)
                assert isinstance(slots, Slots)
                assert (bucket.tokens_milli, slots.holders) == (9000, {"a": (1000, START + MINUTE_MS)})
                assert (await store.sweep("n", START + MINUTE_MS)).leases == 1
                await store.delete_buckets(["n/e#r"])
            finally:
                await store.close()

        asyncio.run(main())
        assert not keys(server)


class TestTenThousand:
    """They have held, and all run out in the same moment."""

    @pytest.fixture(params=[1, 2], ids=["of one slot", "of two slots"])
    def limit(self, store: Store, request: pytest.FixtureRequest) -> Limit:
        limit = Limit.concurrent("s", MANY * request.param, ttl=60)
        for first in range(0, MANY, 500):
            batch = [wish(TAKE, f"l{number}", (limit, request.param)) for number in range(first, first + 500)]
            assert all(answer.allowed for answer in store.settle(batch, START))
        return limit

    def test_the_next_one_gets_in_at_once(self, store: Store, limit: Limit, server: RedisServer) -> None:
        assert ask(store, START + 1, wish(TAKE, "next", (limit, 1))) == [(False, MINUTE_MS - 1)]
        assert ask(store, START + 1, wish(PEEK, "", (limit, MANY // 2))) == [(True, MINUTE_MS - 1)]
        begun = time.monotonic()
        assert do(store, START + MINUTE_MS, TAKE, "next", (limit, 1)).allowed
        assert time.monotonic() - begun < FAR_TOO_LONG_SECONDS, "of a sweep that looks at all for each of them"
        assert holders(store) == {"next": (1000, START + 2 * MINUTE_MS)}
        assert keys(server) == {ROW, HOLDERS}

    def test_a_sweep_counts_them(self, store: Store, limit: Limit) -> None:
        do(store, START + 1, RENEW, "l77", (limit, 1))
        assert store.sweep("n", START + MINUTE_MS).leases == MANY - 1
        assert set(holders(store)) == {"l77"}


class TestKeys:
    def test_keys_of_slots_lie_beside_their_row(
        self, store: Store, server: RedisServer, clustered: Store, cluster: RedisCluster
    ) -> None:
        for each in (store, clustered):
            assert do(each, None, TAKE, "a", (THREE, 1)).allowed
        assert keys(server) == {ROW, HOLDERS}
        assert keys(*cluster.servers) == {"headgate:n:{e}#r", "headgate:n:{e}#r#s"}
        assert do(store, None, TAKE, "b", (THREE, 2)).allowed
        assert keys(server) == {ROW, HOLDERS, AMOUNTS}
        do(store, None, FORCE, "b", (THREE, -1))
        assert keys(server) == {ROW, HOLDERS}, "all hold one slot"
        for lease_id in "ab":
            do(store, None, FORCE, lease_id, (THREE, -1))
        assert keys(server) == {ROW}

    def test_they_live_as_long_as_somebody_holds(self, store: Store, server: RedisServer) -> None:
        def check(least_ms: int, names: tuple[str, ...] = (ROW, HOLDERS, AMOUNTS)) -> None:
            for name in names:
                most_ms = least_ms * 1.001 + MARGIN_MS + (SPARE_MS if name == ROW else 0) + SLACK_MS
                assert least_ms + MARGIN_MS - SLACK_MS < lives_ms(server, name) < most_ms

        per_second = Limit.per_second("n", 10)
        do(store, None, TAKE, "a", (FOR_AN_HOUR, 2))
        check(HOUR_MS)
        do(store, None, TAKE, "b", (THREE, 1))  # the limit is another by now, but not for those who hold
        check(HOUR_MS)
        do(store, None, FORCE, "nobody", (Limit.concurrent("s", 5, ttl=60), -1))  # and another again
        check(HOUR_MS)
        do(store, None, TAKE, "", (per_second, 1))  # which knows nothing of slots
        do(store, None, FORCE, "", (per_second, 1))
        check(HOUR_MS)
        do(store, None, FORCE, "a", (THREE, -2))
        check(MINUTE_MS, (ROW, HOLDERS))
        do(store, None, PENALIZE, "", (THREE, 0), block_ms=HOUR_MS)
        check(HOUR_MS, (ROW,))

    def test_looking_and_refusing_cost_no_write(self, store: Store, server: RedisServer) -> None:
        do(store, None, TAKE, "a", (THREE, 2), (TEN, 1))
        before = changes(server)
        for _ in range(3):
            do(store, None, PEEK, "a", (THREE, 1), (TEN, 1))
            assert not do(store, None, TAKE, "b", (THREE, 2), (TEN, 1)).allowed
            assert not do(store, None, TAKE, "b", (THREE, 1), (TEN, 11)).allowed
        store.sweep("n", None)
        assert changes(server) == before

    def test_deleted_ones_leave_nothing(self, store: Store, server: RedisServer) -> None:
        other = Limit.concurrent("t", 2)
        do(store, None, TAKE, "a", (THREE, 3), (other, 1), (TEN, 1))
        store.delete_buckets(["n/e#r", "n/never#r"])
        assert not keys(server)
        assert not do(store, None, RENEW, "a", (THREE, 1)).allowed
        assert do(store, None, TAKE, "b", (THREE, 3), (other, 2)).allowed

    def test_holders_are_not_taken_for_rows(self, store: Store) -> None:
        """Although the limit has the name of a resource."""
        named_r = Limit.concurrent("r", 2)
        do(store, None, TAKE, "a", (named_r, 1), (TEN, 1))
        for arguments in ((None, None), (None, "r"), ("e", None), ("e", "r")):
            (row,) = store.list_buckets("n", *arguments, None, None)
            assert (row.entity_id, row.resource) == ("e", "r")
            assert [state.limit.name for state in row.buckets] == ["n", "r"]


class TestForgotten:
    """A server that evicts takes some of it away. Nobody is kept out for ever, and nothing fails."""

    @pytest.mark.parametrize("key", [ROW, HOLDERS, AMOUNTS])
    def test_evicted_key_of_slots_keeps_no_one_out_for_ever(self, store: Store, server: RedisServer, key: str) -> None:
        for lease_id in "ab":
            do(store, START, TAKE, lease_id, (Limit.concurrent("s", 4, ttl=60), 2))
        assert server.command("DEL", key) == 1
        do(store, START + 1, RENEW, "a", (THREE, 1))
        do(store, START + 1, FORCE, "b", (THREE, -2))
        assert do(store, START + 1 + MINUTE_MS, TAKE, "c", (THREE, 3)).allowed
        assert set(holders(store)) == {"c"}

    @pytest.mark.parametrize("now_ms", [None, START], ids=["own clock", "injected clock"])
    def test_a_limit_that_becomes_slots_begins_anew_even_if_it_refuses(self, store: Store, now_ms: int | None) -> None:
        tokens = fixed(10, "s")
        do(store, now_ms, FORCE, "", (tokens, 7))
        assert not do(store, now_ms, TAKE, "l", (ONE, 2)).allowed
        assert do(store, now_ms, PEEK, "", (tokens, 0)).levels == [(10_000, 0)]

    @pytest.mark.parametrize("now_ms", [None, START], ids=["own clock", "injected clock"])
    def test_a_limit_that_was_a_rate_in_between_begins_anew(self, store: Store, now_ms: int | None) -> None:
        rate = Limit.per_minute("s", 5)
        do(store, now_ms, TAKE, "a", (THREE, 3))
        assert do(store, now_ms, PEEK, "", (rate, 5)).levels == [(5000, 0)]
        assert left(store, now_ms, THREE) == 0, "to look changes nothing"
        assert do(store, now_ms, TAKE, "", (rate, 5)).allowed
        assert left(store, now_ms, THREE) == 3
        assert do(store, now_ms, TAKE, "b", (THREE, 1)).allowed
        assert set(holders(store)) == {"b"}

    def test_a_sweep_takes_away_what_belongs_to_nobody(self, store: Store, server: RedisServer) -> None:
        do(store, None, TAKE, "a", (THREE, 3))
        do(store, None, TAKE, "", (Limit.per_minute("s", 5), 1))
        assert store.sweep("n", None).leases == 0
        assert keys(server) == {ROW}
        assert left(store, None, Limit.per_minute("s", 5)) == pytest.approx(4, abs=0.5)


class TestSweep:
    @pytest.mark.parametrize("where", ["server", "cluster"])
    @pytest.mark.parametrize("together", ["entity", "tenant", "namespace"])
    def test_three_at_once_count_each_lease_once(
        self, server: RedisServer, cluster: RedisCluster, where: str, together: str
    ) -> None:
        url = f"{server.url if where == 'server' else cluster.url}?together={together}"
        stores = [open_store(url, 10.0) for _ in range(3)]
        counts = []
        limit, other = Limit.concurrent("s", 50, ttl=60), Limit.concurrent("t", 50, ttl=90)
        wishes = [
            wish(TAKE, f"l{number}", (limit, 1 + number % 2), (other, 1), keys=(f"n/acme:e{number % 20}#r",))
            for number in range(300)
        ]
        wishes += [wish(TAKE, "elsewhere", (limit, 1), keys=("other/e#r",))]
        try:
            assert all(answer.allowed for answer in stores[0].settle(wishes, START))
            at_once = threading.Barrier(3)

            def sweep(store: Store) -> None:
                at_once.wait(FAR_TOO_LONG_SECONDS)
                counts.append(store.sweep("n", START + MINUTE_MS).leases)

            threads = [threading.Thread(target=sweep, args=(store,)) for store in stores]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(FAR_TOO_LONG_SECONDS)
            assert len(counts) == 3
            assert sum(counts) == 300, "those of 60 s"
            assert stores[0].sweep("n", START + MINUTE_MS).leases == 0
            assert len(holders(stores[0])) == 300, "those of 90 s"
            assert stores[0].sweep("other", START + MINUTE_MS).leases == 1
        finally:
            for store in stores:
                store.close()

    def test_what_it_saw_is_not_undone_by_a_clock_behind(self, store: Store, server: RedisServer) -> None:
        for lease_id, limit in (("a", THREE), ("b", FOR_AN_HOUR)):
            do(store, START, TAKE, lease_id, (limit, 1))
        assert store.sweep("n", START + MINUTE_MS).leases == 1
        assert lives_ms(server, ROW) > HOUR_MS
        assert not do(store, START + 1, RENEW, "a", (FOR_AN_HOUR, 1)).allowed
        assert do(store, START + 1, RENEW, "b", (FOR_AN_HOUR, 1)).allowed
        assert holders(store) == {"b": (1000, START + MINUTE_MS + HOUR_MS)}


class TestCluster:
    """A child with a rate on one node, its parent with slots on another."""

    @pytest.fixture
    def chain(self, cluster: RedisCluster) -> tuple[str, str]:
        child, parent = (on_server(cluster, server, name)[0] for name, server in zip("cp", cluster.servers))
        return f"n/{child}#r", f"n/{parent}#r"

    def test_request_over_nodes_with_slots_is_all_or_nothing(self, clustered: Store, chain: tuple[str, str]) -> None:
        mixed = ((TEN, 4), (ONE, 1))
        assert ask(clustered, START, wish(TAKE, "a", *mixed, keys=chain)) == [(True, 0)]
        refused = do(clustered, START, TAKE, "b", *mixed, keys=chain)
        assert (refused.allowed, refused.wait_ms, refused.levels) == (False, MINUTE_MS, [(6000, 0), (0, MINUTE_MS)])
        assert left(clustered, START, TEN, chain[0]) == 6
        do(clustered, START, FORCE, "a", (TEN, -4), (ONE, -1), keys=chain)
        assert not do(clustered, START, TAKE, "b", (TEN, 11), (ONE, 1), keys=chain).allowed
        assert left(clustered, START, ONE, chain[1]) == 1, "the slot was given back"
        assert not holders(clustered)

    def test_a_slot_is_not_reserved(self, clustered: Store, chain: tuple[str, str]) -> None:
        rate = Limit.per_second("n", 1)
        for lease_id, allowed in (("a", True), ("b", False)):
            do(clustered, START, TAKE, "", (rate, 1), keys=chain[:1])
            answer = do(clustered, START, TAKE, lease_id, (rate, 1), (ONE, 1), keys=chain, max_wait_ms=2 * MINUTE_MS)
            assert answer.allowed is allowed
            assert answer.wait_ms == (1000 if allowed else MINUTE_MS)
        assert left(clustered, START, rate, chain[0]) == -1
        assert holders(clustered) == {"a": (1000, START + MINUTE_MS)}

    def test_renewing_on_two_nodes_keeps_what_is_left(self, clustered: Store, chain: tuple[str, str]) -> None:
        both = ((FOR_AN_HOUR, 1), (ONE, 1))
        assert do(clustered, START, TAKE, "a", *both, keys=chain).allowed
        answer = do(clustered, START + 1, RENEW, "a", *both, keys=chain)
        assert (answer.allowed, answer.wait_ms, answer.levels) == (True, 0, [(2000, 0), (0, 0)])
        later = START + 2 * MINUTE_MS
        answer = do(clustered, later, RENEW, "a", *both, keys=chain)
        assert (answer.allowed, answer.wait_ms, answer.levels) == (False, None, [(2000, 0), (1000, None)])
        assert holders(clustered) == {"a": (1000, later + HOUR_MS)}

    def test_deleting_buckets_removes_their_slots_on_every_node(
        self, clustered: Store, cluster: RedisCluster, chain: tuple[str, str]
    ) -> None:
        assert do(clustered, START, TAKE, "a", (FOR_AN_HOUR, 2), (ONE, 1), keys=chain).allowed
        clustered.delete_buckets(chain)
        assert not keys(*cluster.servers)


class TestLostReplies:
    @pytest.mark.parametrize("arrives", [True, False], ids=["done", "not-done"])
    def test_a_take_of_slots_is_not_sent_again(self, own_redis_server: RedisServer, arrives: bool) -> None:
        with Relay(own_redis_server) as relay:
            store = open_store(relay.url, 10.0)
            assert do(store, None, TAKE, "a", (THREE, 1), (TEN, 1)).allowed
            for wished in (wish(TAKE, "a", (THREE, 1), (TEN, 1)), wish(FORCE, "a", (THREE, -1), (TEN, -1))):
                done = calls(own_redis_server, "evalsha", "eval")
                relay.cut(delivers=arrives)
                assert isinstance(attempt(lambda wished=wished: store.settle([wished], None)), RateLimiterUnavailable)
                assert calls(own_redis_server, "evalsha", "eval") == done + arrives
            assert left(store, None, THREE) == 2
            store.close()

    @pytest.mark.parametrize("mode", [PEEK, RENEW, LOWER])
    def test_what_does_no_harm_is(self, own_redis_server: RedisServer, mode: Mode) -> None:
        with Relay(own_redis_server) as relay:
            store = open_store(relay.url, 10.0)
            assert do(store, None, TAKE, "a", (THREE, 1)).allowed
            relay.cut()
            assert do(store, None, mode, "a", (THREE, 1)).allowed
            assert relay.cuts == 1
            store.close()


def test_only_those_who_want_slots_are_told_apart() -> None:
    """Callers of rates go on being counted, whatever lease they are for."""
    encoder = Encoder(Keys("namespace", clustered=False), 1000)
    rates, slots = wish(TAKE, "a", (TEN, 1)), wish(TAKE, "a", (THREE, 1))
    for wished, count in ((rates, 1), (slots, 4 * 5)):
        batch = encoder.encode([wished._replace(lease_id=lease_id) for lease_id in "abcde"], None)
        assert batch.arguments[2] == str(count), "keys"
        assert batch.repeatable is (wished is rates)


@pytest.mark.parametrize(
    "garbage", ["", "x", "\x93\x01\x02\x03", "\x94\x01\x02\x03\x04", "\xc0", "\x93\x01", "\xdb\xff", "(a list)"]
)
def test_queue_that_cannot_be_read_is_an_empty_one(server: RedisServer, store: Store, garbage: str) -> None:
    def take(lease_id: str, place_ms: int = 0) -> Answer:
        request = Request(TAKE, ("n/e#r",), (Part(0, ONE, 1000),), lease_id=lease_id, place_ms=place_ms)
        return store.settle([request], None)[0]

    assert take("a" * 24).allowed
    assert not take("b" * 24, place_ms=MINUTE_MS).allowed
    queue = f"{HOLDERS}#waiting"
    server.command("DEL", queue)
    with server.client() as client:
        if garbage == "(a list)":
            client.rpush(queue, "x")
        else:
            client.set(queue, garbage.encode("latin-1"))
    assert not take("c" * 24, place_ms=MINUTE_MS).allowed
    store.settle([Request(FORCE, ("n/e#r",), (Part(0, ONE, -1000),), lease_id="a" * 24)], None)
    assert take("c" * 24).allowed
