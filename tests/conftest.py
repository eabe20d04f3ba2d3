"""Redis servers for the tests, started when the first test asks for one; under xdist each worker has its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from headgate.testing.servers.redis import (
    NotInstalledError,
    RedisCluster,
    RedisSentinel,
    RedisServer,
    redis_server_binary,
)


@pytest.fixture(scope="session")
def redis_installed() -> None:
    if os.environ.get("HEADGATE_SKIP_REDIS") == "1":
        pytest.skip("HEADGATE_SKIP_REDIS=1")
    missing = None
    try:
        redis_server_binary()
    except NotInstalledError as error:
        missing = error
    if missing:
        pytest.fail(f"{missing}; or set HEADGATE_SKIP_REDIS=1 to do without these tests", pytrace=False)


@pytest.fixture(scope="session")
def faketime_installed() -> None:
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not installed")


@pytest.fixture(scope="session")
def openssl_installed() -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")


@pytest.fixture(scope="session")
def redis_server(redis_installed: None) -> Iterator[RedisServer]:
    """One for all tests: use keys of your own, and leave it running."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster(redis_installed: None) -> Iterator[RedisCluster]:
    """One for all tests: three masters, no replicas. Leave every node running."""
    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def tls_redis_server(redis_installed: None, openssl_installed: None) -> Iterator[RedisServer]:
    """One for all tests that talk to it encrypted."""
    with RedisServer(tls=True) as server:
        yield server


@pytest.fixture(scope="module")
def redis_sentinel(redis_installed: None) -> Iterator[RedisSentinel]:
    """One for the tests of a file, which may fail over as they like."""
    with RedisSentinel() as sentinel:
        yield sentinel


@pytest.fixture
def own_redis_server(redis_installed: None) -> Iterator[RedisServer]:
    """One for a test alone, to be killed, paused and filled up."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def stepped_redis_server(redis_installed: None, faketime_installed: None) -> Iterator[RedisServer]:
    """One for a test alone, with a clock that can be stepped."""
    with RedisServer(faketime=True) as server:
        yield server
