"""`redis://` and its relatives (url.py): a store on Redis or Valkey: a server, one watched by sentinels, or a cluster.

The limits are settled where the state is, by one script (settle.lua), for a whole batch in one round trip.
"""

from __future__ import annotations

from . import driver as driver  # before what needs redis-py: it says where that comes from
from .blocking import RedisStore
from .coroutines import AsyncRedisStore
from .url import read_url


def open_blocking(url: str, timeout_seconds: float) -> RedisStore:
    return RedisStore(read_url(url), timeout_seconds)


def open_async(url: str, timeout_seconds: float) -> AsyncRedisStore:
    return AsyncRedisStore(read_url(url), timeout_seconds)
