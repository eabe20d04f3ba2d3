"""The suite, over PostgreSQL."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from postgres_helpers import emptied

from conformance_parts import LimiterElsewhere, Tasks, Threads, Transport
from headgate.testing.conformance import StoreConformance
from local_servers.postgres import PostgresServer


class Postgres:
    """One schema, emptied for each test."""

    settings: ClassVar[dict[str, Any]] = {"store_timeout": 5.0}  # what a server on a busy machine may take
    scenarios_every = 6
    histories = 10
    sequences = 15
    turns = 200
    looks_every = 5

    @pytest.fixture
    def url(self, postgres_server: PostgresServer) -> str:
        return emptied(postgres_server)


class TestPostgres(Tasks, Postgres, LimiterElsewhere, StoreConformance):
    pass


class TestPostgresBlocking(Threads, Postgres, Transport):
    pass
