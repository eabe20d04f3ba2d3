"""How far a load test is, on standard error: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from ..output import number

Show: TypeAlias = "Callable[[float, str, int], None]"
"""Takes the part that is done, from 0 to 1, that in words, and the decisions per second."""


@contextmanager
def progress(title: str, *, quiet: bool) -> Iterator[Show]:
    if quiet or not sys.stderr.isatty():
        yield lambda part, words, rate: None
        return
    from rich.console import Console  # slow to import
    from rich.progress import BarColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[words]}"),
        TextColumn("{task.fields[rate]}", style="cyan"),
        console=Console(stderr=True, markup=False, emoji=False, highlight=False),
        transient=True,
    )
    with bar:
        task = bar.add_task(title, total=1, words="starting", rate="")

        def show(part: float, words: str, rate: int) -> None:
            bar.update(task, completed=part, words=words, rate=f"{number(rate)}/s" if rate else "")

        yield show
