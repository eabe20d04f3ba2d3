"""What both limiters are made of: the checked settings, the clock, the cache of chains."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from ..core.decide import Answer, Parts
from ..core.errors import LimiterClosed, ValidationError
from ..core.limit import Limit, by_name
from ..core.names import REGISTRY, check_namespace, shown_url
from ..core.usage import DAY_MS
from ..plan import StoreCall
from .acquire.breaker import Breaker, BreakerState
from .acquire.chain import Chain
from .acquire.fallback import Fallback
from .acquire.slot_queue import SlotQueues
from .clock import Clock, SystemClock
from .config.cache import CacheStats, ConfigCache
from .ids import to_stored_id
from .leases.held_slots import HeldSlots
from .misuse import known_options
from .observe.audit import check_actor, os_user
from .observe.events import Event, Events
from .observe.watchers import Watcher, Watchers

C = TypeVar("C")
OnUnavailable: TypeAlias = Literal["block", "allow", "local"]
OnError: TypeAlias = Literal["rollback", "keep"]
_MOST_DAYS = 3660


def _check_choice(value: Any, what: str, choices: tuple[C, ...]) -> C:
    for choice in choices:
        if value == choice:
            return choice
    *others, last = map(repr, choices)
    raise ValidationError(f"{what} must be {', '.join(others)} or {last}, not {value!r}")


def check_on_unavailable(value: Any) -> OnUnavailable:
    return _check_choice(value, "on_unavailable", get_args(OnUnavailable))


def check_on_error(value: Any) -> OnError:
    return _check_choice(value, "on_error", get_args(OnError))


def _check_seconds(value: Any, what: str, *, zero: bool) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not (0 <= value < float("inf")) or (value == 0 and not zero):
        raise ValidationError(f"{what} must be a number of seconds{'' if zero else ' above zero'}, not {value!r}")
    return float(value)


def _check_days(value: Any, what: str) -> int:
    """As milliseconds."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_DAYS:
        raise ValidationError(f"{what} must be a whole number of days from 0 (none) to {_MOST_DAYS:,}, not {value!r}")
    return value * DAY_MS


def _check_limits(limits: Iterable[Limit] | None) -> Mapping[str, Limit]:
    named = {} if limits is None else by_name(limits)
    if limits is not None and not named:
        raise ValidationError("limits must not be empty: give one like Limit.per_minute('rpm', 100), or leave them out")
    return named


class BaseLimiter(ABC):
    """Which call?

    Most callers want `acquire`: it raises if the limit is reached, and gives back what it took if the body
    fails. `acquire(max_wait=...)` waits its turn instead of raising. `try_acquire` answers with a `Decision`
    and leaves the rest to the caller: an HTTP server that sends a 429. `adjust` states what has already
    happened and never refuses. `available` and `time_until_available` only look.

    `limits`: those that hold where no stored limit of that name does.
    """

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
    ) -> None:
        self.url = url
        self.namespace = check_namespace(namespace)
        self._limits = _check_limits(limits)
        self.on_unavailable = check_on_unavailable(on_unavailable)
        self._coalesce = bool(coalesce)
        self._store_timeout = _check_seconds(store_timeout, "store_timeout", zero=False)
        if clock is not None and not callable(getattr(clock, "now_ms", None)):
            raise ValidationError(f"clock must have a method now_ms(), and {clock!r} has none")
        self._clock: Clock = clock or SystemClock()
        self._clock_given = clock is not None
        # A plan begins with it, and has the id as it was given no more.
        self._stored_id = to_stored_id(hash_entity_ids)
        self._hashes_ids = hash_entity_ids is not False
        ttl = _check_seconds(config_cache_ttl, "config_cache_ttl", zero=True)
        self._cache = ConfigCache(self.namespace, ttl, clock.now_ms if clock else None, self._stored_id)
        self.usage_ms = _check_days(usage_days, "usage_days")
        self.audit_ms = _check_days(audit_days, "audit_days")
        self.actor = os_user() if actor is None else check_actor(actor)
        self._entered_until = 0.0  # the namespace was there, by time.monotonic()
        self._closed = False
        self.events = Events(on_event)
        # Not asked at every acquire, which is the hottest path there is: again when a chain is read. The first acquire
        # takes no short cut: it registers the namespace.
        self._watched = True
        self._breaker = Breaker(str(shown_url(url)), self.events)
        self._fallback = Fallback(self.namespace)
        self._watchers = Watchers()
        self._slot_queues: SlotQueues
        self._renewal: Any
        self._take: Callable[[Sequence[str], Parts, int], Answer] | None = None  # of a store in this process
        self._open()
        self._wire()

    @abstractmethod
    def _open(self) -> None:
        """Open the store, without waiting for it."""

    @abstractmethod
    def _wire(self) -> None:
        """Choose the ways to decide and to ask the store: past those who watch, if there are any."""

    def watch(self, watcher: Watcher) -> None:
        """Tell it of every decision and every call to the store, until `unwatch`."""
        self._watchers.add(watcher)
        self._wire()

    def unwatch(self, watcher: Watcher) -> None:
        """Tell it of nothing any more."""
        self._watchers.remove(watcher)
        self._wire()

    def _policy(self, chain: Chain | None, on_unavailable: str | None) -> str:
        """What to do when the store is away: as the call says, else as is stored, else as the limiter says."""
        stored = chain.shape.on_unavailable if chain else self._cache.on_unavailable
        return on_unavailable or stored or self.on_unavailable

    @property
    def outage_policy(self) -> str:
        """What to do when the store is away: as is stored, as far as it was read, else as the limiter says."""
        return self._policy(None, None)

    @property
    def watchers(self) -> Watchers:
        """The registered watchers. An HTTP adapter reports misconfigured rules to them."""
        return self._watchers

    @property
    def clock(self) -> Clock:
        """The one it was given, or the machine's."""
        return self._clock

    @property
    def breaker_state(self) -> BreakerState:
        """closed: the store answers. open: it does not, and is left alone for a while. half-open: it is being tried."""
        return self._breaker.state

    @property
    def known_instances(self) -> int:
        """How many limiters share the namespace, as last counted. They are, where the outage policy is "local"."""
        return self._fallback.instances

    @property
    def waiters(self) -> int:
        """How many acquires wait for their turn in this process, at the moment."""
        return self._slot_queues.count()

    @property
    def leases_held(self) -> int:
        """How many leases of this process hold slots or are recorded, at the moment. The others hold nothing."""
        held: int = self._renewal.chores.held()
        return held

    def _keep(self, hold: HeldSlots) -> HeldSlots:
        """Renew what a lease holds until it ends."""
        self._renewal.chores.add(hold)
        self._renewal.wake(hold.due)
        return hold

    def _let_go(self, hold: HeldSlots) -> None:
        hold.ended = True
        self._renewal.chores.drop(hold)

    def _count_instances(self) -> None:
        if self._renewal.chores.count():
            self._renewal.wake(0.0)

    def _must_enter(self, call: StoreCall[Any]) -> bool:
        """Whether the namespace has to be looked at before a call, which is about something in it."""
        if time.monotonic() < self._entered_until:
            return False
        place = call.place()
        return bool(place) and not place.startswith(f"{REGISTRY}/")

    def _left(self, namespace: str) -> None:
        """A namespace has changed."""
        if namespace == self.namespace:
            self._entered_until = 0.0
            self._watched = True
            self._cache.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise LimiterClosed(f"this {type(self).__name__} for {shown_url(self.url)!r} is closed; make a new one")

    def invalidate_config_cache(self) -> None:
        """Forget what was read about limits and entities; the next acquire reads it again."""
        self._cache.clear()

    def get_cache_stats(self) -> CacheStats:
        """How often what was read about limits and entities was still known."""
        return self._cache.stats()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown_url(self.url)!r}, namespace={self.namespace!r})"
