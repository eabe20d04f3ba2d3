"""One dashboard for all tests of a worker, in memory, and somebody at it for each token."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
from dashboard_site import TOKENS, Site, started
from service_process import ServeProcess

_numbers = itertools.count()


@pytest.fixture
def entity() -> str:
    """One that nobody has used, and whose id is not the same in an address."""
    return f"tenant:{os.getpid()}@{next(_numbers)}"


@pytest.fixture(scope="session")
def served() -> Iterator[ServeProcess]:
    with started() as process:
        yield process


@pytest.fixture(scope="session")
def boss(served: ServeProcess) -> Iterator[Site]:
    """Who may do everything."""
    with Site(served.url, TOKENS["boss"]) as site:
        yield site


@pytest.fixture(scope="session")
def reader(served: ServeProcess) -> Iterator[Site]:
    with Site(served.url, TOKENS["reader"]) as site:
        yield site


@pytest.fixture(scope="session")
def read_only_served() -> Iterator[ServeProcess]:
    with started("--read-only") as process:
        yield process
