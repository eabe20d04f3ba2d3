"""Slots that are given back in another process are heard of; where they cannot be, everybody knows."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from postgres_helpers import emptied

from headgate import Limit
from headgate.core.decide import TAKE, Part, Request, refund
from headgate.limiter.line import UNHEARD
from headgate.stores import Store, open_async_store, open_store
from headgate.stores.postgres.ears import hashed
from headgate.testing.driver import DRIVERS
from headgate.testing.servers.postgres import PgBouncer, PostgresServer
from headgate.testing.servers.process import PATIENCE_SECONDS, eventually

SLOTS = Limit.concurrent("x", 1, 3600)
KEY = "n/e#r"
PLACE = (KEY, "x")
REQUEST = Request(TAKE, (KEY,), (Part(0, SLOTS, 1000),), lease_id="l1")
OTHER = REQUEST._replace(keys=("n/other#r",))


def give_and_take(store: Store, request: Request = REQUEST) -> None:
    assert store.settle([request], None)[0].allowed
    store.settle([refund(request)], None)


def listeners(server: PostgresServer) -> int:
    return int(server.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'")[0][0])


def test_what_is_given_back_elsewhere_is_heard_of(postgres_server: PostgresServer) -> None:
    url = emptied(postgres_server)
    here: Any = open_store(url, 5.0)
    elsewhere = open_store(url, 5.0)
    bell = threading.Event()
    ear = here.hear([PLACE], bell.set)
    eventually(lambda: ear.hears, "it listens")
    assert bell.wait(PATIENCE_SECONDS), "what was given back before is not heard of: one asks again"
    for _ in range(3):
        bell.clear()
        give_and_take(elsewhere, OTHER)
        assert not bell.is_set()
        give_and_take(elsewhere)
        assert bell.wait(PATIENCE_SECONDS)
    ear.close()
    here.hear([("n/other#r", "x")], bell.set)
    eventually(lambda: listeners(postgres_server) == 1, "it holds one lock, and no longer the other")
    here.close()
    eventually(lambda: listeners(postgres_server) == 0, "the session is gone")
    elsewhere.close()


def test_nobody_is_notified_for_nothing(postgres_server: PostgresServer) -> None:
    store = open_store(emptied(postgres_server), 5.0)
    with postgres_server.connect() as connection:
        connection.execute("""LISTEN "\"\"headgate\"\".slots" """)
        give_and_take(store)
        connection.execute("SELECT 1")
        assert not list(connection.notifies(timeout=0.05))
    store.close()


def test_a_task_hears_in_its_event_loop(postgres_server: PostgresServer) -> None:
    url = emptied(postgres_server)

    async def main() -> None:
        store: Any = open_async_store(url, 5.0)
        elsewhere: Any = open_async_store(url, 5.0)
        bell = asyncio.Event()
        ear = store.hear([PLACE], bell.set)
        await asyncio.wait_for(bell.wait(), PATIENCE_SECONDS)
        bell.clear()
        assert (await elsewhere.settle([REQUEST], None))[0].allowed
        await elsewhere.settle([refund(REQUEST)], None)
        await asyncio.wait_for(bell.wait(), PATIENCE_SECONDS)
        ear.close()
        await store.close()
        await elsewhere.close()

    asyncio.run(main())


def test_a_lost_session_is_made_anew(postgres_server: PostgresServer) -> None:
    store: Any = open_store(emptied(postgres_server), 5.0)
    bell = threading.Event()
    ear = store.hear([PLACE], bell.set)
    assert bell.wait(PATIENCE_SECONDS)
    bell.clear()
    postgres_server.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
    assert bell.wait(PATIENCE_SECONDS), "it listens again, and asks what it has missed"
    assert ear.hears
    store.close()


def test_behind_pgbouncer_only_a_direct_connection_hears(postgres_server: PostgresServer, pgbouncer: PgBouncer) -> None:
    emptied(postgres_server)
    deaf: Any = open_store(pgbouncer.url, 5.0)
    ear = deaf.hear([PLACE], lambda: None)
    eventually(lambda: not [thread for thread in threading.enumerate() if "hearing" in thread.name], "it gave up")
    assert not ear.hears
    assert listeners(postgres_server) == 0, "no session of others holds a lock of ours"
    deaf.close()
    hearing: Any = open_store(f"{pgbouncer.url}?listen={postgres_server.url}", 5.0)
    ear = hearing.hear([PLACE], lambda: None)
    eventually(lambda: ear.hears, "it listens")
    hearing.close()
    silent: Any = open_store(f"{postgres_server.url}?listen=0", 5.0)
    assert not silent.hear([PLACE], lambda: None).hears
    silent.close()


def test_places_are_hashed() -> None:
    assert KEY not in hashed(PLACE)


class Calls:
    """To the store."""

    count = 0

    def decided(self, entity_id: str, resource: str, outcome: str, seconds: float) -> None:
        pass

    def settled(self, requests: int, seconds: float, ok: bool) -> None:
        self.count += 1


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_whoever_waits_asks_when_there_is_news(postgres_server: PostgresServer, kind: str) -> None:
    """And not every quarter of a second."""
    url = emptied(postgres_server)
    holder, waiter = DRIVERS["sync"](url, store_timeout=10.0), DRIVERS[kind](url, store_timeout=10.0)
    wish: Any = ("e", "r", {"x": 1}, [SLOTS])
    lease = holder.try_acquire(*wish).lease
    waiter.available("e", "r", [SLOTS])
    calls, decisions = Calls(), []
    waiter.watch(calls)
    began = time.monotonic()
    thread = threading.Thread(target=lambda: decisions.append(waiter.try_acquire(*wish, max_wait=PATIENCE_SECONDS)))
    thread.start()
    eventually(lambda: listeners(postgres_server) == 1, "it listens")
    time.sleep(1)  # in which one who does not hear would ask four times at least
    lease.commit()
    thread.join(PATIENCE_SECONDS)
    assert decisions[0]
    assert calls.count <= 3 + (time.monotonic() - began) / UNHEARD
    decisions[0].lease.commit()
    for driver in (holder, waiter):
        driver.shut()
