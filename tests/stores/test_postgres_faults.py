"""A PostgreSQL server that dies, hangs, hangs up or locks: nothing is sold twice, and nobody waits for too long."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from postgres_helpers import emptied, race, set_up
from redis_helpers import FAR_TOO_LONG_SECONDS, Load, both_kinds, fixed, opened, patiently, take_all

from headgate import Limit, RateLimiterUnavailable, StoreRefused, SyncRateLimiter
from headgate.core.decide import TAKE, Part, Request
from headgate.stores import open_async_store, open_store
from headgate.stores.postgres.wire import PostgresBatch
from headgate.testing.servers.process import eventually
from local_servers.postgres import PostgresServer

PLENTY = fixed(100_000)


@contextmanager
def row_lock(server: PostgresServer, where: str = "true") -> Iterator[None]:
    """Somebody else has locked rows, and does not let go."""
    with server.connect() as connection, connection.transaction():
        connection.execute(f"SELECT 1 FROM headgate.buckets WHERE {where} FOR UPDATE".encode())
        yield


@pytest.fixture(scope="module")
def victim(postgres_installed: None) -> Iterator[PostgresServer]:
    """One for the tests of this file, to be killed and paused, and left running."""
    with PostgresServer() as server:
        set_up(server.url)
        yield server


def cut(server: PostgresServer) -> None:
    others = "query LIKE '%headgate%' AND pid <> pg_backend_pid()"
    server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")


def sessions(server: PostgresServer) -> int:
    return int(server.execute("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%headgate%'")[0][0])


@both_kinds
def test_killed_under_load_it_comes_back_with_what_was_taken(victim: PostgresServer, kind: str) -> None:
    """Whatever was admitted is still taken: a commit is on its way to the disk before it is answered."""
    server = victim
    emptied(server)
    wishes = [(f"e{number}", "r", {"n": 1}, [PLENTY]) for number in range(2)]
    with Load(kind, server.url, wishes, store_timeout=2.0) as load:
        load.goes_on()
        for _ in range(2):
            server.kill()
            load.gets_no_answer(3)
            server.start()
            load.goes_on()
    with opened(kind, server.url) as limiter:
        for entity_id, admitted in load.admitted.items():
            left = limiter.available(entity_id, "r", [PLENTY])["n"]
            # What got no answer may have been taken or not.
            assert admitted <= PLENTY.capacity - left <= admitted + len(load.unavailable) + 4 * 3


@both_kinds
def test_cut_connections_are_made_anew(postgres_server: PostgresServer, kind: str) -> None:
    url = emptied(postgres_server)
    with Load(kind, url, [("e", "r", {"n": 1}, [PLENTY])]) as load:
        for _ in range(5):
            load.goes_on(10)
            cut(postgres_server)
        load.goes_on(10)
    assert not load.unavailable, "a take may be sent again"


@both_kinds
def test_a_connection_that_was_cut_at_rest_is_not_used(postgres_server: PostgresServer, kind: str) -> None:
    """Slots are never asked for twice, so that nothing may be sent where nobody hears it."""
    limit = Limit.concurrent("x", 2)
    with opened(kind, emptied(postgres_server)) as limiter:
        for _ in range(3):
            with limiter.acquire("e", "r", {"x": 1}, [limit]):
                pass
            cut(postgres_server)
            eventually(lambda: sessions(postgres_server) <= 1, "the sessions are gone")
            time.sleep(0.05)  # the news travels
        assert limiter.available("e", "r", [limit]) == {"x": 2}


@both_kinds
def test_a_lock_held_by_another_ends_the_call_in_time(postgres_server: PostgresServer, kind: str) -> None:
    limit = fixed(10)
    with opened(kind, emptied(postgres_server), store_timeout=0.5) as limiter:
        assert patiently(lambda: limiter.try_acquire("e", "r", {"n": 1}, [limit]))
        with row_lock(postgres_server):
            began = time.monotonic()
            with pytest.raises(RateLimiterUnavailable, match="lock"):
                limiter.try_acquire("e", "r", {"n": 1}, [limit])
            assert time.monotonic() - began < FAR_TOO_LONG_SECONDS
            assert patiently(lambda: limiter.try_acquire("another", "r", {"n": 1}, [limit]))
        assert patiently(lambda: take_all(limiter, "e", limit)) == 9, "the one that gave up has taken nothing"


@both_kinds
def test_a_server_that_hangs_ends_the_call_in_time(victim: PostgresServer, kind: str) -> None:
    limit = fixed(10)
    with opened(kind, emptied(victim), store_timeout=0.5) as limiter:
        assert patiently(lambda: limiter.try_acquire("e", "r", {"n": 1}, [limit]))
        victim.pause()
        began = time.monotonic()
        with pytest.raises(RateLimiterUnavailable):
            limiter.try_acquire("e", "r", {"n": 1}, [limit])
        assert time.monotonic() - began < FAR_TOO_LONG_SECONDS
        victim.resume()
        assert patiently(lambda: limiter.try_acquire("e", "r", {"n": 1}, [limit]))


def test_a_full_pool_says_so_in_time(postgres_server: PostgresServer) -> None:
    store = open_store(f"{emptied(postgres_server)}?pool=2", 0.5)
    pool = store._wire  # type: ignore[attr-defined]
    store.ping()
    lines = [pool.take(time.monotonic() + 5) for _ in range(2)]
    with pytest.raises(RateLimiterUnavailable, match="all 2 connections to PostgreSQL are in use"):
        store.ping()
    for line in lines:
        pool.give(line)
    store.ping()
    store.close()


def test_a_full_pool_of_coroutines_says_so_in_time(postgres_server: PostgresServer) -> None:
    async def main() -> None:
        store: Any = open_async_store(f"{emptied(postgres_server)}?pool=2", 0.5)
        await store.ping()
        lines = [await store._wire.take(time.monotonic() + 5) for _ in range(2)]
        with pytest.raises(RateLimiterUnavailable, match="all 2 connections to PostgreSQL are in use"):
            await store.ping()
        waiting = [asyncio.create_task(store.ping()) for _ in range(4)]
        await asyncio.sleep(0)
        waiting[0].cancel()  # the one whose turn is next
        store._wire.give(lines[0])
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.gather(*waiting[2:])
        await asyncio.gather(*waiting, return_exceptions=True)
        assert [task.cancelled() for task in waiting] == [True, True, False, False]
        store._wire.give(lines[1])
        await store.close()

    asyncio.run(main())


def test_a_server_that_takes_no_more_connections(victim: PostgresServer) -> None:
    emptied(victim)
    victim.execute("DROP ROLE IF EXISTS lone")
    victim.execute("CREATE ROLE lone LOGIN SUPERUSER CONNECTION LIMIT 0")
    victim.execute("ALTER ROLE lone NOSUPERUSER")
    with SyncRateLimiter(victim.url_of("lone")) as limiter:
        with pytest.raises(RateLimiterUnavailable, match="too many connections"):
            limiter.try_acquire("e", "r", {"n": 1}, [fixed(10)])
        victim.execute("ALTER ROLE lone SUPERUSER")
        assert patiently(lambda: limiter.try_acquire("e", "r", {"n": 1}, [fixed(10)]))


@pytest.fixture
def guarded(victim: PostgresServer) -> Iterator[PostgresServer]:
    """It wants a password of the role `guarded`."""
    victim.execute("CREATE ROLE guarded LOGIN PASSWORD 's3cret'")
    victim.execute("CREATE ROLE barred NOLOGIN")
    hba = victim.folder / "data" / "pg_hba.conf"
    trusted = hba.read_text()
    hba.write_text(f"host all guarded 127.0.0.1/32 scram-sha-256\n{trusted}")
    victim.execute("SELECT pg_reload_conf()")
    yield victim
    hba.write_text(trusted)
    victim.execute("SELECT pg_reload_conf()")
    victim.execute("DROP ROLE guarded")
    victim.execute("DROP ROLE barred")


@both_kinds
@pytest.mark.parametrize(
    ("login", "database", "told"),
    [
        ("guarded:other", "postgres", "password authentication failed"),
        ("guarded", "postgres", "no password supplied"),
        ("nobody", "postgres", 'role "nobody" does not exist'),
        ("barred", "postgres", "not permitted to log in"),
        ("headgate", "elsewhere", 'database "elsewhere" does not exist'),
    ],
    ids=["wrong password", "no password", "unknown role", "role without login", "unknown database"],
)
def test_server_that_rejects_headgate_is_an_error_under_every_outage_policy(
    guarded: PostgresServer, kind: str, login: str, database: str, told: str
) -> None:
    with opened(kind, f"postgresql://{login}@127.0.0.1:{guarded.port}/{database}") as limiter:
        for on_unavailable in ("block", "allow", "local"):
            for _ in range(3):  # more in all than it takes to open the breaker
                with pytest.raises(StoreRefused, match=told):
                    limiter.try_acquire("e", "r", {"n": 1}, [fixed(10)], on_unavailable=on_unavailable)
        assert limiter.breaker_state == "closed"


def test_refused_connection_is_unavailable() -> None:
    refused = pytest.raises(RateLimiterUnavailable, match=r"cannot be reached.*refused")
    with SyncRateLimiter("postgresql://headgate@127.0.0.1:9/postgres") as limiter, refused:
        limiter.try_acquire("e", "r", {"n": 1}, [fixed(10)])


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_a_database_that_is_stricter_than_need_be(victim: PostgresServer, level: str) -> None:
    """Then the server aborts calls for the sake of others, and they are made again."""
    server = victim
    emptied(server)
    server.execute(f"ALTER DATABASE postgres SET default_transaction_isolation = '{level}'")
    limit = fixed(60)
    stores = [open_store(server.url, 10.0) for _ in range(3)]
    admitted = race([partial(take_in_turn, store, limit, 40) for store in stores])
    assert sum(admitted) == 60
    server.execute("ALTER DATABASE postgres RESET default_transaction_isolation")
    for store in stores:
        store.close()


def take_in_turn(store: Any, limit: Limit, times: int) -> int:
    request = Request(TAKE, ("n/e#r",), (Part(0, limit, 1000),))
    return sum(store.settle([request], None)[0].allowed for _ in range(times))


def test_a_forked_child_has_connections_of_its_own(postgres_server: PostgresServer) -> None:
    """It neither uses those of its parent nor closes them."""
    limit = fixed(10)
    store = open_store(emptied(postgres_server), 10.0)
    assert take_in_turn(store, limit, 2) == 2
    pid = os.fork()
    if not pid:
        os._exit(take_in_turn(store, limit, 3))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    (line,) = store._wire._resting  # type: ignore[attr-defined]
    assert take_in_turn(store, limit, 9) == 5
    assert list(store._wire._resting) == [line]  # type: ignore[attr-defined]
    store.close()


def test_a_refusal_does_not_wait_for_the_disk(postgres_server: PostgresServer) -> None:
    """To lock a row is to write it, and a commit waits for that, unless it is told not to."""
    limit = fixed(1)
    store = open_store(emptied(postgres_server), 10.0)
    assert take_in_turn(store, limit, 1) == 1
    both = Request(TAKE, ("n/e#r",), (Part(0, limit, 1000), Part(0, fixed(5, "m"), 1000)))
    store.settle([both], None)
    plans: Any = store._plans  # type: ignore[attr-defined]
    for request in (Request(TAKE, ("n/e#r",), (Part(0, limit, 1000),)), both):
        ask = plans.settling(PostgresBatch([request], "", 0), None, 1000)
        with postgres_server.connect() as connection, connection.transaction():
            query = re.sub(rb"\$\d+", b"%s", ask.statement.sql)
            texts = [value and value.decode() for value in ask.parameters]
            connection.execute(query, texts)
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)
    store.close()
