"""Stores by URL. Each is a folder; none imports another; a driver is imported when its scheme is first used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from ..core.errors import ValidationError
from ..core.names import shown_url
from .contract import AsyncStore, CancelledLate, InProcessStore, LostThenCancelled, SettledThenCancelled, Store
from .offload import OffloadedStore

__all__ = [
    "AsyncStore",
    "CancelledLate",
    "InProcessStore",
    "LostThenCancelled",
    "OffloadedStore",
    "SettledThenCancelled",
    "Store",
    "open_async_store",
    "open_store",
    "register_store",
]

_BUILT_IN = {
    "memory": "memory",
    "sqlite": "sqlite",
    "dynamodb": "dynamodb",
    "redis": "redis",
    "rediss": "redis",
    "redis+unix": "redis",
    "redis+sentinel": "redis",
    "rediss+sentinel": "redis",
    "redis+cluster": "redis",
    "rediss+cluster": "redis",
    "postgresql": "postgres",
    "postgres": "postgres",
}
_registered: dict[str, tuple[Callable[[str, float], Store], Callable[[str, float], AsyncStore] | None]] = {}


def register_store(
    scheme: str,
    open_blocking: Callable[[str, float], Store],
    open_async: Callable[[str, float], AsyncStore] | None = None,
) -> None:
    """Make `scheme://` open your own store. Both functions take the URL and the timeout of a call in seconds.

    Without `open_async` coroutines use the blocking store on a thread.
    """
    _registered[scheme] = (open_blocking, open_async)


def open_store(url: str, timeout_seconds: float) -> Store:
    return _opener(url)[0](url, timeout_seconds)


def open_async_store(url: str, timeout_seconds: float) -> AsyncStore:
    open_blocking, open_async = _opener(url)
    return open_async(url, timeout_seconds) if open_async else OffloadedStore(open_blocking(url, timeout_seconds))


def _opener(url: str) -> tuple[Callable[[str, float], Store], Callable[[str, float], AsyncStore] | None]:
    scheme, separator, _ = url.partition("://") if isinstance(url, str) else ("", "", "")
    if separator and scheme in _registered:
        return _registered[scheme]
    if separator and scheme in _BUILT_IN:
        module = import_module(f".{_BUILT_IN[scheme]}", __package__)
        return module.open_blocking, getattr(module, "open_async", None)
    known = ", ".join(f"{name}://" for name in sorted({*_BUILT_IN, *_registered}))
    raise ValidationError(f"store URL {shown_url(url)!r} has no scheme that headgate knows: use one of {known}")
