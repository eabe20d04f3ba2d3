"""The limiter for threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from inspect import cleandoc
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from ..core.limit import DEFAULT_TTL_SECONDS, Limit
from .acquire.chain import ONE_OF_EACH
from .acquire.contexts import SyncAcquire, SyncAcquireMany
from .acquire.decision import Decision
from .acquire.decorator import Cost, Key, LimitSpec, limited_function
from .acquire.group import Asks, check_asks
from .acquire.options import PLAIN, OnError, OnUnavailable, Options, check_on_error
from .base import BaseLimiter
from .leases.lease import SyncLease
from .methods import LimiterMethods
from .misuse import SyncOnly
from .thread_engine import ThreadEngine
from .vendor.dimensions import Dimensions, dimension_of

P = ParamSpec("P")
T = TypeVar("T")


class SyncRateLimiter(SyncOnly, LimiterMethods, BaseLimiter):
    __doc__ = f"""Rate limits for threads: RateLimiter's methods without await. Thread-safe.

{cleandoc(BaseLimiter.__doc__ or "")}"""

    _engine_class = ThreadEngine
    engine: ThreadEngine

    def acquire(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, Any],
        limits: Iterable[Limit] | None = None,
        *,
        max_wait: float = 0,
        on_error: OnError = "rollback",
        on_unavailable: OnUnavailable | None = None,
        record_lease: bool = False,
        restore_on_expiry: bool = False,
        lease_ttl: float = DEFAULT_TTL_SECONDS,
        on_lost: Callable[[SyncLease], object] | None = None,
    ) -> AbstractContextManager[SyncLease]:
        """Take from every limit named in `consume`, or raise RateLimitExceeded; give back if the body raises.

        `max_wait`: wait up to so many seconds for the tokens, first come, first served.
        `on_error="keep"`: keep what was taken even if the body raises.
        `record_lease`: let the store know of the lease for as long as it lives; if it dies, `reconcile()` finds it
        `lease_ttl` seconds later, and gives back its tokens if `restore_on_expiry`.
        `on_lost`: called with the lease if it lost its slots (or its record), for others hold them now.
        """
        if on_error != "rollback":
            check_on_error(on_error)
        options = PLAIN
        if (
            max_wait != 0
            or on_unavailable is not None
            or record_lease
            or restore_on_expiry
            or lease_ttl is not DEFAULT_TTL_SECONDS
            or on_lost is not None
        ):
            options = Options(max_wait, on_unavailable, record_lease, restore_on_expiry, lease_ttl, on_lost)
        return SyncAcquire(self.engine, (entity_id, resource, consume, limits, options), on_error)

    def try_acquire(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, Any],
        limits: Iterable[Limit] | None = None,
        *,
        max_wait: float = 0,
        on_unavailable: OnUnavailable | None = None,
        record_lease: bool = False,
        restore_on_expiry: bool = False,
        lease_ttl: float = DEFAULT_TTL_SECONDS,
        on_lost: Callable[[SyncLease], object] | None = None,
    ) -> Decision[SyncLease]:
        """The same as a question: a refusal is a falsy Decision, not an exception, and there is no body to fail.

        A lease that holds slots has to be ended: `decision.lease.commit()`.
        """
        options = PLAIN
        if (
            max_wait != 0
            or on_unavailable is not None
            or record_lease
            or restore_on_expiry
            or lease_ttl is not DEFAULT_TTL_SECONDS
            or on_lost is not None
        ):
            options = Options(max_wait, on_unavailable, record_lease, restore_on_expiry, lease_ttl, on_lost)
        return self.engine.decide(entity_id, resource, consume, limits, options)

    def try_acquire_each(self, asks: Asks, *, on_unavailable: OnUnavailable | None = None) -> list[Decision[SyncLease]]:
        """Many decisions in one call to the store, each by itself, as if asked for one after the other.

        An element that is a list of asks passes or fails as a whole; its decision has a lease for each (`leases`).
        One whose stored state is corrupt does not pass, and its decision says why (`error`).
        """
        return self.engine.decide_each(check_asks(asks), on_unavailable)

    def slot(
        self,
        dimension: str,
        consume: Mapping[str, Any] | None = None,
        *,
        timeout: float = 30,
        limits: Iterable[Limit] | None = None,
        on_error: OnError = "rollback",
        on_unavailable: OnUnavailable | None = None,
        on_lost: Callable[[SyncLease], object] | None = None,
    ) -> AbstractContextManager[SyncLease]:
        """`acquire` for a vendor's quota, `"openai#gpt-4o"`, that waits up to `timeout` seconds for its turn.

        Without `consume`: one of every limit there is.
        """
        return self.acquire(
            *dimension_of(self.engine, dimension),
            ONE_OF_EACH if consume is None else consume,
            limits,
            max_wait=timeout,
            on_error=on_error,
            on_unavailable=on_unavailable,
            on_lost=on_lost,
        )

    def acquire_many(
        self,
        consume: Dimensions,
        *,
        limits: Mapping[str, Iterable[Limit]] | None = None,
        max_wait: float = 0,
        on_error: OnError = "rollback",
        on_unavailable: OnUnavailable | None = None,
        on_lost: Callable[[SyncLease], object] | None = None,
    ) -> AbstractContextManager[dict[str, SyncLease]]:
        """`acquire` over several dimensions, all or nothing: `{"openai#gpt-4o": {"rpm": 1, "tpm": 500}, ...}`.

        It gives a lease for each of them. None instead of amounts, or dimensions alone: one of every limit there is.
        """
        check_on_error(on_error)
        options = Options(max_wait, on_unavailable, on_lost=on_lost)
        return SyncAcquireMany(self.engine, consume, limits, options, on_error)

    def limit(
        self,
        spec: LimitSpec,
        *,
        key: Key = "everyone",
        cost: Cost = 1,
        resource: str | None = None,
        max_wait: float = 0,
        on_error: OnError = "rollback",
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Decorate a function: each call acquires `cost` under `spec`, for the entity that `key` names.

        `key` and `cost` may be functions of the call's arguments. The resource is the function's name.
        """

        return limited_function(self, spec, key, cost, resource, max_wait, on_error)

    def close(self) -> None:
        """Close the store. Idempotent."""
        self.engine.close()

    def __enter__(self) -> SyncRateLimiter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
