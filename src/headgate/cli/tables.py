"""Drawing tables, with rich."""

from __future__ import annotations

import sys
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from .output import Bar, Cell, Table, printable

BAR_WIDTH = 12
_STYLES = {
    "allowed": "green",
    "refused": "bold red",
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
    "active": "green",
    "deleted": "yellow",
    "purging": "bold red",
}


def console() -> Console:
    """On a terminal as wide as it is; in a pipe as wide as needed, so that nothing is cut off."""
    wide: dict[str, Any] = {} if sys.stdout.isatty() else {"width": 1000}
    return Console(markup=False, emoji=False, highlight=False, **wide)


def draw(table: Table) -> None:
    console().print(built(table))


def built(table: Table) -> RichTable:
    filled = [index for index, _ in enumerate(table.columns) if any(row[index] != "" for row in table.rows)]
    drawn = RichTable(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="dim",
        show_header=any(table.columns),
    )
    for index in filled:
        name = table.columns[index]
        drawn.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
    for row in table.rows:
        drawn.add_row(*(_drawn(row[index]) for index in filled))
    return drawn


def _drawn(cell: Cell) -> RenderableType:
    if isinstance(cell, Bar):
        return bar(cell.fraction, BAR_WIDTH)
    return Text(printable(cell), style=_STYLES.get(cell, ""), overflow="fold")


def bar(fraction: float, width: int, style: str = "green") -> ProgressBar:
    return ProgressBar(
        total=1, completed=min(max(fraction, 0), 1), width=width, complete_style=style, finished_style=style
    )
