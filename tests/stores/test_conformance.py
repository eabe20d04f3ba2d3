"""The suite, over every store."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headgate.stores import open_store
from headgate.testing.conformance import StoreConformance
from headgate.testing.servers.dynamodb import Engine
from headgate.testing.servers.redis import RedisCluster, RedisServer


class TestMemory(StoreConformance):
    @pytest.fixture
    def url(self) -> str:
        return f"memory://{uuid.uuid4().hex}"


class TestSqlite(StoreConformance):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/headgate.db"


class TestRedis(StoreConformance):
    @pytest.fixture
    def url(self, redis_server: RedisServer) -> str:
        with redis_server.client() as client:
            client.flushdb()
        return redis_server.url


class TestRedisCluster(StoreConformance):
    """Every entity in a slot of its own, so that every cascade is one across slots."""

    @pytest.fixture
    def url(self, redis_cluster: RedisCluster) -> str:
        for server in redis_cluster.servers:
            with server.client() as client:
                client.flushdb()
        return redis_cluster.url


class TestDynamoDB(StoreConformance):
    """A table for each test."""

    settings: ClassVar[dict[str, Any]] = {"store_timeout": 5.0}  # of an engine on a busy machine
    histories = 8
    looks_every = 10  # a step is a request, and a request two milliseconds of botocore

    @pytest.fixture
    def url(self, ministack: Engine, aws_credentials: str) -> str:
        url = ministack.url(f"t{uuid.uuid4().hex}")
        set_up(url)
        return url


def set_up(url: str) -> None:
    store = open_store(url, 5.0)
    store.setup()
    store.close()
