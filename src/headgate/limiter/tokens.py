"""Acquiring, and everything else that moves or reads tokens without a lease."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.decide import Answer, Mode, Parts, Request, refund
from ..core.errors import RateLimiterUnavailable, ValidationError
from ..core.limit import Limit
from ..core.names import bucket_key, check_resource
from ..core.units import MILLI, seconds_to_ms, signed_tokens_to_milli, tokens_to_milli, wait_to_ms
from ..plan import DeleteBuckets, Plan, Settle, Sleep
from .base import BaseLimiter, check_on_unavailable
from .chain import Chain, Shape
from .config import chain_plan

log = logging.getLogger("headgate")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `take_plan` found out. No parts and no answer: the store is away, and that is allowed."""

    chain: Chain
    parts: Parts | None = None
    answer: Answer | None = None
    max_wait_ms: int = 0


def take_plan(
    limiter: BaseLimiter,
    entity_id: str,
    resource: str,
    consume: Mapping[str, Any],
    limits: Iterable[Limit] | None,
    max_wait: float,
    on_unavailable: str | None,
) -> Plan[Outcome]:
    """Take, and sleep if the tokens were taken from the future. Whatever ends the sleep early gives them back."""
    max_wait_ms = wait_to_ms(max_wait, "max_wait")
    if on_unavailable is not None:
        check_on_unavailable(on_unavailable)
    chain = None
    try:
        chain = yield from chain_plan(limiter, entity_id, resource, limits)
        parts = chain.parts(consume)
        request = chain.request(parts, max_wait_ms)
        answer = yield from Settle(request)
    except RateLimiterUnavailable:
        if limiter._policy(chain, on_unavailable) != "allow":
            raise
        return Outcome(chain or Chain((), Shape([], [])))
    if answer.allowed and answer.wait_ms:
        try:
            yield from Sleep(answer.wait_ms / MILLI)
        except GeneratorExit:
            raise
        except BaseException:
            try:
                yield from Settle(refund(request))
            except RateLimiterUnavailable as unavailable:
                log.warning("a reservation could not be given back: %s", unavailable)
            raise
    return Outcome(chain, parts, answer, max_wait_ms)


def available_plan(
    limiter: BaseLimiter, entity_id: str, resource: str, limits: Iterable[Limit] | None = None
) -> Plan[dict[str, int]]:
    """Whole tokens an acquire could take now, by limit name: the lowest of the chain, negative in debt."""
    chain = yield from chain_plan(limiter, entity_id, resource, limits)
    request = Request(Mode.PEEK, chain.keys, chain.shape.spread(dict.fromkeys(chain.limits(), 0)))
    answer = yield from Settle(request)
    lowest: dict[str, int] = {}
    for part, (available_milli, _) in zip(request.parts, answer.levels):
        name = part.limit.name
        lowest[name] = min(available_milli // MILLI, lowest.get(name, available_milli // MILLI))
    return lowest


def time_until_available_plan(
    limiter: BaseLimiter,
    entity_id: str,
    resource: str,
    needed: Mapping[str, Any],
    limits: Iterable[Limit] | None = None,
) -> Plan[float | None]:
    """Seconds until an acquire of `needed` would pass: 0.0 if now, None if never."""
    chain = yield from chain_plan(limiter, entity_id, resource, limits)
    answer = yield from Settle(Request(Mode.PEEK, chain.keys, chain.shape.spread(chain.amounts(needed))))
    return None if answer.wait_ms is None else answer.wait_ms / MILLI


def adjust_plan(
    limiter: BaseLimiter,
    entity_id: str,
    resource: str,
    amounts: Mapping[str, Any],
    limits: Iterable[Limit] | None = None,
) -> Plan[None]:
    """Correct consumption without a lease: +n was used, -n comes back. Never refuses; counts on the whole chain."""
    chain = yield from chain_plan(limiter, entity_id, resource, limits)
    if not isinstance(amounts, Mapping) or not amounts:
        raise ValidationError(f"amounts must name at least one limit, like {{'tpm': 120}}, not {amounts!r}")
    chain.check_names(amounts)
    milli = {name: signed_tokens_to_milli(amount, f"amount of {name!r}") for name, amount in amounts.items()}
    yield from Settle(Request(Mode.FORCE, chain.keys, chain.shape.spread(milli)))


def penalize_plan(
    limiter: BaseLimiter,
    entity_id: str,
    resource: str,
    *,
    seconds: float | None = None,
    factor: float | None = None,
    limits: Iterable[Limit] | None = None,
) -> Plan[None]:
    """After a vendor's 429: let nothing pass for `seconds`, or keep only `factor` (0 to 1) of the tokens, or both.

    It holds for the entity's own buckets, not for its ancestors'.
    """
    if seconds is None and factor is None:
        raise ValidationError("penalize needs seconds= or factor=")
    block_ms = 0 if seconds is None else seconds_to_ms(seconds, "seconds", least_ms=0)
    keep_milli = MILLI
    if factor is not None:
        keep_milli = 0 if factor == 0 else tokens_to_milli(factor, "factor", most=1)
    chain = yield from chain_plan(limiter, entity_id, resource, limits)
    own = Shape([chain.limits()], chain.shape.revisions).spread(dict.fromkeys(chain.limits(), 0))
    yield from Settle(Request(Mode.PENALIZE, chain.keys[:1], own, block_ms=block_ms, keep_milli=keep_milli))


def reset_plan(limiter: BaseLimiter, entity_id: str, resource: str) -> Plan[None]:
    """Make the entity's buckets on the resource full again, penalties and debts forgotten. Ancestors keep theirs."""
    key = bucket_key(limiter.namespace, limiter._stored_id(entity_id), check_resource(resource))
    yield from DeleteBuckets([key])
