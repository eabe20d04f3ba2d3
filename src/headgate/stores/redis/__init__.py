"""`redis://` and its relatives (url.py): a store on Redis or Valkey: one server, one with sentinels, or a cluster.

The limits are settled next to the state, by one script (settle.lua), a whole batch in one round trip.
"""

from __future__ import annotations

from ..contract import AsyncStore, Store
from . import driver as driver  # first: if redis-py is missing, it says how to install it
from .blocking import RedisStore
from .coroutines import AsyncRedisStore
from .url import read_url


def open_blocking(url: str, timeout_seconds: float) -> Store:
    return RedisStore(read_url(url), timeout_seconds)


def open_async(url: str, timeout_seconds: float) -> AsyncStore:
    return AsyncRedisStore(read_url(url), timeout_seconds)
