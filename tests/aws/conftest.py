"""Tables with a stream, for the tests of what runs beside the limiter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from aggregator_helpers import Play

from headgate.stores.dynamodb.table import STREAM, TABLE
from local_servers.dynamodb import Engine, Proxy

_numbers = count()


@contextmanager
def _table(engine: Engine) -> Iterator[Play]:
    name = f"stream-{next(_numbers)}"
    client = engine.client()
    try:
        client.create_table(TableName=name, **TABLE, StreamSpecification=STREAM)
        with Proxy(engine.endpoint_url) as proxy, Play(client, name, engine, proxy) as play:
            yield play
        client.delete_table(TableName=name)
    finally:
        client.close()


@pytest.fixture
def play(ministack: Engine, aws_credentials: str) -> Iterator[Play]:
    """A table of its own on ministack, and all that is needed to write to it and to count."""
    with _table(ministack) as made:
        yield made


@pytest.fixture(params=["ministack", "dynamodb_local"])
def each_play(request: pytest.FixtureRequest, aws_credentials: str) -> Iterator[Play]:
    """The same on every engine that has streams."""
    with _table(request.getfixturevalue(request.param)) as made:
        yield made


@pytest.fixture
def s3(ministack: Engine, aws_credentials: str) -> Iterator[Any]:
    client = ministack.client("s3")
    try:
        yield client
    finally:
        client.close()
