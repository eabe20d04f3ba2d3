"""Facts about a store, for finding out what is wrong with it; and its clock.

A built-in store may have a module `health` with `examine(url, timeout_seconds)` and `read_clock(url, timeout_seconds)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

from . import _BUILT_IN, _registered

Verdict: TypeAlias = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `advice`: what to do, if it is not ok."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {"check": self.check, "verdict": self.verdict, "found": self.found, "advice": self.advice}


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The clocks of a store's servers: the slowest and the fastest, in steps of `grain_ms`."""

    earliest_ms: int
    latest_ms: int
    grain_ms: int = 1


def examine(url: str, timeout_seconds: float) -> list[Finding]:
    """The findings of this kind of store; none for a registered store."""
    found: list[Finding] = _ask(url, "examine", timeout_seconds) or []
    return found


def read_clock(url: str, timeout_seconds: float) -> ClockReading | None:
    """None: the store has no clock of its own."""
    reading: ClockReading | None = _ask(url, "read_clock", timeout_seconds)
    return reading


def _ask(url: str, question: str, timeout_seconds: float) -> Any:
    scheme = url.partition("://")[0]
    folder = None if scheme in _registered else _BUILT_IN.get(scheme)
    module = f"{__package__}.{folder}.health"
    if folder is None or find_spec(module) is None:
        return None
    ask: Callable[[str, float], Any] | None = getattr(import_module(module), question, None)
    return None if ask is None else ask(url, timeout_seconds)
