"""Lists come in pages; people want the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import click

from ..core.records import Page
from .output import printable

T = TypeVar("T")


def all_pages(read: Callable[[str | None], Page[T]]) -> Iterator[T]:
    """Everything on every page. `read` takes the cursor of a page, None for the first. What is corrupt is a warning."""
    cursor: str | None = None
    while True:
        page = read(cursor)
        for error in page.corrupt:
            click.echo(f"warning: {printable(str(error))}", err=True)
        yield from page
        cursor = page.cursor
        if cursor is None:
            return
