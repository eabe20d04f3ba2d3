"""The suite, over every store."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from conformance_parts import OF_THE_STORE, LimiterElsewhere, Tasks, Threads, ThreadsOnly, Transport
from headgate.stores import open_store
from headgate.testing.conformance import StoreConformance
from headgate.testing.conformance.changing_limits import ChangingLimitConformance
from headgate.testing.conformance.concurrency import ConcurrencyConformance
from headgate.testing.conformance.hierarchy import HierarchyConformance
from headgate.testing.conformance.leases import LeaseConformance
from headgate.testing.conformance.quotas import QuotaConformance
from headgate.testing.conformance.slot_queue import SlotQueueConformance
from headgate.testing.conformance.vectors import VectorConformance
from headgate.testing.conformance.waiting import WaitingConformance
from headgate.testing.servers.redis import RedisCluster, RedisServer
from local_servers.dynamodb import Engine

BUSY: dict[str, Any] = {"store_timeout": 5.0}  # what a server on a busy machine may take


def names_in(suite: type) -> set[str]:
    return {name for name in vars(suite) if name.startswith("test_")}


def test_no_part_of_the_suite_hides_a_test_of_another() -> None:
    names = [name for suite in StoreConformance.__bases__ for name in names_in(suite)]
    assert sorted(names) == sorted(set(names))


def test_every_test_that_is_left_out_somewhere_exists() -> None:
    left_out = names_in(LimiterElsewhere) | names_in(ThreadsOnly) | names_in(DynamoDB) | OF_THE_STORE
    assert {name for name in left_out if not hasattr(StoreConformance, name)} == set()


class TestMemory(StoreConformance):
    @pytest.fixture
    def url(self) -> str:
        return f"memory://{uuid.uuid4().hex}"


class Sqlite:
    histories = 20
    sequences = 20

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/headgate.db"


class TestSqlite(ThreadsOnly, Threads, Sqlite, LimiterElsewhere, StoreConformance):
    pass


class TestSqliteTasks(
    Tasks, Sqlite, LeaseConformance, WaitingConformance, SlotQueueConformance, ConcurrencyConformance
):
    """The same store, run in threads for coroutines."""


class Redis:
    settings = BUSY
    looks_every = 5
    histories = 20
    sequences = 20
    scenarios_every = 4  # memory and SQLite play them all, and the script is held to core by a property

    @pytest.fixture
    def url(self, redis_server: RedisServer) -> str:
        with redis_server.client() as client:
            client.flushdb()
        return redis_server.url


class TestRedis(Tasks, Redis, StoreConformance):
    """With what the limiter alone decides, as the one server."""


class TestRedisBlocking(Threads, Redis, Transport):
    pass


class Cluster:
    """Every entity in a slot of its own, so that every cascade is one across slots. The script is a single server's."""

    settings = BUSY
    scenarios_every = 4
    histories = 10
    sequences = 5
    turns = 60
    looks_every = 5

    @pytest.fixture
    def url(self, redis_cluster: RedisCluster) -> str:
        for server in redis_cluster.servers:
            with server.client() as client:
                client.flushdb()
        return redis_cluster.url


class TestRedisCluster(Tasks, Cluster, LimiterElsewhere, StoreConformance):
    pass


class TestRedisClusterBlocking(
    ThreadsOnly, Threads, Cluster, HierarchyConformance, LeaseConformance, ConcurrencyConformance
):
    """The other transport, on what depends on it."""


class DynamoDB:
    """A table for each test."""

    settings = BUSY
    histories = 5
    sequences = 5
    turns = 60
    scenarios_every = quota_scenarios_every = 10
    looks_every = 10  # a step is a request, and a request two milliseconds of botocore
    more_than_a_page = 110
    # An event loop that closes cancels the tasks of the HTTP client too, and then what was sent is in doubt.
    test_an_event_loop_that_ends_amid_releases = None
    test_cancelled_acquires_leave_nothing_taken_when_the_event_loop_ends_at_once = None

    @pytest.fixture
    def url(self, ministack: Engine, aws_credentials: str) -> str:
        url = ministack.url(f"t{uuid.uuid4().hex}")
        set_up(url)
        return url


class TestDynamoDB(Tasks, DynamoDB, LimiterElsewhere, StoreConformance):
    pass


class TestDynamoDBBlocking(
    ThreadsOnly,
    Threads,
    DynamoDB,
    VectorConformance,
    QuotaConformance,
    ChangingLimitConformance,
    LeaseConformance,
    ConcurrencyConformance,
):
    """The other transport, on what depends on it. What both carry is made by the same plans."""

    scenarios_every = quota_scenarios_every = 12


def set_up(url: str) -> None:
    store = open_store(url, 5.0)
    store.setup()
    store.close()
