"""Calls without a server, for what needs none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headgate import SyncRateLimiter
from headgate.http.answer import HttpRefusal
from headgate.http.engine import Passed, RuleEngine, SyncGate
from headgate.http.wsgi import WsgiCall
from headgate.testing import ManualClock


def call(path: str = "/", method: str = "GET", peer: str = "192.0.2.1", user: str = "", **headers: str) -> WsgiCall:
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path.encode().decode("latin-1"), "REMOTE_ADDR": peer}
    environ |= {f"HTTP_{name.upper()}": value for name, value in headers.items()}
    return WsgiCall(environ | ({"REMOTE_USER": user} if user else {}))


class Gate:
    """An engine over a limiter in memory, and a clock that stands still."""

    def __init__(self, *rules: Any, **settings: Any) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.events: list[Any] = []
        self.limiter = SyncRateLimiter("memory://", clock=self.clock, on_event=self.events.append)
        self.gate = SyncGate(RuleEngine(self.limiter, rules, **settings))

    def check(self, path: str = "/", **of_call: Any) -> Passed | HttpRefusal:
        return self.gate.check(call(path, **of_call))

    def passes(self, path: str = "/", **of_call: Any) -> bool:
        return isinstance(self.check(path, **of_call), Passed)

    def passing(self, times: int, path: str = "/", **of_call: Any) -> list[bool]:
        return [self.passes(path, **of_call) for _ in range(times)]


@contextmanager
def gate(*rules: Any, **settings: Any) -> Iterator[Gate]:
    opened = Gate(*rules, **settings)
    with opened.limiter:
        yield opened
