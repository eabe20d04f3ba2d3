"""Cached limits and entities, so that an acquire is one call to the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ...core.names import StoredId, bucket_key
from ..acquire.chain import Chain, Shape
from ..ids import ToStoredId

_CAPACITY = 100_000
_Chains: TypeAlias = "dict[tuple[str, str], tuple[float, Chain]]"


@dataclass(frozen=True, slots=True)
class CacheStats:
    hits: int
    misses: int
    size: int
    ttl_seconds: float


class ConfigCache:
    """Chains by entity and resource, each for `ttl_seconds` by the clock given. Safe to use from many threads.

    The keys are the ids that callers pass, because hashing takes longer than the lookup.

    If no entity has a record or limits of its own, all have the same shape: the limits of the resource and the system.
    That shape is cached once, so a million callers cost one read.
    """

    def __init__(
        self,
        namespace: str,
        ttl_seconds: float,
        now_ms: Callable[[], int] | None,
        wall_ms: Callable[[], int],
        stored_id: ToStoredId,
    ) -> None:
        self._namespace = namespace
        self._stored_id = stored_id
        self._ttl_seconds = ttl_seconds
        self._ttl = ttl_seconds * 1000 if now_ms else ttl_seconds
        self._now: Callable[[], float] = now_ms or time.monotonic
        self._wall_ms, self._tick_ms = wall_ms, 1 if now_ms else 1000
        self._chains: _Chains = {}
        self._shapes: dict[
            str, tuple[float, Shape, str, str]
        ] = {}  # with the parts of a key before and after the entity's id
        self._own_until = 0.0
        self.on_unavailable: str | None = None  # the stored policy as last read: in an outage it cannot be read again
        self._hits = self._misses = 0
        self._read = 0  # chains that were read, not made from a shape
        self.generation = 0

    def get(self, entity_id: str, resource: str) -> Chain | None:
        chains = self._chains  # before anything is read: what is kept in it goes with it when the cache is cleared
        try:
            entry = chains.get((entity_id, resource))
            if entry is not None and self._now() < entry[0]:
                self._hits += 1
                return entry[1]
            common = self._shapes.get(resource)
        except TypeError:
            return None  # not strings: reading the chain raises the error
        if common is not None:
            until, shape, before, after = common
            if self._now() < until:
                self._hits += 1
                chain = Chain((f"{before}{self._stored_id(entity_id)}{after}",), shape)
                _keep(chains, (entity_id, resource), until, chain)
                return chain
        self._misses += 1
        return None

    def last_known(self, entity_id: str, resource: str) -> Chain | None:
        """The last chain that was read, however old."""
        entry, common = self._chains.get((entity_id, resource)), self._shapes.get(resource)
        if entry is not None:
            return entry[1]
        if common is None:
            return None
        _, shape, before, after = common
        return Chain((f"{before}{self._stored_id(entity_id)}{after}",), shape)

    def put(self, entity_id: str, resource: str, chain: Chain, generation: int) -> None:
        """Keep a chain, unless the cache was cleared since `generation`: the chain may be older."""
        self.on_unavailable = chain.shape.on_unavailable
        chains = self._chains
        if self._ttl and generation == self.generation:
            self._read += (entity_id, resource) not in chains
            _keep(chains, (entity_id, resource), self._until(chain.shape), chain)

    def _until(self, shape: Shape) -> float:
        """For how long it is kept: at most until a schedule changes it."""
        left = self._ttl
        if shape.until_ms is not None:
            left = min(left, (shape.until_ms - self._wall_ms()) / self._tick_ms)
        return self._now() + left

    def put_shape(self, resource: str, shape: Shape, generation: int) -> None:
        """The shape of every entity on the resource, if none has anything of its own."""
        self.on_unavailable = shape.on_unavailable
        if self._ttl and generation == self.generation:
            before, after = bucket_key(self._namespace, StoredId("#"), resource).split("##")
            self._shapes[resource] = (self._until(shape), shape, before, f"#{after}")

    @property
    def entities_have_their_own(self) -> bool:
        """Whether some entity was recently found to have a record or limits of its own."""
        return self._now() < self._own_until

    def note_entities_have_their_own(self) -> None:
        self._own_until = self._now() + self._ttl

    def clear(self) -> None:
        # In this order: a thread that still sees the old chains keeps what it reads in vain.
        self.generation += 1
        self._own_until = 0.0
        self._shapes = {}
        self._chains = {}
        self._read = 0

    def stats(self) -> CacheStats:
        size = min(self._read, len(self._chains)) + len(self._shapes)
        return CacheStats(self._hits, self._misses, size, self._ttl_seconds)


def _keep(chains: _Chains, place: tuple[str, str], until: float, chain: Chain) -> None:
    if len(chains) >= _CAPACITY:
        chains.clear()
    chains[place] = (until, chain)
