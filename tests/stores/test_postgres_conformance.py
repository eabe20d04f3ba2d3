"""The suite, over PostgreSQL."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from postgres_helpers import emptied

from headgate.testing.conformance import StoreConformance
from headgate.testing.conformance.acquire import AcquireConformance
from headgate.testing.conformance.changing_limits import ChangingLimitConformance
from headgate.testing.conformance.concurrency import ConcurrencyConformance
from headgate.testing.conformance.leases import LeaseConformance
from headgate.testing.conformance.slot_queue import SlotQueueConformance
from headgate.testing.conformance.slots import SlotConformance
from headgate.testing.conformance.vectors import VectorConformance
from headgate.testing.conformance.waiting import WaitingConformance
from headgate.testing.conformance.zero_amounts import ZeroAmountConformance
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


class TestPostgres(Postgres, StoreConformance):
    @pytest.fixture(params=["async"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


class TestPostgresBlocking(
    Postgres,
    VectorConformance,
    AcquireConformance,
    ChangingLimitConformance,
    ZeroAmountConformance,
    LeaseConformance,
    WaitingConformance,
    SlotConformance,
    SlotQueueConformance,
    ConcurrencyConformance,
):
    """The other transport, on what depends on it. What both carry is made by the same plans."""

    @pytest.fixture(params=["sync"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)
