"""One request from Envoy is one decision: all its descriptors pass, or none does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from ...core.errors import RateLimiterUnavailable
from ...core.status import LimitStatus
from ...core.units import MILLI, from_milli
from ...limiter import Ask, Decision, Lease, RateLimiter
from .descriptors import Kind, MatchedDescriptor

log = logging.getLogger("headgate")

Found: TypeAlias = "Mapping[MatchedDescriptor, Sequence[LimitStatus]]"


class EnvoyDecision(NamedTuple):
    """Whether the request passes, the statuses of all limits that may refuse it, and those of each match.

    A match without statuses passed because the store is unavailable.
    """

    allowed: bool
    statuses: Sequence[LimitStatus]
    found: Found


async def decide(limiter: RateLimiter, matches: Sequence[MatchedDescriptor]) -> EnvoyDecision:
    """Looks come first: if one refuses the request, nothing is taken."""
    if len(matches) == 1 and matches[0].kind == "enforced":  # the usual case
        match = matches[0]
        decision = await limiter.try_acquire(match.entity_id, match.resource, match.amounts, match.limits)
        found_here = decision.statuses
        return EnvoyDecision(decision.allowed, found_here, {match: found_here})
    kinds = _by_kind(matches)
    if not kinds["look"] and not kinds["used"]:
        return await _take_all(limiter, kinds["shadow"], kinds["enforced"])
    seen = await _look_all(limiter, kinds["look"])
    if any(status.exceeded for status in _refusing(seen)):
        takes = [match for match in matches if match.kind != "look"]
        found = {**await _look_all(limiter, takes), **seen}
        return EnvoyDecision(False, _refusing(found), found)
    allowed, statuses, taken = await _take_all(limiter, kinds["shadow"], kinds["enforced"])
    if allowed:
        await _count_all(limiter, kinds["used"])
    found = {**seen, **taken, **await _look_all(limiter, kinds["used"])}
    return EnvoyDecision(allowed, [*_refusing(seen), *statuses], found)


def _by_kind(matches: Sequence[MatchedDescriptor]) -> dict[Kind, list[MatchedDescriptor]]:
    kinds: dict[Kind, list[MatchedDescriptor]] = {"look": [], "enforced": [], "shadow": [], "used": []}
    for match in matches:
        kinds[match.kind].append(match)
    return kinds


def _refusing(found: Found) -> list[LimitStatus]:
    return [status for match, statuses in found.items() if not match.never_refuses for status in statuses]


async def _take_all(
    limiter: RateLimiter, shadows: Sequence[MatchedDescriptor], enforced: Sequence[MatchedDescriptor]
) -> EnvoyDecision:
    """Take in one call to the store. Each shadow is decided on its own, whatever the other decisions are."""
    asks: list[Ask | Sequence[Ask]] = [match.ask for match in shadows]
    if enforced:
        asks.append(enforced[0].ask if len(enforced) == 1 else [match.ask for match in enforced])
    decisions = await limiter.try_acquire_each(asks)
    for match, decision in zip(shadows, decisions):
        _tell(limiter, match, decision)
    found: dict[MatchedDescriptor, Sequence[LimitStatus]] = {
        match: each.statuses for match, each in zip(shadows, decisions)
    }
    if not enforced:
        return EnvoyDecision(True, (), found)
    together = decisions[-1]
    if together.error is not None:
        raise together.error
    statuses = together.statuses
    found |= zip(enforced, [statuses] if len(enforced) == 1 else together.statuses_by_ask)
    return EnvoyDecision(together.allowed, statuses, found)


def _tell(limiter: RateLimiter, match: MatchedDescriptor, decision: Decision[Lease]) -> None:
    if decision.error is not None:
        log.error("%s", decision.error)
    elif not decision.allowed:
        limiter.observers.tell(
            "shadow.refused",
            rule=match.resource,
            entity_id=decision.statuses[0].entity_id,
            retry_after_ms=decision.retry_after_ms,
        )


async def _count_all(limiter: RateLimiter, matches: Sequence[MatchedDescriptor]) -> None:
    """Count hits that were used already, whatever is left."""
    counting = [limiter.adjust(match.entity_id, match.resource, match.amounts, match.limits) for match in matches]
    with _unless_blocking(limiter):
        await asyncio.gather(*counting)


async def _look_all(
    limiter: RateLimiter, matches: Sequence[MatchedDescriptor]
) -> dict[MatchedDescriptor, Sequence[LimitStatus]]:
    seen = await asyncio.gather(*(_look(limiter, match) for match in matches)) if matches else ()
    return dict(zip(matches, seen))


async def _look(limiter: RateLimiter, match: MatchedDescriptor) -> list[LimitStatus]:
    """The statuses of one hit, without taking it."""
    needed, now_ms = from_milli(match.cost_milli), limiter.clock.now_ms()
    statuses: list[LimitStatus] = []
    with _unless_blocking(limiter):
        left = await limiter.available(match.entity_id, match.resource, match.limits)
        for limit in match.limits:
            wait: float | None = 0.0
            if left[limit.name] < needed:
                need = {limit.name: needed}
                wait = await limiter.time_until_available(match.entity_id, match.resource, need, match.limits)
            wait_ms = None if wait is None else round(wait * MILLI)
            whose = (match.entity_id, match.resource, limit.name, limit)
            resets_ms = None if limit.calendar is None else limit.calendar.window(now_ms).ends_ms - now_ms
            statuses.append(LimitStatus(*whose, left[limit.name], needed, wait_ms != 0, wait_ms, resets_ms))
    return statuses


@contextmanager
def _unless_blocking(limiter: RateLimiter) -> Iterator[None]:
    """Applies the outage policy to calls without their own."""
    try:
        yield
    except RateLimiterUnavailable:
        if limiter.on_unavailable == "block":
            raise
