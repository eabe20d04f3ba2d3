"""The output of a demo: a live table on a terminal, a line per second elsewhere, a summary at the end."""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from types import TracebackType

import click

from ..options import CommandSession
from ..output import number
from .state import DemoResult, DemoState

_WINDOW_MS = 1_500
_STORES = {"sqlite": "one SQLite file", "redis+cluster": "one Redis cluster", "rediss+cluster": "one Redis cluster"}


class View:
    """Shows nothing: for JSON."""

    def __enter__(self) -> View:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def frame(self, state: DemoState) -> None:
        pass

    def last_frame(self, state: DemoState) -> None:
        self.frame(state)

    def note(self, text: str) -> None:
        pass


class PlainView(View):
    """A line per second, for a pipe or a log."""

    def __init__(self, seconds: float, title: str) -> None:
        self._next_second = 1
        self._rates = Rates()
        click.echo(f"{title}, for {seconds:g} s")

    def frame(self, state: DemoState) -> None:
        self._rates.add(state)
        if state.seconds < self._next_second:
            return
        self._next_second = math.floor(state.seconds) + 1
        calls = state.limits[0]
        click.echo(
            f"{math.floor(state.seconds):>3} s  admitted {number(calls.admitted)}, limit {number(calls.allowed)}, "
            f"oversold {number(state.oversold)}, refused {number(state.refused)}, "
            f"{number(self._rates.total())} decisions/s"
        )

    def note(self, text: str) -> None:
        click.echo(f"       {text}")


class Rates:
    """Decisions per second, over the last one and a half seconds."""

    def __init__(self) -> None:
        self._states: deque[DemoState] = deque()

    def add(self, state: DemoState) -> None:
        self._states.append(state)
        while len(self._states) > 2 and state.elapsed_ms - self._states[1].elapsed_ms >= _WINDOW_MS:
            self._states.popleft()

    def total(self) -> int:
        return self._per_second(self._states[-1].decisions - self._states[0].decisions)

    def of(self, number: int) -> int:
        counts = [
            next((worker.decisions for worker in state.workers if worker.number == number), 0)
            for state in (self._states[0], self._states[-1])
        ]
        return self._per_second(counts[1] - counts[0])

    def _per_second(self, decisions: int) -> int:
        elapsed_ms = self._states[-1].elapsed_ms - self._states[0].elapsed_ms
        return round(1000 * decisions / elapsed_ms) if elapsed_ms else 0


def open_view(seconds: float, workers: int, session: CommandSession) -> View:
    if session.as_json:
        return View()
    store = _store(session.url or "sqlite://")
    title = f"{workers} {'processes share' if workers > 1 else 'process uses'} {store} and two limits"
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return PlainView(seconds, title)
    from .live import LiveView

    return LiveView(seconds, title)


def _store(url: str) -> str:
    scheme = url.partition("://")[0]
    return _STORES.get(scheme, "one Redis" if scheme.startswith("redis") else "one store")


def summary(result: DemoResult, workers: int) -> list[str]:
    state = result.state
    rate = round(state.decisions / max(state.seconds, 0.001))
    who = f"{workers} processes" if workers > 1 else "1 process"
    lines = [
        "",
        f"{who} asked {number(state.decisions)} times in {state.seconds:.1f} s: {number(rate)} decisions per second.",
    ]
    for limit in state.limits:
        lines.append(
            f"{limit.limit.name} {limit.limit}: admitted {number(limit.admitted)}, limit {number(limit.allowed)}, "
            f"oversold {number(limit.oversold)}"
        )
    lines.append(_accounts(result))
    lines += [
        "Next:  headgate check me api --consume rpm=1 --limit rpm=5/minute",
        "       headgate buckets me",
    ]
    return lines


def _accounts(result: DemoResult) -> str:
    """Whether the counts of the store and the workers agree."""
    fate = f"{result.kill}; " if result.kill else ""
    if result.lost:
        store, workers = number(result.counted_by_store), number(result.counted_by_workers)
        return f"{fate}the store counted {store} calls, the workers {workers}"
    return f"{fate}nothing was lost" if result.kill else "the store and the workers counted the same: nothing was lost"
