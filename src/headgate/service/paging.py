"""Lists come in pages. Where the next one starts is of no interest to clients, and passed on in a form that says so."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Protocol

from ..core.errors import ValidationError
from ..core.records import Page


class Paged(Protocol):
    cursor: str


def read_cursor(query: Paged) -> str | None:
    try:
        return base64.b64decode(query.cursor, b"-_", validate=True).decode() or None
    except (binascii.Error, ValueError):
        raise ValidationError("cursor is none that a page has: pass it on as it is") from None


def cursor_of(page: Page[Any]) -> str | None:
    return None if page.cursor is None else base64.urlsafe_b64encode(page.cursor.encode()).decode()
