"""What both limiter classes have: the constructor, and what can be asked without the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from ..core.limit import Limit
from ..core.names import shown_url
from .acquire.breaker import BreakerState
from .acquire.options import OnUnavailable, check_on_unavailable
from .clock import Clock
from .config.cache import CacheStats
from .engine import Engine
from .misuse import known_options
from .observe.observers import Event, Observers, Watcher


class BaseLimiter:
    """Which call?

    Most callers want `acquire`: it raises if the limit is reached, and gives back what it took if the body
    fails. `acquire(max_wait=...)` waits its turn instead of raising. `try_acquire` answers with a `Decision`
    and leaves the rest to the caller: an HTTP server that sends a 429. `adjust` states what has already
    happened and never refuses. `available` and `time_until_available` only look.

    `limits`: those that hold where no stored limit of that name does.
    `prefetch`: for how many seconds tokens may be taken from the store before they are used; 0 is off.
    """

    engine: Engine
    _engine_class: ClassVar[type[Engine]]

    @known_options
    def __init__(
        self,
        url: str,
        *,
        namespace: str = "default",
        limits: Iterable[Limit] | None = None,
        clock: Clock | None = None,
        on_unavailable: OnUnavailable = "block",
        coalesce: bool = True,
        config_cache_ttl: float = 60.0,
        store_timeout: float = 1.0,
        hash_entity_ids: bool | bytes = False,
        on_event: Callable[[Event], object] | None = None,
        usage_days: int = 90,
        audit_days: int = 365,
        actor: str | None = None,
        prefetch: float = 0.0,
    ) -> None:
        engine = self._engine_class(
            url,
            name=type(self).__name__,
            namespace=namespace,
            limits=limits,
            clock=clock,
            on_unavailable=on_unavailable,
            coalesce=coalesce,
            config_cache_ttl=config_cache_ttl,
            store_timeout=store_timeout,
            hash_entity_ids=hash_entity_ids,
            on_event=on_event,
            usage_days=usage_days,
            audit_days=audit_days,
            actor=actor,
            prefetch=prefetch,
        )
        self.engine = self._subject = engine
        self.url = engine.url
        self.namespace = engine.namespace
        self.usage_ms = engine.usage_ms
        self.audit_ms = engine.audit_ms
        self.actor = engine.actor

    def watch(self, watcher: Watcher) -> None:
        """Call the watcher for every decision and every call to the store, until `unwatch`."""
        self.engine.observers.add(watcher)
        self.engine.wire()

    def unwatch(self, watcher: Watcher) -> None:
        """Stop calling a watcher."""
        self.engine.observers.remove(watcher)
        self.engine.wire()

    @property
    def observers(self) -> Observers:
        """Its watchers, callback and log. HTTP adapters report through them what becomes of their rules."""
        return self.engine.observers

    @property
    def on_unavailable(self) -> OnUnavailable:
        """The limiter's own outage policy, which holds if neither the call nor the stored limits have one."""
        return self.engine.on_unavailable

    @on_unavailable.setter
    def on_unavailable(self, policy: OnUnavailable) -> None:
        self.engine.on_unavailable = check_on_unavailable(policy)

    @property
    def outage_policy(self) -> str:
        """What happens when the store is unavailable: as is stored, as far as it was read, else as the limiter says."""
        return self.engine.policy(None, None)

    @property
    def clock(self) -> Clock:
        """The one it was given, or the machine's."""
        return self.engine.clock

    @property
    def breaker_state(self) -> BreakerState:
        """closed: the store answers. open: calls fail at once, for a while. half-open: one call probes the store."""
        return self.engine.breaker.state

    @property
    def known_instances(self) -> int:
        """How many limiters share the namespace, as last counted. They are counted if the outage policy is "local"."""
        return self.engine.fallback.instances

    @property
    def waiters(self) -> int:
        """How many acquires wait for their turn in this process, at the moment."""
        return self.engine.slot_queues.count()

    @property
    def leases_held(self) -> int:
        """How many leases of this process hold slots or are recorded, at the moment. The others hold nothing."""
        held: int = self.engine.renewal.chores.held()
        return held

    def invalidate_config_cache(self) -> None:
        """Forget what was read about limits and entities; the next acquire reads it again."""
        self.engine.warm = False
        self.engine.cache.clear()

    def get_cache_stats(self) -> CacheStats:
        """How often what was read about limits and entities was still known."""
        return self.engine.cache.stats()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown_url(self.url)!r}, namespace={self.namespace!r})"
