"""Lists come in pages; people want the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from ..core.records import Page

T = TypeVar("T")


def all_pages(read: Callable[[str | None], Page[T]]) -> Iterator[T]:
    """Everything on every page. `read` takes the cursor of a page, None for the first."""
    cursor: str | None = None
    while True:
        page = read(cursor)
        yield from page
        cursor = page.cursor
        if cursor is None:
            return
