"""`sqlite:///file`: a store in one file, shared by all processes of one machine.

`sqlite:///name.db` is relative to the working directory, `sqlite:////var/lib/name.db` is absolute.
"""

from __future__ import annotations

from urllib.parse import unquote

from ...core.errors import ValidationError
from ..contract import Store
from .store import SqliteStore


def open_blocking(url: str, timeout_seconds: float) -> Store:
    return SqliteStore(path_of(url), timeout_seconds)


def path_of(url: str) -> str:
    path = unquote(url.removeprefix("sqlite:///"))
    if not url.startswith("sqlite:///") or not path or "?" in url:
        raise ValidationError(
            f"store URL {url!r} is not allowed: write sqlite:///file.db or sqlite:////absolute/file.db"
        )
    if path == ":memory:":
        raise ValidationError(f"store URL {url!r} would not be shared: use memory:// instead")
    return path
