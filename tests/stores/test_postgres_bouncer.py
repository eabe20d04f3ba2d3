"""Behind the real PgBouncer in transaction mode, where one connection is now this and now that session."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from postgres_helpers import emptied
from redis_helpers import Load, both_kinds, fixed, opened

from headgate.stores import open_store
from headgate.testing.conformance.acquire import AcquireConformance
from headgate.testing.conformance.concurrency import ConcurrencyConformance
from headgate.testing.conformance.records import RecordConformance
from headgate.testing.conformance.slots import SlotConformance
from local_servers.postgres import PgBouncer, PostgresServer


class TestBehindPgBouncer(AcquireConformance, SlotConformance, ConcurrencyConformance, RecordConformance):
    settings: ClassVar[dict[str, Any]] = {"store_timeout": 5.0}

    @pytest.fixture(params=["async"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def url(self, postgres_server: PostgresServer, pgbouncer: PgBouncer) -> str:
        emptied(postgres_server)
        return pgbouncer.url


@both_kinds
def test_a_load_takes_exactly_what_it_is_given(
    postgres_server: PostgresServer, pgbouncer: PgBouncer, kind: str
) -> None:
    """More connections than the server has sessions for them, some with prepared statements that others do not have."""
    emptied(postgres_server)
    limit = fixed(10_000)
    with Load(kind, pgbouncer.url, [("e", "r", {"n": 1}, [limit])], callers=12, coalesce=False) as load:
        load.goes_on(200)
    assert not load.unavailable
    with opened(kind, postgres_server.url) as limiter:
        assert limiter.available("e", "r", [limit]) == {"n": 10_000 - load.admitted["e"]}


def test_setup_works_through_pgbouncer(postgres_server: PostgresServer, pgbouncer: PgBouncer) -> None:
    store = open_store(f"{pgbouncer.url}?schema=through", 5.0)
    store.setup()
    store.ping()
    store.close()
    postgres_server.execute("DROP SCHEMA through CASCADE")
