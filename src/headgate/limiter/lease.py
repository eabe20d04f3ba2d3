"""A lease: what an acquire took, and the right to change one's mind about it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..core.decide import Mode, Parts, Request
from ..core.errors import LeaseExpired, LimiterClosed, RateLimiterUnavailable, RateLimitExceeded, ValidationError
from ..core.units import from_milli, signed_tokens_to_milli
from ..plan import Call, Plan, Settle
from .bind import blocking, coroutine
from .chain import Chain, own_amounts
from .decision import statuses

if TYPE_CHECKING:
    from .asynchronous import RateLimiter
    from .synchronous import SyncRateLimiter

log = logging.getLogger("headgate")


class BaseLease:
    """`consumed` is the net so far. After the end of the lease only `consumed`, `degraded` and `id` can be used."""

    def __init__(self, chain: Chain, parts: Parts | None, on_error: str) -> None:
        self._chain = chain
        self._on_error = on_error
        self._taken_milli = own_amounts(parts) if parts else {}
        self._ended = ""
        self._id = ""
        self.degraded = parts is None

    @property
    def id(self) -> str:
        if not self._id:
            self._id = uuid.uuid4().hex
        return self._id

    @property
    def consumed(self) -> dict[str, int | float]:
        return {name: from_milli(milli) for name, milli in self._taken_milli.items()}

    def __repr__(self) -> str:
        state = self._ended or ("degraded" if self.degraded else "active")
        return f"<{type(self).__name__} {self.id} {state} consumed={self.consumed}>"

    def _check_active(self) -> None:
        if self._ended:
            raise LeaseExpired(f"this lease was {self._ended} already; take a new one with acquire()")

    def _consume_plan(self, /, **amounts: Any) -> Plan[None]:
        """Take more, all or nothing, checked in the store. Raises RateLimitExceeded."""
        self._check_active()
        if self.degraded:
            return
        parts = self._chain.parts(amounts)
        answer = yield from Settle(self._chain.request(parts))
        if not answer.allowed:
            raise RateLimitExceeded(statuses(self._chain, parts, answer))
        self._add(own_amounts(parts))

    def _adjust_plan(self, /, **amounts: Any) -> Plan[None]:
        """Correct what was taken: +n took more, -n took less than thought. Never refuses; debt is repaid by refill."""
        self._check_active()
        if self.degraded:
            return
        self._chain.check_names(amounts)
        yield from self._force_plan(
            {name: signed_tokens_to_milli(amount, f"amount of {name!r}") for name, amount in amounts.items()}
        )

    def _release_plan(self, /, **amounts: Any) -> Plan[None]:
        """Give back a part of what was taken."""
        self._check_active()
        if self.degraded:
            return
        self._chain.check_names(amounts)
        given = {}
        for name, amount in amounts.items():
            milli = signed_tokens_to_milli(amount, f"amount of {name!r}")
            taken = self._taken_milli.get(name, 0)
            if not 0 <= milli <= taken:
                raise ValidationError(f"cannot release {amount!r} of {name!r}: the lease holds {from_milli(taken)}")
            given[name] = -milli
        yield from self._force_plan(given)

    def _force_plan(self, amounts: Mapping[str, int]) -> Plan[None]:
        moved = {name: milli for name, milli in amounts.items() if milli}
        if not moved:
            return
        # Counted first: a force that is cancelled on its way still lands.
        self._add(moved)
        try:
            yield from Settle(Request(Mode.FORCE, self._chain.keys, self._chain.shape.spread(moved)))
        except RateLimiterUnavailable:
            # Nobody knows whether it landed. What may have been given back must not be given back again.
            self._add({name: -milli for name, milli in moved.items() if milli > 0})
            raise
        except Exception:
            self._add({name: -milli for name, milli in moved.items()})
            raise

    def _add(self, amounts: Mapping[str, int]) -> None:
        for name, milli in amounts.items():
            self._taken_milli[name] = self._taken_milli.get(name, 0) + milli

    def _commit_plan(self) -> Plan[None]:
        """End the lease and keep what it took. For leases that are not used with `with`."""
        self._check_active()
        self._ended = "committed"
        yield from ()

    def _rollback_plan(self) -> Plan[None]:
        """End the lease and give back what it took."""
        self._check_active()
        self._ended = "rolled back"
        taken = {name: -milli for name, milli in self._taken_milli.items() if milli > 0}
        yield from self._force_plan(taken)

    def _kept(self, error: BaseException | None) -> bool:
        """At the end of the body: is there nothing to give back?"""
        if not self._ended and (error is None or self._on_error == "keep"):
            self._ended = "committed"
        return bool(self._ended)

    def _undo_plan(self) -> Plan[None]:
        try:
            yield from self._rollback_plan()
        except (RateLimiterUnavailable, LimiterClosed) as error:
            # The body's own error matters more to the caller than this one.
            log.warning("lease %s could not be rolled back: %s", self.id, error)


class Lease(BaseLease):
    """What an `acquire` of RateLimiter yields."""

    def __init__(self, limiter: RateLimiter, chain: Chain, parts: Parts | None, on_error: str) -> None:
        super().__init__(chain, parts, on_error)
        self._limiter = limiter

    async def _perform(self, call: Call[Any]) -> Any:
        return await self._limiter._perform(call)

    consume = coroutine(BaseLease._consume_plan)
    adjust = coroutine(BaseLease._adjust_plan)
    release = coroutine(BaseLease._release_plan)
    commit = coroutine(BaseLease._commit_plan)
    rollback = coroutine(BaseLease._rollback_plan)
    _undo = coroutine(BaseLease._undo_plan)

    async def __aenter__(self) -> Lease:
        self._check_active()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._kept(error):
            await self._undo()


class SyncLease(BaseLease):
    """What an `acquire` of SyncRateLimiter yields."""

    def __init__(self, limiter: SyncRateLimiter, chain: Chain, parts: Parts | None, on_error: str) -> None:
        super().__init__(chain, parts, on_error)
        self._limiter = limiter

    def _perform(self, call: Call[Any]) -> Any:
        return self._limiter._perform(call)

    consume = blocking(BaseLease._consume_plan)
    adjust = blocking(BaseLease._adjust_plan)
    release = blocking(BaseLease._release_plan)
    commit = blocking(BaseLease._commit_plan)
    rollback = blocking(BaseLease._rollback_plan)
    _undo = blocking(BaseLease._undo_plan)

    def __enter__(self) -> SyncLease:
        self._check_active()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._kept(error):
            self._undo()
