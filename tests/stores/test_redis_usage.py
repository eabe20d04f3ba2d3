"""What was used, on the server: counted in the row, put away when the hour turns, by the server's clock."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from redis_helpers import both_kinds, calls, fixed, opened

from headgate import Limit, RateLimiterUnavailable, SyncRateLimiter
from headgate.core.decide import FORCE, PEEK, TAKE, Part, Request, State
from headgate.core.errors import PartlyAnswered
from headgate.core.names import bucket_key
from headgate.core.records import Page
from headgate.core.slots import Slots
from headgate.core.usage import HOUR_MS, hour_of
from headgate.stores import Store, open_store
from headgate.testing.servers.redis import RedisCluster, RedisServer

START = 1_700_000_000_000
DAY_MS = 24 * HOUR_MS
NINETY_DAYS = 90 * DAY_MS
COMMANDS = ("evalsha", "mget", "psetex", "set", "hincrby", "pexpire", "get", "hget")
WEEK = START // (7 * DAY_MS)
RPM, PER_DAY, SLOTS = Limit.per_minute("rpm", 100), Limit.per_day("day", 10), Limit.concurrent("par", 3)
ROW = bucket_key("default", "e", "r")

T = TypeVar("T")


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    redis_server.command("FLUSHALL")
    return redis_server


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    store = open_store(server.url, 10.0)
    store.usage_ms = NINETY_DAYS
    yield store
    store.close()


def settle(store: Store, now_ms: int | None, limit: Limit, amount: int, mode: Any = TAKE, key: str = ROW) -> bool:
    (answer,) = store.settle([Request(mode, (key,), (Part(0, limit, amount),))], now_ms)
    return answer.allowed


def used(store: Store, now_ms: int | None = START + HOUR_MS) -> dict[str, dict[int, int]]:
    rows = store.list_usage("default", "e", "r", (0, 10**6), None, now_ms)
    return dict(rows[0].used) if rows else {}


class TestKeys:
    @pytest.mark.parametrize("where", ["server", "cluster"])
    @pytest.mark.parametrize(
        ("together", "row"),
        [
            ("entity", "headgate:default:{acme:bob}#api/v1"),
            ("tenant", "headgate:default:{acme}:bob#api/v1"),
            ("namespace", "headgate:{default}:acme:bob#api/v1"),
        ],
    )
    def test_usage_of_past_hours_lies_beside_its_row(
        self, server: RedisServer, redis_cluster: RedisCluster, where: str, together: str, row: str
    ) -> None:
        servers = [server] if where == "server" else redis_cluster.servers
        for one in servers:
            one.command("FLUSHALL")
        store = open_store(f"{server.url if where == 'server' else redis_cluster.url}?together={together}", 10.0)
        store.usage_ms = NINETY_DAYS
        key = bucket_key("default", "acme:bob", "api/v1")
        for hour in range(3):
            assert settle(store, START + hour * HOUR_MS, RPM, 1000, key=key)
        store.settle([Request(TAKE, (key,), (Part(0, SLOTS, 2000),), lease_id="l")], START)
        held = {f"{row}#par", f"{row}#par#amounts"}
        assert {name for one in servers for name in one.command("KEYS", "*")} == {row, f"{row}##{WEEK}", *held}
        (listed,) = all_pages(lambda cursor: store.list_buckets("default", "acme:bob", None, cursor, START))
        assert (listed.entity_id, listed.resource, len(listed.buckets)) == ("acme:bob", "api/v1", 2)
        (counted,) = all_used(store)
        hours = {hour_of(START) + hour: 1000 for hour in range(3)}
        assert (counted.entity_id, counted.resource, counted.used) == ("acme:bob", "api/v1", {"rpm": hours})
        assert store.sweep("default", START + HOUR_MS).leases == 1
        assert all_used(store) == [counted]
        store.close()

    def test_a_row_lives_as_long_as_what_lies_beside_it(self, store: Store, server: RedisServer) -> None:
        row, beside = "headgate:{default}:e#r", f"headgate:{{default}}:e#r##{WEEK}"

        def lives() -> tuple[int, int]:
            with server.client() as client, client.pipeline() as together:
                first, second = together.pttl(row).pttl(beside).execute()
                return first, second

        for act in (
            lambda: settle(store, START, RPM, 1000),
            lambda: settle(store, START + HOUR_MS, RPM, 1000),
            lambda: settle(store, START + 2 * HOUR_MS, RPM, 1000, FORCE),
            lambda: settle(store, START + 3 * HOUR_MS, RPM, -2000, FORCE),
            lambda: settle(store, START + 3 * HOUR_MS, SLOTS, 0),
            lambda: store.delete_buckets([ROW]),
            lambda: store.delete_buckets([ROW]),
        ):
            act()
            of_row, of_usage = lives()
            assert max(of_usage, NINETY_DAYS - 60_000) <= of_row <= NINETY_DAYS + 2 * DAY_MS
        assert of_usage >= NINETY_DAYS - 60_000
        assert sum(used(store, START + 4 * HOUR_MS)["rpm"].values()) == 1000

    def test_without_usage_nothing_is_left(self, server: RedisServer) -> None:
        store = open_store(server.url, 10.0)
        for hour in range(3):
            settle(store, START + hour * HOUR_MS, RPM, 1000)
            settle(store, START + hour * HOUR_MS, RPM, 1000, FORCE)
        assert server.command("KEYS", "*") == ["headgate:{default}:e#r"]
        assert server.command("PTTL", "headgate:{default}:e#r") < 2 * DAY_MS
        assert used(store) == {}
        store.delete_buckets([ROW])
        assert server.command("DBSIZE") == 0
        store.close()

    def test_what_is_too_old_is_not_told(self, store: Store) -> None:
        for day in range(100):
            settle(store, START + day * DAY_MS, RPM, 1000)
        now_ms = START + 99 * DAY_MS
        hours = used(store, now_ms)["rpm"]
        assert min(hours) == hour_of(now_ms - NINETY_DAYS)
        assert len(hours) == 91


def all_used(store: Store) -> list[Any]:
    now_ms = START + 3 * HOUR_MS
    return all_pages(lambda cursor: store.list_usage("default", None, None, (0, 10**6), cursor, now_ms))


def all_pages(list_page: Callable[[str | None], Page[T]]) -> list[T]:
    found: list[T] = []
    cursor: str | None = None
    while True:
        page = list_page(cursor)
        found += page
        cursor = page.cursor
        if cursor is None:
            return found


# As they were written when rows had no USED.
FIRST_FORMAT = {
    "plain": "01a372706dce000186a0ce000186a0cdea60cdea60cf0000018bcfe5680000010000",
    "owing": "01a372706dce000186a0ce000186a0cdea60d18ad0cf0000018bcfe5680000010000"
    "a3646179cd2710cd2710ce05265c00cd1770cf0000018bcfe5680000010000",
    "blocked": "01a372706dce000186a0ce000186a0cdea60ce000186a0cf0000018bcfe568000001cf0000018bcfe57b8800",
    "held": "01a372706dce000186a0ce000186a0cdea60ce000182b8cf0000018bcfe5680000010000"
    "a3706172cd0bb800cdea60cf0000018bcfe65260cf0000018bcfe5680000010000",
}


def put(server: RedisServer, entity_id: str, row: bytes) -> None:
    with server.client(decode_responses=False) as client:
        client.set(f"headgate:{{default}}:{entity_id}#r", row, px=DAY_MS)
        client.zadd("headgate:{default}:held#r#par", {"l1": START + 60_000})
        client.hset("headgate:{default}:held#r#par#amounts", mapping={"l1": 2000, "\0": 1000})


def states(store: Store, entity_id: str, now_ms: int) -> dict[str, State]:
    return {
        state.limit.name: state
        for row in store.list_buckets("default", entity_id, "r", None, now_ms)
        for state in row.buckets
    }


class TestFormats:
    @pytest.fixture(autouse=True)
    def _old_rows(self, server: RedisServer) -> None:
        for entity_id, row in FIRST_FORMAT.items():
            put(server, entity_id, bytes.fromhex(row))

    def check(self, store: Store, less: int) -> None:
        """All as it was, but so many of rpm."""
        tokens = {"plain": 60_000, "owing": -30_000, "blocked": 100_000, "held": 99_000}
        for entity_id, milli in tokens.items():
            found = states(store, entity_id, START)
            rpm = found["rpm"]
            assert not isinstance(rpm, Slots)
            assert (rpm.limit, rpm.tokens_milli, rpm.revision) == (RPM, milli - less, 1)
            assert rpm.blocked_until_ms == (START + 5000 if entity_id == "blocked" else 0)
        day = states(store, "owing", START)["day"]
        assert not isinstance(day, Slots)
        assert (day.limit, day.tokens_milli) == (PER_DAY, 6000)
        held = states(store, "held", START)["par"]
        assert isinstance(held, Slots)
        assert (held.limit, held.holders) == (SLOTS, {"l1": (2000, START + 60_000)})

    def test_the_first_is_read_and_written_on(self, store: Store, server: RedisServer) -> None:
        self.check(store, less=0)
        for entity_id in FIRST_FORMAT:
            settle(store, START, RPM, 7000, FORCE, bucket_key("default", entity_id, "r"))
        self.check(store, less=7000)
        with server.client(decode_responses=False) as client:
            for entity_id in FIRST_FORMAT:
                assert client.getrange(f"headgate:{{default}}:{entity_id}#r", 0, 0) == b"\x02"
        assert [row.used for row in all_used(store)] == [{"rpm": {hour_of(START): 7000}}] * 4

    def test_the_first_counts_nothing(self, store: Store) -> None:
        assert all_used(store) == []
        assert settle(store, START, RPM, 1000, key=bucket_key("default", "plain", "r"))
        (row,) = all_used(store)
        assert (row.entity_id, row.used) == ("plain", {"rpm": {hour_of(START): 1000}})

    def test_the_first_is_swept_and_deleted(self, store: Store, server: RedisServer) -> None:
        assert store.sweep("default", START + 60_000).leases == 1
        store.delete_buckets([bucket_key("default", entity_id, "r") for entity_id in FIRST_FORMAT])
        assert store.list_buckets("default", None, None, None, START) == []
        assert not any("par" in key for key in server.command("KEYS", "*"))

    def test_a_later_one_is_refused(self, store: Store, server: RedisServer) -> None:
        put(server, "e", b"\x03")
        for attempt in (
            lambda: settle(store, START, RPM, 1000),
            lambda: states(store, "e", START),
            lambda: used(store),
            lambda: store.delete_buckets([ROW]),
        ):
            with pytest.raises((RateLimiterUnavailable, PartlyAnswered), match="unknown row format of"):
                attempt()
        with server.client(decode_responses=False) as client:
            assert client.get("headgate:{default}:e#r") == b"\x03"


class TestCounting:
    def test_more_than_a_double_can_hold(self, store: Store) -> None:
        most = 9 * 10**15
        limit = Limit.from_stored("x", 10**15, 1, 1000)
        for _ in range(3):
            settle(store, START, limit, most, FORCE)
            settle(store, START, limit, 1, FORCE)
        assert used(store) == {"x": {hour_of(START): 3 * most + 3}}
        for _ in range(6):
            settle(store, START, limit, -most, FORCE)
        assert used(store) == {"x": {hour_of(START): 3 - 3 * most}}

    def test_plainly_more_than_a_double_can_hold(self, store: Store) -> None:
        most, times = 10**15, 11
        limit = Limit.from_stored("x", most, most - 1, 1)
        for ms in range(times):
            assert settle(store, START + ms, limit, most - 1)
        assert used(store) == {"x": {hour_of(START): times * (most - 1)}}

    @pytest.mark.parametrize("mode", [TAKE, FORCE])
    def test_more_than_the_server_can_count_is_no_reason_to_fail(
        self, store: Store, server: RedisServer, mode: Any
    ) -> None:
        place = f"headgate:{{default}}:e#r##{WEEK}"
        server.command("HSET", place, f"rpm:{hour_of(START)}", 2**63 - 1)
        for hour in range(3):
            assert settle(store, START + hour * HOUR_MS, RPM, 1000, mode)
        assert server.command("HGETALL", place) == {
            f"rpm:{hour_of(START)}": str(2**63 - 1),
            f"rpm:{hour_of(START) + 1}": "1000",
        }

    @both_kinds
    def test_no_command_more_for_a_decision(self, kind: str, server: RedisServer) -> None:
        """Only when the hour turns, and that it does once for a row."""
        counted = {}
        for days in (0, 90):
            with opened(kind, server.url, usage_days=days) as limiter:
                for limits in ([RPM], [RPM, PER_DAY]):
                    limiter.adjust("e", "r", {"rpm": 1}, limits)
                    before = calls(server, *COMMANDS)
                    for _ in range(3):
                        assert limiter.try_acquire("e", "r", {limit.name: 1 for limit in limits}, limits)
                    after = calls(server, *COMMANDS)
                    counted[days, len(limits)] = after - before
        assert len(set(counted.values())) == 1

    def test_usage_is_counted_by_the_servers_clock(self, stepped_redis_server: RedisServer) -> None:
        """Also where nothing is written: a refusal does not put away what the row goes on counting."""
        server, chance = stepped_redis_server, random.Random(11)
        store = open_store(server.url, 10.0)
        store.usage_ms = NINETY_DAYS
        few, expected, limits = Limit.from_stored("rpm", 3000, 1000, HOUR_MS), Counter[int](), (RPM, PER_DAY)
        server.step_clock(15 - server_ms(server) / 1000 % 30)  # the steps lead past the turn of an hour, never to it
        for _ in range(200):
            step = chance.random()
            hour = hour_of(server_ms(server))
            if step < 0.4:
                if settle(store, None, few, 1000):
                    expected[hour] += 1000
            elif step < 0.5:
                settle(store, None, few, -500, FORCE)
                expected[hour] -= 500
            elif step < 0.6:
                settle(store, None, few, 4000)
                settle(store, None, few, 4000, PEEK)
            elif step < 0.7:
                store.settle([Request(TAKE, (ROW,), tuple(Part(0, limit, 10**9) for limit in limits))], None)
            elif step < 0.75:
                store.delete_buckets([ROW])
            else:
                server.step_clock(chance.choice([60, 1200, 5400, -30]))
                continue
            assert counted_hours(store) == {hour: milli for hour, milli in expected.items() if milli}
        store.close()


def server_ms(server: RedisServer) -> int:
    seconds, microseconds = server.command("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


def counted_hours(store: Store) -> dict[int, int]:
    return {hour: milli for hour, milli in used(store, None).get("rpm", {}).items() if milli}


def test_whoever_reads_while_hours_turn_sees_each_token_once(stepped_redis_server: RedisServer) -> None:
    server, limit, begun, done = stepped_redis_server, fixed(10**9), Counter[int](), Counter[int]()
    stop, reader = threading.Event(), open_store(server.url, 10.0)
    reader.usage_ms = NINETY_DAYS

    def take(number: int) -> None:
        with SyncRateLimiter(server.url, store_timeout=10.0) as limiter:
            while not stop.is_set():
                begun[number] += 1
                limiter.adjust("e", "r", {"n": 1}, [limit])
                done[number] += 1

    threads = [threading.Thread(target=take, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(12):
            server.step_clock(1800)
            for _ in range(10):
                least = done.total()
                found = sum(used(reader, None).get("n", {}).values()) // 1000
                assert least <= found <= begun.total()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    hours = used(reader, None)["n"]
    assert sum(hours.values()) == 1000 * done.total()
    assert len(hours) >= 6
    reader.close()
