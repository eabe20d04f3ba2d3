from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from stub_vendor import StubVendor

_numbers = itertools.count()


@pytest.fixture(scope="session")
def vendor() -> Iterator[StubVendor]:
    with StubVendor() as vendor:
        yield vendor


@pytest.fixture
def url() -> str:
    """A store of the test's own, that several limiters can share."""
    return f"memory://clients-{next(_numbers)}"
