"""How far a command is, on standard error: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

ShowProgress: TypeAlias = "Callable[[float | None, str], None]"
"""Takes the fraction that is done (None: unknown), and a text beside the bar."""


@contextmanager
def progress_bar(title: str, *, quiet: bool) -> Iterator[ShowProgress]:
    if quiet or not sys.stderr.isatty():
        yield lambda fraction, text: None
        return
    from rich.console import Console  # slow to import
    from rich.progress import BarColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[text]}"),
        console=Console(stderr=True, markup=False, emoji=False, highlight=False),
        transient=True,
    )
    with bar:
        task = bar.add_task(title, total=None, text="starting")

        def show(fraction: float | None, text: str) -> None:
            if fraction is not None:
                bar.update(task, total=1)
            bar.update(task, completed=fraction or 0, text=text)

        yield show
