"""Progress on a terminal: finished steps scroll by, and running ones stay below them."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ...aws.stack import StackEvent
from ..output import printable
from .progress import StackProgress, Steps, said

_SHOWN = 6


class LiveProgress(StackProgress):
    def __init__(self) -> None:
        self._steps = Steps()
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(
            console=Console(stderr=True, markup=False, emoji=False, highlight=False),
            get_renderable=self._drawn,
            refresh_per_second=8,
            transient=True,
        )

    def __enter__(self) -> StackProgress:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def __call__(self, event: StackEvent) -> None:
        seconds = self._steps.take(event)
        if seconds is not None and event.kind != "AWS::CloudFormation::Stack":
            self._live.console.print(_line(event, seconds))
        elif event.failed or ("ROLLBACK" in event.status and seconds is None):
            self._live.console.print(_line(event, None))

    def _drawn(self) -> RenderableType:
        now = time.monotonic()
        grid = Table.grid(padding=(0, 1, 0, 0))
        waiting = list(self._steps.doing.items())[-_SHOWN:]
        for resource, (what, began) in waiting:
            grid.add_row(self._spinner, f"{what} {printable(resource)}", Text(f"{now - began:.0f} s", style="dim"))
        total = Text(f"{self._steps.done} done, {now - self._steps.began:.0f} s", style="dim")
        return Group(grid, total) if waiting else Group(self._spinner, total)


def _line(event: StackEvent, seconds: float | None) -> Text:
    mark, style = _mark(event)
    line = Text()
    line.append(f"{mark} ", style=style)
    line.append(f"{printable(event.resource):<24}{event.kind.removeprefix('AWS::'):<28}")
    line.append(printable(said(event)), style=style)
    if seconds is not None and seconds >= 1:
        line.append(f"  {seconds:.0f} s", style="dim")
    return line


def _mark(event: StackEvent) -> tuple[str, str]:
    if event.failed:
        return "✗", "bold red"
    if "ROLLBACK" in event.status:
        return "↺", "yellow"
    return ("-", "dim") if event.status.startswith("DELETE") else ("✓", "green")
