"""Connecting, and waiting for it."""

from __future__ import annotations

import time

from ...core.errors import RateLimiterUnavailable
from .driver import DriverError, Line, wait_for
from .exchange import Reply


def connect(conninfo: str, deadline: float, timeout_ms: int) -> Line:
    """`timeout_ms`: how long a statement may take in the server."""
    line = Line(conninfo)
    try:
        while (what := line.connects()) is not None:
            _wait(line, deadline, write=what == "write")
        for _ in line.greetings(timeout_ms):
            _receive(line, deadline)
    except DriverError as error:
        line.close()
        raise RateLimiterUnavailable(f"PostgreSQL cannot be reached: {error}") from error
    except BaseException:
        line.close()
        raise
    return line


def say(line: Line, sql: bytes, deadline: float) -> Reply:
    line.say(sql)
    _receive(line, deadline)
    return line.reply()


def _receive(line: Line, deadline: float) -> None:
    while True:
        _wait(line, deadline)
        if line.received():
            return


def _wait(line: Line, deadline: float, *, write: bool = False) -> None:
    if not wait_for(line.fd, max(0.0, deadline - time.monotonic()), write=write):
        raise RateLimiterUnavailable("PostgreSQL cannot be reached in time")
