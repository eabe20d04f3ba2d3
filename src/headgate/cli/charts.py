"""Drawing charts in a terminal, out of the eighths of a block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from .output import Chart, printable
from .tables import console

HEIGHT = 8
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_AXIS = 6  # what is written beside it is no longer
_WIDEST = 8  # of a column, with the gap beside it
_PIPE = 80
_APART = 1  # blanks between two labels
_UNITS = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def draw(chart: Chart) -> None:
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
    """The values, neighbours added up if there are more than there is room for, and how many are in each."""
    merged = -(-len(chart.values) // max(1, room))
    starts = range(0, len(chart.values), merged)
    return [sum(chart.values[at : at + merged]) for at in starts], [chart.labels[at] for at in starts], merged


def _cell(part: float, row: int, column: int) -> str:
    """What of a column is in a row. Whatever is more than nothing can be seen."""
    eighths = max(int(part > 0), round(part * HEIGHT * 8))
    block = _EIGHTHS[min(8, max(0, eighths - row * 8))]
    return block if column == 1 else block * (column - 1) + " "


def _labels(labels: Sequence[str], column: int, room: int) -> str:
    """As many as do not touch each other."""
    line = ""
    for index, label in enumerate(labels):
        start = index * column
        if len(line) + (_APART if line else 0) <= start <= room - len(label):
            line = f"{line:<{start}}{label}"
    return line


def short(value: int | float) -> str:
    """Three digits of it."""
    value = float(f"{value:.3g}")
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
