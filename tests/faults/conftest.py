"""The stores on which things go wrong."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from fault_helpers import LONG_ENOUGH, Place

from headgate import SyncRateLimiter


@pytest.fixture(params=["sqlite", "redis", "postgres", "dynamodb"])
def store(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def place(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    namespace = uuid4().hex[:12]
    if store == "sqlite":
        return Place(f"sqlite:///{tmp_path / 'faults.db'}", namespace)
    if store in ("redis", "postgres"):
        return Place(request.getfixturevalue(f"{store}_server").url, namespace)
    request.getfixturevalue("aws_credentials")
    url: str = request.getfixturevalue("ministack").url(f"faults-{uuid4().hex}")
    with SyncRateLimiter(url, store_timeout=LONG_ENOUGH) as limiter:
        limiter.setup()
    return Place(url, namespace)
