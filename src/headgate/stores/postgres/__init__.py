"""`postgresql://` (or `postgres://`): a store on PostgreSQL 13 or later, in a schema of its own.

The limits are settled next to the state, by one function (functions/settle.sql), a whole batch in one round trip.
"""

from __future__ import annotations

from ..contract import AsyncStore, Store
from .blocking import PostgresStore
from .coroutines import AsyncPostgresStore
from .url import read_url


def open_blocking(url: str, timeout_seconds: float) -> Store:
    return PostgresStore(read_url(url), timeout_seconds)


def open_async(url: str, timeout_seconds: float) -> AsyncStore:
    return AsyncPostgresStore(read_url(url), timeout_seconds)
