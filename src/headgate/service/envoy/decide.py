"""One question of Envoy's is one decision: all its descriptors pass, or none does."""

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
from .wishes import Kind, Wish

log = logging.getLogger("headgate")

Found: TypeAlias = "Mapping[Wish, Sequence[LimitStatus]]"


class Verdict(NamedTuple):
    """Whether the request passes; what all limits that may refuse it said; and what each wish found.

    A wish that found nothing passed because the store is away.
    """

    allowed: bool
    statuses: Sequence[LimitStatus]
    found: Found


async def decide(limiter: RateLimiter, wishes: Sequence[Wish]) -> Verdict:
    """Looks come first: what they see may refuse the request, and then nothing is taken."""
    kinds = _by_kind(wishes)
    if not kinds["look"] and not kinds["used"]:  # as nearly always
        return await _take_all(limiter, kinds["shadow"], kinds["enforced"])
    seen = await _look_all(limiter, kinds["look"])
    if any(status.exceeded for status in _refusing(seen)):
        takes = [wish for wish in wishes if wish.kind != "look"]
        found = {**await _look_all(limiter, takes), **seen}
        return Verdict(False, _refusing(found), found)
    allowed, statuses, taken = await _take_all(limiter, kinds["shadow"], kinds["enforced"])
    if allowed:
        await _count_all(limiter, kinds["used"])
    found = {**seen, **taken, **await _look_all(limiter, kinds["used"])}
    return Verdict(allowed, [*_refusing(seen), *statuses], found)


def _by_kind(wishes: Sequence[Wish]) -> dict[Kind, list[Wish]]:
    kinds: dict[Kind, list[Wish]] = {"look": [], "enforced": [], "shadow": [], "used": []}
    for wish in wishes:
        kinds[wish.kind].append(wish)
    return kinds


def _refusing(found: Found) -> list[LimitStatus]:
    return [status for wish, statuses in found.items() if not wish.never_refuses for status in statuses]


async def _take_all(limiter: RateLimiter, shadows: Sequence[Wish], enforced: Sequence[Wish]) -> Verdict:
    """In one call to the store. Shadows are decided each by itself, whatever becomes of the others."""
    asks: list[Ask | Sequence[Ask]] = [wish.ask for wish in shadows]
    if enforced:
        asks.append(enforced[0].ask if len(enforced) == 1 else [wish.ask for wish in enforced])
    decisions = await limiter.try_acquire_each(asks)
    for wish, decision in zip(shadows, decisions):
        _tell(limiter, wish, decision)
    found: dict[Wish, Sequence[LimitStatus]] = {wish: each.statuses for wish, each in zip(shadows, decisions)}
    if not enforced:
        return Verdict(True, (), found)
    together = decisions[-1]
    if together.error is not None:
        raise together.error
    statuses = together.statuses
    found |= zip(enforced, [statuses] if len(enforced) == 1 else together.statuses_by_ask)
    return Verdict(together.allowed, statuses, found)


def _tell(limiter: RateLimiter, wish: Wish, decision: Decision[Lease]) -> None:
    if decision.error is not None:
        log.error("%s", decision.error)
    elif not decision.allowed:
        limiter.observers.tell(
            "shadow.refused",
            rule=wish.resource,
            entity_id=decision.statuses[0].entity_id,
            retry_after_ms=decision.retry_after_ms,
        )


async def _count_all(limiter: RateLimiter, wishes: Sequence[Wish]) -> None:
    """Whatever is left: it was used already."""
    counting = [limiter.adjust(wish.entity_id, wish.resource, wish.amounts, wish.limits) for wish in wishes]
    with _unless_blocking(limiter):
        await asyncio.gather(*counting)


async def _look_all(limiter: RateLimiter, wishes: Sequence[Wish]) -> dict[Wish, Sequence[LimitStatus]]:
    seen = await asyncio.gather(*(_look(limiter, wish) for wish in wishes)) if wishes else ()
    return dict(zip(wishes, seen))


async def _look(limiter: RateLimiter, wish: Wish) -> list[LimitStatus]:
    """Whether one hit would pass."""
    needed = from_milli(wish.cost_milli)
    statuses: list[LimitStatus] = []
    with _unless_blocking(limiter):
        left = await limiter.available(wish.entity_id, wish.resource, wish.limits)
        for limit in wish.limits:
            wait: float | None = 0.0
            if left[limit.name] < needed:
                need = {limit.name: needed}
                wait = await limiter.time_until_available(wish.entity_id, wish.resource, need, wish.limits)
            wait_ms = None if wait is None else round(wait * MILLI)
            whose = (wish.entity_id, wish.resource, limit.name, limit)
            statuses.append(LimitStatus(*whose, left[limit.name], needed, wait_ms != 0, wait_ms))
    return statuses


@contextmanager
def _unless_blocking(limiter: RateLimiter) -> Iterator[None]:
    """The outage policy, for calls that have none of their own."""
    try:
        yield
    except RateLimiterUnavailable:
        if limiter.on_unavailable == "block":
            raise
