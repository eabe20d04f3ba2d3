"""Set-up, versions, restricted roles, unlogged tables, and what the URL may say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from postgres_helpers import emptied, race

from headgate import Limit, SyncRateLimiter, ValidationError
from headgate.stores import open_async_store, open_store
from headgate.stores.health import examine, read_clock
from headgate.stores.postgres.exchange import in_schema
from headgate.stores.postgres.schema import FUNCTIONS, VERSION, setup_script
from headgate.stores.postgres.url import read_url
from local_servers.postgres import PostgresServer

RPM = [Limit.per_minute("rpm", 10)]
GRANTS = """
GRANT USAGE ON SCHEMA {schema} TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO app;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO app;
REVOKE INSERT, UPDATE, DELETE ON {schema}.version FROM app;
"""


@pytest.fixture
def schema(postgres_server: PostgresServer) -> Iterator[str]:
    """The name of one that is not there yet."""
    yield "fresh"
    postgres_server.execute("DROP SCHEMA IF EXISTS fresh CASCADE")


def setup(url: str) -> None:
    with closing(open_store(url, 10.0)) as store:
        store.setup()


def test_without_setup_it_says_what_to_do(postgres_server: PostgresServer, schema: str) -> None:
    missing = pytest.raises(ValidationError, match=r"schema 'fresh' of the database is not set up.*setup\(\)")
    with SyncRateLimiter(f"{postgres_server.url}?schema={schema}", store_timeout=20) as limiter, missing:
        limiter.try_acquire("e", "r", {"rpm": 1}, RPM)


def test_set_up_by_many_at_once(postgres_server: PostgresServer, schema: str) -> None:
    url = f"{postgres_server.url}?schema={schema}"
    race([partial(setup, url)] * 4)
    setup(url)
    assert postgres_server.execute("SELECT version FROM fresh.version") == [(VERSION,)]


def test_two_schemas_share_no_buckets(postgres_server: PostgresServer, schema: str) -> None:
    other = f"{postgres_server.url}?schema={schema}"
    setup(other)
    with SyncRateLimiter(emptied(postgres_server)) as one, SyncRateLimiter(other) as another:
        assert one.try_acquire("e", "r", {"rpm": 10}, RPM)
        assert another.try_acquire("e", "r", {"rpm": 10}, RPM)


def test_a_schema_of_another_version(postgres_server: PostgresServer, schema: str) -> None:
    url = f"{postgres_server.url}?schema={schema}"
    setup(url)
    postgres_server.execute(f"INSERT INTO fresh.version (version) VALUES ({VERSION + 1})")
    for what in ("ping", "setup"):
        with closing(open_store(url, 5.0)) as store, pytest.raises(ValidationError, match="upgrade headgate"):
            getattr(store, what)()
    postgres_server.execute("UPDATE fresh.version SET version = 0 WHERE version = 1")
    postgres_server.execute("DELETE FROM fresh.version WHERE version > 1")
    with closing(open_store(url, 5.0)) as store, pytest.raises(ValidationError, match="run `headgate setup`"):
        store.ping()


# The line of settle.sql that keeps what was used, and what it was in the functions of revision 1.
KEPT = "tokens := greatest(tokens + wanted_capacity - capacity, -DEBT); -- what was used stays used"
ADDED = "tokens := least(tokens + greatest(0, wanted_capacity - capacity), wanted_capacity);"


@pytest.fixture
def of_an_earlier_headgate(postgres_server: PostgresServer, schema: str) -> str:
    """The URL of a schema as it was before functions had a revision."""
    script = setup_script(schema, unlogged=None)
    assert KEPT in script
    with postgres_server.connect() as connection:
        connection.execute(in_schema(script.replace(KEPT, ADDED), schema).encode())
        connection.execute(f"ALTER TABLE {schema}.version DROP COLUMN functions".encode())
    return f"{postgres_server.url}?schema={schema}"


def admitted_in_turns(url: str) -> int:
    with SyncRateLimiter(url, store_timeout=20) as limiter:
        pair = [[Limit.per_day("x", 10)], [Limit.per_day("x", 20)]]
        return sum(bool(limiter.try_acquire("e", "r", {"x": 1}, limits)) for _ in range(30) for limits in pair)


def test_setup_replaces_the_functions_of_an_earlier_headgate(
    postgres_server: PostgresServer, of_an_earlier_headgate: str
) -> None:
    url = of_an_earlier_headgate
    with pytest.raises(ValidationError, match=r"functions of an earlier headgate.*run `headgate setup`"):
        admitted_in_turns(url)
    race([partial(setup, url)] * 3)
    assert admitted_in_turns(url) == 20
    # An earlier client asks only for this, and goes on with the functions there are.
    assert postgres_server.execute("SELECT max(version) FROM fresh.version") == [(VERSION,)]
    assert postgres_server.execute("SELECT functions FROM fresh.version") == [(FUNCTIONS,)]


def test_functions_of_a_later_headgate_are_used_and_kept(postgres_server: PostgresServer, schema: str) -> None:
    url = f"{postgres_server.url}?schema={schema}"
    setup(url)
    postgres_server.execute(f"UPDATE fresh.version SET functions = {FUNCTIONS + 1}")
    postgres_server.execute(
        "CREATE OR REPLACE FUNCTION fresh.clock(given_ms bigint) RETURNS bigint LANGUAGE sql VOLATILE AS"
        " 'SELECT coalesce(given_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) -- later'"
    )
    setup(url)
    with postgres_server.connect() as connection:  # one who has looked before the later one was there
        connection.execute(in_schema(setup_script(schema, unlogged=None), schema).encode())
    assert admitted_in_turns(url) == 20
    assert postgres_server.execute("SELECT functions FROM fresh.version") == [(FUNCTIONS + 1,)]
    ((body,),) = postgres_server.execute("SELECT prosrc FROM pg_proc WHERE oid = 'fresh.clock'::regproc")
    assert "later" in body


def test_a_role_that_may_do_nothing_else(postgres_server: PostgresServer, schema: str) -> None:
    setup(f"{postgres_server.url}?schema={schema}")
    postgres_server.execute("CREATE ROLE app LOGIN")
    url = f"{postgres_server.url_of('app')}?schema={schema}"
    try:
        with (
            SyncRateLimiter(url, store_timeout=20) as limiter,
            pytest.raises(ValidationError, match=r"permission denied.*grant"),
        ):
            limiter.try_acquire("e", "r", {"rpm": 1}, RPM)
        with postgres_server.connect() as connection:
            connection.execute(GRANTS.format(schema=schema).encode())
        with SyncRateLimiter(url, store_timeout=20) as limiter:
            use_everything(limiter)
        with closing(open_store(url, 5.0)) as store:
            store.setup()  # there is nothing to do
    finally:
        postgres_server.execute("DROP OWNED BY app")
        postgres_server.execute("DROP ROLE app")


def test_a_role_with_the_grants_of_before_may_use_the_queue_after_an_upgrade(
    postgres_server: PostgresServer, schema: str
) -> None:
    setup(f"{postgres_server.url}?schema={schema}")
    postgres_server.execute(f"DROP TABLE {schema}.waiting")
    postgres_server.execute(f"UPDATE {schema}.version SET functions = 2")
    postgres_server.execute("CREATE ROLE app LOGIN")
    try:
        with postgres_server.connect() as connection:
            connection.execute(GRANTS.format(schema=schema).encode())
        setup(f"{postgres_server.url}?schema={schema}")
        with SyncRateLimiter(f"{postgres_server.url_of('app')}?schema={schema}", store_timeout=20) as limiter:
            slots = [Limit.concurrent("x", 1)]
            with limiter.acquire("e", "r", {"x": 1}, slots):
                assert not limiter.try_acquire("e", "r", {"x": 1}, slots, max_wait=0.05)
            assert limiter.try_acquire("e", "r", {"x": 1}, slots)
    finally:
        postgres_server.execute("DROP OWNED BY app")
        postgres_server.execute("DROP ROLE app")


def use_everything(limiter: SyncRateLimiter) -> None:
    limiter.set_system_defaults(RPM)
    limiter.create_entity("e")
    assert limiter.try_acquire("e", "r", {"rpm": 1})
    with limiter.acquire("e", "r", {"x": 1}, [Limit.concurrent("x", 1)]):
        assert not limiter.try_acquire("e", "r", {"x": 1}, [Limit.concurrent("x", 1)])
    assert limiter.get_usage("e")
    assert limiter.get_buckets("e")
    limiter.reset("e", "r")
    limiter.reconcile()
    assert limiter.list_namespaces()


def test_setup_makes_tables_unlogged_and_logged_again(postgres_server: PostgresServer, schema: str) -> None:
    url = f"{postgres_server.url}?schema={schema}"
    query = (
        "SELECT DISTINCT relpersistence FROM pg_class WHERE oid IN ('fresh.buckets'::regclass, 'fresh.slots'::regclass)"
    )
    for option, kind in (("&unlogged=1", "u"), ("", "u"), ("&unlogged=0", "p"), ("&unlogged=1", "u")):
        setup(url + option)
        assert [row[0] for row in postgres_server.execute(query)] == [kind]
    (durability,) = (finding for finding in examine(url, 5.0) if finding.check == "durability")
    assert durability.verdict == "warn"


def test_the_doctor_is_told(postgres_server: PostgresServer) -> None:
    found = {finding.check: finding for finding in examine(emptied(postgres_server), 5.0)}
    assert found["server"].found.startswith("PostgreSQL ")
    assert {finding.verdict for finding in found.values()} == {"ok"}
    reading = read_clock(postgres_server.url, 5.0)
    assert reading is not None
    assert reading.earliest_ms > 1_700_000_000_000


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ("?schema=Bad-One", "schema='Bad-One'"),
        ("?pool=0", "pool='0'"),
        ("?unlogged=yes", "choose from 0, 1"),
        ("?prepare=yes", "choose from 0, 1"),
        ("?listen=yes", "listen is 0, 1, or"),
        ("?pool=1&pool=2", "given twice"),
        ("?nonsense=1", "nonsense"),
    ],
)
def test_bad_urls_are_refused_without_showing_the_password(rest: str, why: str) -> None:
    with pytest.raises(ValidationError) as raised:
        read_url(f"postgresql://user:hidden@host{rest}")
    assert why in str(raised.value)
    assert "hidden" not in str(raised.value)


def test_what_is_libpqs_goes_to_libpq() -> None:
    settings = read_url("postgres://u:p@a:1,b:2/db?schema=mine&sslmode=require&pool=3&application_name=my%20app")
    assert settings.conninfo == "postgres://u:p@a:1,b:2/db?sslmode=require&application_name=my%20app"
    assert (settings.schema, settings.pool, settings.prepare) == ("mine", 3, True)
    assert "p@" not in repr(settings)


def test_a_host_with_a_name(postgres_server: PostgresServer) -> None:
    async def main() -> None:
        store: Any = open_async_store(emptied(postgres_server).replace("127.0.0.1", "localhost"), 5.0)
        await store.ping()
        await store.close()

    asyncio.run(main())


def test_a_port_that_is_none() -> None:
    unusable = pytest.raises(ValidationError, match="notaport")
    with SyncRateLimiter("postgresql://user@127.0.0.1:notaport/db") as limiter, unusable:
        limiter.try_acquire("e", "r", {"rpm": 1}, RPM)


@pytest.mark.parametrize("where", ["nobody@127.0.0.1", "headgate@127.0.0.1"])
def test_who_is_not_let_in_hears_why(postgres_server: PostgresServer, where: str) -> None:
    url = f"postgresql://{where}:{postgres_server.port}/nowhere"
    with SyncRateLimiter(url, store_timeout=20) as limiter, pytest.raises(ValidationError, match="does not exist"):
        limiter.try_acquire("e", "r", {"rpm": 1}, RPM)
