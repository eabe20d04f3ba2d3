"""The live table, with rich."""

from __future__ import annotations

from types import TracebackType

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..drawing import bar, console, empty_table
from ..output import number
from .state import DemoState, LimitState, WorkerState
from .view import Rates, View

_BAR_WIDTH = 18
_NARROW_BAR_WIDTH = 12


class LiveView(View):
    def __init__(self, seconds: float, title: str) -> None:
        self._seconds = seconds
        self._title = title
        self._note = ""
        self._rates = Rates()
        self._live = Live(console=console(), auto_refresh=False)

    def __enter__(self) -> View:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def note(self, text: str) -> None:
        self._note = text

    def frame(self, state: DemoState) -> None:
        self._rates.add(state)
        self._live.update(self._drawn(state), refresh=True)

    def last_frame(self, state: DemoState) -> None:
        self._note = ""  # the summary repeats it
        self.frame(state)

    def _drawn(self, state: DemoState) -> RenderableType:
        note: list[RenderableType] = ["", Text(self._note, style="yellow")] if self._note else []
        return Group(self._head(state), "", self._workers(state), "", _limits(state), *note)

    def _head(self, state: DemoState) -> RenderableType:
        head = Table.grid(padding=(0, 2, 0, 0))
        elapsed = min(state.seconds, self._seconds)
        clock = f"{elapsed:.0f} of {self._seconds:g} s" if state.decisions else "starting"
        head.add_row(
            Text(self._title, style="bold"), bar(state.seconds / self._seconds, _BAR_WIDTH, "cyan"), Text(clock)
        )
        return head

    def _workers(self, state: DemoState) -> Table:
        table = empty_table(["worker", ">pid", ">admitted", ">refused", ">decisions/s", "share"], gap=2, no_wrap=True)
        for worker in state.workers:
            table.add_row(*self._worker(worker, state.admitted), style="dim" if worker.killed else "")
        table.add_section()
        total = [number(count) for count in (state.admitted, state.refused, self._rates.total())]
        table.add_row("all", "", *total, "", style="bold")
        return table

    def _worker(self, worker: WorkerState, admitted: int) -> list[RenderableType]:
        rate = "killed" if worker.killed else number(self._rates.of(worker.number))
        counts = [str(worker.number), str(worker.pid), number(worker.admitted), number(worker.refused), rate]
        return [*counts, bar(worker.admitted / max(1, admitted), _BAR_WIDTH)]


def _limits(state: DemoState) -> Table:
    table = empty_table(["all workers together", ">admitted", ">limit", ">oversold", ""], gap=2, no_wrap=True)
    for limit in state.limits:
        table.add_row(*_limit(limit))
    return table


def _limit(state: LimitState) -> list[RenderableType]:
    style = "bold red" if state.oversold else "bold green"
    return [
        f"{state.limit.name} {state.limit}",
        number(state.admitted),
        number(state.allowed),
        Text(number(state.oversold), style=style),
        bar(state.admitted / max(1, state.allowed), _NARROW_BAR_WIDTH),
    ]
