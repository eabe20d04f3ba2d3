"""Tables and charts on a terminal, with rich."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from rich import box
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from ..charts.time_chart import short
from .output import Bar, Cell, Chart, TextTable, printable

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
    """As wide as the terminal; in a pipe, wide enough that nothing is cut off."""
    wide: dict[str, Any] = {} if sys.stdout.isatty() else {"width": 1000}
    return Console(markup=False, emoji=False, highlight=False, **wide)


def draw_table(table: TextTable) -> None:
    console().print(built(table))


def built(table: TextTable) -> RichTable:
    filled = [index for index, _ in enumerate(table.columns) if any(row[index] != "" for row in table.rows)]
    drawn = empty_table([table.columns[index] for index in filled])
    for row in table.rows:
        drawn.add_row(*(_drawn(row[index]) for index in filled))
    return drawn


def empty_table(columns: Sequence[str], *, gap: int = 1, no_wrap: bool = False) -> RichTable:
    """Columns whose name starts with `>` are aligned to the right."""
    table = RichTable(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, gap, 0, 0),
        header_style="dim",
        show_header=any(columns),
    )
    for name in columns:
        justify: JustifyMethod = "right" if name.startswith(">") else "left"
        table.add_column(name.removeprefix(">"), justify=justify, no_wrap=no_wrap)
    return table


def _drawn(cell: Cell) -> RenderableType:
    if isinstance(cell, Bar):
        return bar(cell.fraction, BAR_WIDTH)
    return Text(printable(cell), style=_STYLES.get(cell, ""), overflow="fold")


def bar(fraction: float, width: int, style: str = "green") -> ProgressBar:
    return ProgressBar(
        total=1, completed=min(max(fraction, 0), 1), width=width, complete_style=style, finished_style=style
    )


HEIGHT = 8
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_AXIS = 6  # the longest label of the axis
_WIDEST = 8  # column, with its gap
_PIPE = 80
_APART = 1  # blanks between two labels


def draw_chart(chart: Chart) -> None:
    screen = console()
    width = screen.width if screen.is_terminal else _PIPE
    for line, style in lines(chart, width):
        screen.print(Text(line, style=style), overflow="crop", no_wrap=True)


def lines(chart: Chart, width: int) -> Iterator[tuple[str, str]]:
    """Each line and its style."""
    room = width - _AXIS - 2
    values, labels, merged = _fitted(chart, room)
    column = max(1, min(_WIDEST, room // len(values)))
    top = max([*values, 0]) or 1
    axis = max(len(short(top)), len(short(top / 2)))
    yield printable(f"{chart.title}{f' ({merged} in each column)' if merged > 1 else ''}"), "bold"
    for row in range(HEIGHT - 1, -1, -1):
        scale = {HEIGHT - 1: short(top), HEIGHT // 2 - 1: short(top / 2)}.get(row, "")
        bars = "".join(_cell(value / top, row, column) for value in values)
        yield f"{scale:>{axis}} {'┤' if scale else '│'}{bars}".rstrip(), "cyan"
    yield f"{'0':>{axis}} └{'─' * (column * len(values))}", "cyan"
    yield f"{'':>{axis + 2}}{_labels(labels, column, room)}".rstrip(), "dim"


def _fitted(chart: Chart, room: int) -> tuple[Sequence[int | float], Sequence[str], int]:
    """The values and labels, and how many neighbours are added up in each because there is not room for all."""
    merged = -(-len(chart.values) // max(1, room))
    starts = range(0, len(chart.values), merged)
    return [sum(chart.values[at : at + merged]) for at in starts], [chart.labels[at] for at in starts], merged


def _cell(part: float, row: int, column: int) -> str:
    """The part of a column in a row. Any value above zero is visible."""
    eighths = max(int(part > 0), round(part * HEIGHT * 8))
    block = _EIGHTHS[min(8, max(0, eighths - row * 8))]
    return block if column == 1 else block * (column - 1) + " "


def _labels(labels: Sequence[str], column: int, room: int) -> str:
    """As many as fit."""
    line = ""
    for index, label in enumerate(labels):
        start = index * column
        if len(line) + (_APART if line else 0) <= start <= room - len(label):
            line = f"{line:<{start}}{label}"
    return line


def live(look: Callable[[], tuple[str, str | TextTable]], every: float) -> NoReturn:
    """Show a title and the result of `look`, refreshed every `every` seconds, until Ctrl-C."""
    with Live(console=console(), auto_refresh=False) as screen:
        while True:
            title, found = look()
            below = built(found) if isinstance(found, TextTable) else Text(printable(found))
            screen.update(Group(Text(printable(title), style="bold"), "", below), refresh=True)
            time.sleep(every)
