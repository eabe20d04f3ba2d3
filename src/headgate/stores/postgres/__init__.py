"""`postgresql://` (or `postgres://`): a store on PostgreSQL 13 or later, in a schema of its own.

The limits are settled where the state is, by one function (functions/settle.sql), for a whole batch in one round trip.
"""

from __future__ import annotations

from .blocking import PostgresStore
from .coroutines import AsyncPostgresStore
from .url import read_url


def open_blocking(url: str, timeout_seconds: float) -> PostgresStore:
    return PostgresStore(read_url(url), timeout_seconds)


def open_async(url: str, timeout_seconds: float) -> AsyncPostgresStore:
    return AsyncPostgresStore(read_url(url), timeout_seconds)
