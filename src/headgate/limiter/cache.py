"""Chains that were read a moment ago, so that an acquire is one call to the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from .chain import Chain

_CAPACITY = 100_000


@dataclass(frozen=True, slots=True)
class CacheStats:
    hits: int
    misses: int
    size: int
    ttl_seconds: float


class ChainCache:
    """Chains by entity and resource, each for `ttl_seconds` by the clock given. Safe to use from many threads."""

    def __init__(self, ttl_seconds: float, now_ms: Callable[[], int] | None) -> None:
        self._ttl_seconds = ttl_seconds
        self._ttl = ttl_seconds * 1000 if now_ms else ttl_seconds
        self._now: Callable[[], float] = now_ms or time.monotonic
        self._entries: dict[tuple[str, str], tuple[float, Chain]] = {}
        self._hits = self._misses = 0
        self.generation = 0

    def get(self, entity_id: str, resource: str) -> Chain | None:
        entry = self._entries.get((entity_id, resource))
        if entry is not None and self._now() < entry[0]:
            self._hits += 1
            return entry[1]
        self._misses += 1
        return None

    def put(self, entity_id: str, resource: str, chain: Chain, generation: int) -> None:
        """Keep a chain, unless the cache was emptied since `generation`: the chain may be from before."""
        if self._ttl == 0 or generation != self.generation:
            return
        if len(self._entries) >= _CAPACITY:
            self._entries.clear()
        self._entries[entity_id, resource] = (self._now() + self._ttl, chain)

    def clear(self) -> None:
        self.generation += 1
        self._entries.clear()

    def stats(self) -> CacheStats:
        return CacheStats(self._hits, self._misses, len(self._entries), self._ttl_seconds)
