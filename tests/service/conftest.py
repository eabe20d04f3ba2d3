"""One service for all tests of a worker, in memory, with tokens and rules."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest
from service_process import RULES, TOKENS, Api, ServeProcess, tokens_file

_numbers = itertools.count()


@pytest.fixture(scope="session")
def service() -> Iterator[ServeProcess]:
    with ServeProcess("--url", "memory://", "--rules", "rules.yaml", "--tokens", "tokens.yaml") as process:
        process.write("rules.yaml", RULES)
        process.write("tokens.yaml", tokens_file())
        yield process.start()


@pytest.fixture(scope="session")
def api(service: ServeProcess) -> Iterator[Api]:
    """As somebody who may do everything."""
    with service.client(TOKENS["admin"]) as client:
        yield Api(client)


@pytest.fixture
def entity() -> str:
    """One that nobody has used."""
    return f"e{os.getpid()}-{next(_numbers)}"
