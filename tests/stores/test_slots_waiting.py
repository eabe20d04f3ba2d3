"""Waiting for slots where the store keeps a queue: who is told to ask, how often one asks, and what ends a wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from postgres_helpers import emptied

from headgate import Limit, RateLimiter, SyncRateLimiter
from headgate.core.decide import TAKE, Part, Request, refund
from headgate.limiter.acquire import slot_queue
from headgate.stores import Store, open_store
from headgate.stores.notifications import MOST_EARLY, ServerNotifications
from headgate.testing.driver import DRIVERS
from headgate.testing.servers.process import PATIENCE_SECONDS, eventually
from headgate.testing.servers.redis import RedisCluster, RedisServer
from local_servers.postgres import PgBouncer, PostgresServer

SLOTS = Limit.concurrent("x", 1, 3600)
TWO = Limit.concurrent("x", 2, 3600)
WISH: Any = ("e", "r", {"x": 1}, [SLOTS])
KEY = "n/e#r"
PLACE_MS = 60_000
MOST_CALLS = 3
LISTENERS = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"


class Servers:
    """A store with a queue, seen from the server."""

    def __init__(self, url: str, listeners: Callable[[], int], hang_up: Callable[[], object]) -> None:
        self.url = url
        self.listeners = listeners
        self.hang_up = hang_up  # on the listeners


@pytest.fixture(params=["redis", "postgres"])
def server(request: pytest.FixtureRequest) -> Servers:
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        redis.command("FLUSHALL")
        return Servers(
            redis.url,
            lambda: len(redis.command("PUBSUB", "CHANNELS", "headgate:*")),
            lambda: redis.command("CLIENT", "KILL", "TYPE", "pubsub"),
        )
    postgres: PostgresServer = request.getfixturevalue("postgres_server")
    return Servers(
        emptied(postgres),
        lambda: len(postgres.execute(LISTENERS)),
        lambda: postgres.execute(f"SELECT pg_terminate_backend(pid) FROM ({LISTENERS}) AS l"),
    )


@pytest.fixture
def store(server: Servers) -> Iterator[Store]:
    store = open_store(server.url, 10.0)
    yield store
    store.close()


def take(lease_id: str, place_ms: int = 0, amount: int = 1, limit: Limit = SLOTS) -> Request:
    return Request(TAKE, (KEY,), (Part(0, limit, amount * 1000),), lease_id=lease_id, place_ms=place_ms)


def passes(store: Store, request: Request) -> bool:
    return store.settle([request], None)[0].allowed


def give_back(store: Store, request: Request) -> None:
    store.settle([refund(request)], None)


class Calls:
    """To the store."""

    count = 0

    def decided(self, entity_id: str, resource: str, outcome: str, seconds: float) -> None:
        pass

    def settled(self, requests: int, seconds: float, ok: bool) -> None:
        self.count += 1


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_waiting_acquire_makes_at_most_three_calls(server: Servers, kind: str) -> None:
    holder, waiter = (DRIVERS[each](server.url, store_timeout=10.0) for each in ("sync", kind))
    lease = holder.try_acquire(*WISH).lease
    assert not waiter.try_acquire(*WISH, max_wait=0.01)
    eventually(lambda: server.listeners() == 1, "it listens, after its first wait")
    calls, decisions = Calls(), []
    waiter.watch(calls)
    thread = threading.Thread(target=lambda: decisions.append(waiter.try_acquire(*WISH, max_wait=PATIENCE_SECONDS)))
    thread.start()
    eventually(lambda: calls.count, "it asks")
    time.sleep(1)  # in which one who polls would ask four times at least
    lease.commit()
    thread.join(PATIENCE_SECONDS)
    assert decisions[0]
    assert calls.count <= MOST_CALLS
    decisions[0].lease.commit()
    for driver in (holder, waiter):
        driver.shut()
    eventually(lambda: server.listeners() == 0, "the listener is gone")


def test_the_first_in_the_queue_is_told_and_nobody_else(server: Servers, store: Any) -> None:
    here: Any = open_store(server.url, 10.0)
    first = threading.Event()
    here.notifications.subscribe("first", first.set)
    eventually(lambda: here.notifications.listener, "it listens")
    assert first.wait(PATIENCE_SECONDS), "a waiter from before it listened asks anew"
    told = {lease_id: threading.Event() for lease_id in "bcd"}
    assert passes(store, take("a"))
    for lease_id, bell in told.items():
        here.notifications.subscribe(lease_id, bell.set)
        assert not passes(here, take(lease_id, PLACE_MS))
    give_back(store, take("a"))
    assert told["b"].wait(PATIENCE_SECONDS)
    assert not passes(store, take("newcomer")), "the slot is the first waiter's"
    assert not passes(here, take("c", PLACE_MS))
    assert passes(here, take("b", PLACE_MS))
    give_back(here, take("c"))  # which gives up its place
    give_back(here, take("b"))
    assert told["d"].wait(PATIENCE_SECONDS)
    assert not told["c"].is_set()
    assert passes(here, take("d", PLACE_MS))
    give_back(here, take("d"))
    assert passes(store, take("newcomer")), "the queue is empty"
    here.close()


def test_a_waiter_that_gives_up_lets_the_next_one_in(server: Servers, store: Store) -> None:
    here: Any = open_store(server.url, 10.0)
    told = threading.Event()
    here.notifications.subscribe("c", told.set)
    eventually(lambda: here.notifications.listener, "it listens")
    assert passes(store, take("a", limit=TWO))
    assert not passes(here, take("b", PLACE_MS, 2, TWO))
    assert not passes(here, take("c", PLACE_MS, 1, TWO))
    told.clear()
    give_back(here, take("b", 0, 2, TWO))
    assert told.wait(PATIENCE_SECONDS)
    assert passes(here, take("c", PLACE_MS, 1, TWO))
    here.close()


def test_a_waiter_whose_process_is_gone_loses_its_place(server: Servers, store: Store) -> None:
    gone: Any = open_store(server.url, 10.0)
    gone.notifications.subscribe("b", lambda: None)
    eventually(lambda: gone.notifications.listener, "it listens")
    assert passes(store, take("a"))
    assert not passes(gone, take("b", PLACE_MS))
    assert not passes(store, take("c", PLACE_MS))
    gone.close()
    eventually(lambda: server.listeners() == 0, "the listener is gone")
    give_back(store, take("a"))
    assert passes(store, take("c"))


def test_a_place_that_is_not_kept_up_expires(store: Store) -> None:
    assert passes(store, take("a"))
    assert not passes(store, take("b", 300))
    give_back(store, take("a"))
    refused = store.settle([take("c")], None)[0]
    assert refused.allowed or 0 < (refused.wait_ms or 0) <= 300
    eventually(lambda: passes(store, take("c")), "its place has expired")


def test_what_was_told_before_the_waiter_was_ready_is_not_lost() -> None:
    notifications = ServerNotifications(lambda listener: None, (), 1.0)
    notifications.close()  # so that no thread wakes the waiters as well
    notifications.notify(["early", *(f"l{number}" for number in range(MOST_EARLY - 1))])
    told = threading.Event()
    notifications.subscribe("early", told.set)
    assert told.is_set()
    notifications.notify(f"m{number}" for number in range(3 * MOST_EARLY))
    assert len(notifications._early) == MOST_EARLY


def test_a_waiter_known_by_another_listener_asks_again_at_once() -> None:
    notifications = ServerNotifications(lambda listener: None, (), 1.0)
    notifications.close()  # so that no thread wakes the waiters as well
    lines = slot_queue.SlotQueues(threading.Event, shared=True, notifications=notifications)
    with lines.queued("l", "the one before") as waiter:
        assert waiter.bell.is_set()  # type: ignore[attr-defined]
    with lines.queued("l", "") as waiter:
        assert not waiter.bell.is_set()  # type: ignore[attr-defined]


def test_a_lost_connection_is_made_anew_and_waiters_go_on(server: Servers) -> None:
    with (
        SyncRateLimiter(server.url, store_timeout=20) as holder,
        SyncRateLimiter(server.url, store_timeout=20) as limiter,
    ):
        lease: Any = holder.try_acquire(*WISH).lease
        decisions: list[Any] = []
        thread = threading.Thread(target=lambda: decisions.append(limiter.try_acquire(*WISH, max_wait=60)))
        thread.start()
        for _ in range(2):
            eventually(lambda: server.listeners() == 1, "it listens")
            server.hang_up()
        eventually(lambda: server.listeners() == 1, "it listens again")
        lease.commit()
        thread.join(PATIENCE_SECONDS)
        decisions[0].lease.commit()


def test_whatever_ends_a_wait_gives_up_the_place(server: Servers) -> None:
    async def main() -> None:
        async with (
            RateLimiter(server.url, store_timeout=20) as limiter,
            RateLimiter(server.url, store_timeout=20) as other,
        ):
            first: Any = (await limiter.try_acquire(*WISH)).lease
            assert not await limiter.try_acquire(*WISH, max_wait=0.05)
            for steps in range(8):
                task = asyncio.create_task(limiter.try_acquire(*WISH, max_wait=60))
                for _ in range(steps):
                    await asyncio.sleep(0.001)
                task.cancel()
                await asyncio.wait([task])
            await first.commit()
            decision: Any = await other.try_acquire(*WISH)
            assert decision, "nobody waits any more"
            await decision.lease.commit()

    asyncio.run(main())


def test_a_caller_that_does_not_wait_gets_what_waiters_leave(store: Store) -> None:
    assert passes(store, take("a", limit=TWO))
    assert not passes(store, take("both", PLACE_MS, 2, TWO))
    answer = store.settle([take("one", limit=TWO)], None)[0]
    assert (answer.allowed, answer.levels[0][0]) == (False, -1000), "one is free, and two are waited for"
    give_back(store, take("both", 0, 2, TWO))
    assert passes(store, take("one", limit=TWO))


def test_waiters_of_slots_that_are_reset_ask_again(server: Servers) -> None:
    with SyncRateLimiter(server.url, store_timeout=20) as limiter:
        lease: Any = limiter.try_acquire(*WISH).lease
        decisions: list[Any] = []
        thread = threading.Thread(target=lambda: decisions.append(limiter.try_acquire(*WISH, max_wait=60)))
        thread.start()
        eventually(lambda: limiter.waiters == 1 and server.listeners() == 1, "it waits")
        limiter.reset("e", "r")
        thread.join(PATIENCE_SECONDS)
        decisions[0].lease.commit()
        lease.commit()


def test_tokens_of_a_waiter_that_is_cancelled_stay(server: Servers) -> None:
    rpm = Limit.per_day("rpm", 10)
    limits = [rpm, SLOTS]

    async def main() -> None:
        async with RateLimiter(server.url, store_timeout=20) as limiter:
            lease: Any = (await limiter.try_acquire("e", "r", {"x": 1, "rpm": 4}, limits)).lease
            task = asyncio.create_task(limiter.try_acquire("e", "r", {"x": 1, "rpm": 2}, limits, max_wait=60))
            await asyncio.to_thread(eventually, lambda: limiter.waiters == 1, "it waits")
            task.cancel()
            await asyncio.wait([task])
            assert await limiter.available("e", "r", limits) == {"rpm": 6, "x": 0}
            await lease.commit()

    asyncio.run(main())


# Redis


def test_without_leave_to_use_channels_waiters_poll(redis_server: RedisServer) -> None:
    redis_server.command("FLUSHALL")
    redis_server.command("ACL", "SETUSER", "quiet", "on", ">secret", "~headgate:*", "+@all", "resetchannels")
    url = redis_server.url.replace("redis://", "redis://quiet:secret@")
    with SyncRateLimiter(url, store_timeout=20) as limiter, SyncRateLimiter(url, store_timeout=20) as other:
        lease: Any = other.try_acquire(*WISH).lease
        decisions: list[Any] = []
        thread = threading.Thread(target=lambda: decisions.append(limiter.try_acquire(*WISH, max_wait=60)))
        thread.start()
        eventually(lambda: limiter.waiters == 1, "it waits")
        lease.commit()
        thread.join(PATIENCE_SECONDS)
        decisions[0].lease.commit()


def test_in_a_cluster_no_waiter_starves(redis_cluster: RedisCluster) -> None:
    """Some of them need slots on two nodes, which have no queue together."""
    for one in redis_cluster.servers:
        one.command("FLUSHALL")
    with SyncRateLimiter(redis_cluster.url, store_timeout=20) as limiter:
        limiter.create_entity("parent")
        limiter.create_entity("child", parent_id="parent", cascade=True)
        limiter.set_limits("parent", [SLOTS])
        limiter.set_limits("child", [SLOTS])
        turns: list[str] = []

        def work(entity_id: str) -> None:
            for _ in range(5):
                with limiter.acquire(entity_id, "r", {"x": 1}, max_wait=PATIENCE_SECONDS):
                    turns.append(entity_id)

        threads = [threading.Thread(target=work, args=(who,)) for who in ("parent", "child", "parent", "child")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert len(turns) == 20


# PostgreSQL


def test_behind_pgbouncer_only_a_direct_connection_listens(
    postgres_server: PostgresServer, pgbouncer: PgBouncer
) -> None:
    emptied(postgres_server)
    disconnected: Any = open_store(pgbouncer.url, 5.0)
    subscription = disconnected.notifications.subscribe("l", lambda: None)
    eventually(lambda: not [thread for thread in threading.enumerate() if "notifications" in thread.name], "it gave up")
    assert not subscription.active
    assert not postgres_server.execute(LISTENERS), "no session of others holds a lock of ours"
    disconnected.close()
    direct: Any = open_store(f"{pgbouncer.url}?listen={postgres_server.url}", 5.0)
    direct.notifications.subscribe("l", lambda: None)
    eventually(lambda: direct.notifications.listener, "it listens")
    direct.close()
    silent: Any = open_store(f"{postgres_server.url}?listen=0", 5.0)
    silent.notifications.subscribe("l", lambda: None)
    eventually(lambda: not [thread for thread in threading.enumerate() if "notifications" in thread.name], "it gave up")
    assert not silent.notifications.listener
    silent.close()


def test_a_client_of_the_functions_before_overtakes_and_is_notified(postgres_server: PostgresServer) -> None:
    """It knows no queue: its takes have no place, and it listens for slots that come free."""
    store = open_store(emptied(postgres_server), 10.0)
    assert passes(store, take("a"))
    assert not passes(store, take("b", PLACE_MS))
    with postgres_server.connect() as connection:
        place = "left(encode(sha256('n/e#r x'), 'hex'), 8)"
        connection.execute("""LISTEN "\"\"headgate\"\".slots" """)
        connection.execute(
            f"""SELECT pg_advisory_lock_shared(hashtext('"headgate".slots'), ('x' || {place})::bit(32)::integer)"""
        )
        give_back(store, take("a"))
        assert list(connection.notifies(timeout=PATIENCE_SECONDS, stop_after=1))
    asked = "ARRAY[0, 1, 0, 0, 1000, 1, 1, 1, 1000, 0, 3600000, 1000, 0]::bigint[]"
    reply = postgres_server.execute(
        f"SELECT headgate.settle(NULL, 0, 1000, true, ARRAY['n/e#r'], ARRAY['x'], {asked}, ARRAY['old'])"
    )
    assert reply[0][0][0] == 1
    store.close()
