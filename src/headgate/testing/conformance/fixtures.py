"""What every part of the suite starts from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from ...core.limit import Limit
from ..clock import ManualClock
from ..driver import DRIVERS

START_MS = 1_700_000_000_000
RPM = Limit.per_minute("rpm", 60)
TPM = Limit.per_minute("tpm", 1000, burst=1500)


class Conformance:
    settings: ClassVar[dict[str, Any]] = {}  # of every limiter that is opened
    looks_every: ClassVar[int] = 1  # of how many steps one is followed by a look at everything

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError("give the suite a url fixture: a fresh, empty store for each test")

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock(START_MS)

    @pytest.fixture(params=["sync", "async"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def open_limiter(self, url: str, kind: str, clock: ManualClock) -> Iterator[Callable[..., Any]]:
        """Open one more limiter on the same store; it shares the clock unless told otherwise."""
        opened = []

        def open_one(**settings: Any) -> Any:
            opened.append(DRIVERS[kind](url, **({"clock": clock} | self.settings | settings)))
            return opened[-1]

        yield open_one
        for driver in opened:
            driver.shut()

    @pytest.fixture
    def limiter(self, open_limiter: Callable[..., Any]) -> Any:
        return open_limiter()
