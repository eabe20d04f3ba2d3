"""Decisions, and the leases they create."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import UNSET

from ..core.errors import RateLimiterUnavailable, ValidationError
from ..core.limit import DEFAULT_TTL_SECONDS, Limit
from ..core.status import LimitStatus
from ..http.answer import HttpRefusal
from ..http.call import HttpCall
from ..limiter import Ask, Decision, Lease, RateLimiter
from ..limiter.acquire.chain import ONE_OF_EACH
from .bounds import MAX_BATCH_BYTES
from .limits import limits_of
from .operations import Asked, operation
from .problems import ProblemError, corrupt_words
from .schema import (
    MAX_ASKS,
    AcquireForm,
    AmountsForm,
    AskForm,
    BatchDecided,
    BatchForm,
    BatchReply,
    CheckForm,
    CheckReply,
    Consumed,
    Decided,
    Nothing,
    ReleaseForm,
    Renewed,
    Status,
)

log = logging.getLogger("headgate")


@operation("POST", "/v1/acquire", "decide")
async def acquire(asked: Asked, body: AcquireForm) -> Decided:
    """Take from every limit named in `consume`, all or nothing.

    A refusal is a normal response: `allowed` is false, and `retry_after_seconds` says when the same request would pass.
    With `lease`, and always when slots are taken, the response has the id of a lease. The holder of slots must renew
    the lease and release it; without renewal it expires.
    """
    limits = limits_of(body.limits)
    plain = _takes_no_slots(asked.limiter, body, limits)
    lasting = {} if plain else await _lasting(asked.limiter, body, limits)
    deciding = asked.limiter.try_acquire(
        body.entity_id,
        body.resource,
        ONE_OF_EACH if body.consume is None else body.consume,
        limits,
        max_wait=body.max_wait,
        on_unavailable=body.on_unavailable,
        **lasting,
    )
    decision = await (asked.service.waiting.run(deciding, asked.receive) if body.max_wait else deciding)
    said, slots = [], False
    for status in decision.statuses:
        said.append(_status(status))
        slots = slots or status.limit.is_concurrent
    lease_id = await _left(decision, bool(lasting)) if slots or lasting else None
    return Decided(decision.allowed, decision.retry_after_seconds, decision.degraded, lease_id, said)


def _takes_no_slots(limiter: RateLimiter, body: AcquireForm, limits: Sequence[Limit] | None) -> bool:
    """Whether there will be no lease, as far as is known without the store: the usual case."""
    if body.lease is not None:
        return False
    if limits is not None:
        return not any(limit.is_concurrent for limit in limits)
    known = limiter.engine.chain_of(body.entity_id, body.resource)
    return known is not None and not known.shape.has_slots


async def _lasting(limiter: RateLimiter, body: AcquireForm, limits: Sequence[Limit] | None) -> dict[str, Any]:
    """The options of the lease, if there will be one."""
    if limits is None:
        try:
            limits, _ = await limiter.resolve_limits(body.entity_id, body.resource)
        except RateLimiterUnavailable:
            limits = ()  # the outage policy decides
    names = body.consume
    ttls = [
        limit.refill_period_seconds
        for limit in limits
        if limit.is_concurrent and (names is None or limit.name in names)
    ]
    if body.lease is None:
        return {"record_lease": True, "lease_ttl": min(ttls)} if ttls else {}
    ttl = body.lease.ttl_seconds or min(ttls, default=DEFAULT_TTL_SECONDS)
    return {"record_lease": True, "restore_on_expiry": body.lease.restore_on_expiry, "lease_ttl": ttl}


async def _left(decision: Decision[Lease], recorded: bool) -> str | None:
    """The id of a lease that the client must end."""
    lease = decision.lease
    if lease is None:
        return None
    if decision.degraded:
        await lease.commit()  # only this process knows it, and the client may reach another one
        return None
    if recorded:
        return lease.detach()
    # An ancestor has slots under the name of a limit on tokens.
    await lease.rollback()
    raise ValidationError("slots need a lease: send lease, like {'ttl_seconds': 60}")


@operation("POST", "/v1/acquire/batch", "decide", max_bytes=MAX_BATCH_BYTES)
async def acquire_batch(asked: Asked, body: BatchForm) -> BatchReply:
    """Make many decisions in one call to the store, as if they were made one after the other.

    Each element is decided on its own; an element that is a list of asks passes or fails as a whole. There is no
    waiting, and there are no leases: asks for slots are refused, since they could not be released. If one ask is
    invalid, nothing is taken for any. If the stored state of one is corrupt, only that one fails, with `error`.
    """
    asks = _asks(body)
    decisions = await asked.limiter.try_acquire_each(asks, on_unavailable=body.on_unavailable)
    if any(_holds(decision) for decision in decisions):
        await _undo(decisions)
        raise ValidationError("an ask is for slots, which need a lease: use POST /v1/acquire")
    return BatchReply([_decided(one, body.statuses) for one in decisions])


def _asks(body: BatchForm) -> list[Ask | list[Ask]]:
    count = sum(1 if isinstance(element, AskForm) else len(element) for element in body.asks)
    if count > MAX_ASKS:
        raise ValidationError(f"asks has {count} in all, and the maximum is {MAX_ASKS}: send several batches")
    return [_ask(element) if isinstance(element, AskForm) else list(map(_ask, element)) for element in body.asks]


async def _undo(decisions: Iterable[Decision[Lease]]) -> None:
    for decision in decisions:
        for lease in decision.leases:
            await lease.rollback()


def _decided(decision: Decision[Lease], with_statuses: bool) -> BatchDecided:
    said = BatchDecided(decision.allowed, decision.retry_after_seconds, decision.degraded)
    if decision.error is not None:
        log.error("%s", decision.error)
        said.error = corrupt_words(decision.error)
    if with_statuses:
        said.limits = [_status(status) for status in decision.statuses]
    return said


def _ask(form: AskForm) -> Ask:
    return Ask(form.entity_id, form.resource, form.consume, limits_of(form.limits))


def _holds(decision: Decision[Lease]) -> bool:
    """Whether slots were taken: the entity may have slots that the ask does not name."""
    return decision.holds_slots and any(status.limit.is_concurrent for status in decision.statuses)


def _status(status: LimitStatus) -> Status:
    return Status(
        status.entity_id,
        status.resource,
        status.limit_name,
        *_numbers(status.limit),
        status.available,
        status.requested,
        status.exceeded,
        status.retry_after_seconds,
        status.resets_at_ms if status.limit.is_quota else UNSET,
    )


@lru_cache(4096)
def _numbers(limit: Limit) -> tuple[int | float, int | float, int | float]:
    return limit.capacity, limit.refill_amount, limit.refill_period_seconds


# Leases


@operation("POST", "/v1/leases/{lease_id}/release", "decide", problems=(410,))
async def release_lease(asked: Asked, lease_id: str, body: ReleaseForm) -> Consumed:
    """End a lease: its slots are freed, and with `rollback` its tokens are given back.

    With `amounts`, only these are given back, and the lease continues.
    """
    return Consumed(await asked.limiter.release_lease(lease_id, body.amounts, rollback=body.rollback))


@operation("POST", "/v1/leases/{lease_id}/adjust", "decide", problems=(410,))
async def adjust_lease(asked: Asked, lease_id: str, body: AmountsForm) -> Consumed:
    """Correct what a lease has taken. Never refuses."""
    return Consumed(await asked.limiter.adjust_lease(lease_id, body.amounts))


@operation("POST", "/v1/leases/{lease_id}/renew", "decide", problems=(410,))
async def renew_lease(asked: Asked, lease_id: str, body: Nothing) -> Renewed:
    """Extend a lease and its slots by its full duration. Renew every third of `ttl_seconds`."""
    return Renewed(await asked.limiter.renew_lease(lease_id))


# Rules


class FormCall(HttpCall):
    """A request that another server received. `native` is the form."""

    __slots__ = ()

    def __init__(self, form: CheckForm) -> None:
        path = form.path.partition("?")[0]
        if not path.startswith("/"):
            raise ValidationError(f"path must start with '/', as in the request itself, not {form.path[:80]!r}")
        super().__init__(form.method.upper(), unquote(path), form)
        self.caller = form.entity_id

    def headers(self, name: str) -> list[str]:
        return []

    @property
    def peer(self) -> str | None:
        address: str | None = self.native.address
        return address

    @property
    def user(self) -> str | None:
        user: str | None = self.native.user
        return user


@operation("POST", "/v1/check", "decide")
async def check(asked: Asked, body: CheckForm) -> CheckReply:
    """Decide on a request to an API by the rules of the service, and take its cost.

    The response has what the middleware would send: headers to add to the API's response or, if the request is
    refused, the whole response.
    """
    if asked.gate is None:
        raise ProblemError(404, "the service has no rules: start it with --rules FILE, or --rules stored")
    if body.entity_id is not None:
        asked.limiter.engine.stored_id(body.entity_id)  # the rules would take a bad id for a mistake of their own
    verdict = await asked.gate.check(FormCall(body))
    if isinstance(verdict, HttpRefusal):
        if verdict.refused is None:
            raise ProblemError.with_(verdict)
        return CheckReply(False, verdict.status, dict(verdict.headers), msgspec.json.decode(verdict.body))
    if verdict.leases:
        for lease in verdict.leases:
            await lease.rollback()
        raise ValidationError("a rule for this request has slots, which need a lease: use POST /v1/acquire")
    return CheckReply(True, 200, dict(verdict.headers), None)
