"""Reading and correcting what is left of limits."""

from __future__ import annotations

from dataclasses import replace

from msgspec import UNSET

from ..core.limit import Limit
from ..core.units import MILLI, from_milli
from ..limiter import BucketStatus, RateLimiter
from .limits import limits_of
from .operations import Asked, operation
from .schema import AdjustForm, Available, LimitUsage, PenalizeForm, PlaceForm, UsageQuery, UsageReply


@operation("GET", "/v1/available", "read")
async def available(asked: Asked, query: PlaceForm) -> Available:
    """Get the whole tokens available now, by limit name: the lowest of the entity and its ancestors."""
    return Available(await asked.limiter.available(query.entity_id, query.resource))


@operation("GET", "/v1/usage", "read")
async def usage(asked: Asked, query: UsageQuery) -> UsageReply:
    """Get what an entity uses of its limits now. With `resource`, unused limits are included."""
    limiter = asked.limiter
    resource = None if query.resource is UNSET else query.resource
    buckets = await limiter.get_buckets(query.entity_id, resource)
    now_ms, limits_on = limiter.clock.now_ms(), dict[str, dict[str, Limit]]()
    found = [_used(await _in_full(limiter, bucket, query.entity_id, limits_on), now_ms) for bucket in buckets]
    if resource is not None:
        seen = {bucket.limit.name for bucket in buckets}
        limits, _ = await limiter.resolve_limits(query.entity_id, resource)
        found += [
            _used(BucketStatus(query.entity_id, resource, limit, int(limit.capacity), 0.0, 0.0), now_ms)
            for limit in limits
            if limit.name not in seen
        ]
    return UsageReply(query.entity_id, found)


async def _in_full(
    limiter: RateLimiter, bucket: BucketStatus, entity_id: str, limits_on: dict[str, dict[str, Limit]]
) -> BucketStatus:
    """A quota that was read from a store lacks its calendar, which the limits in force have."""
    limit, resource = bucket.limit, bucket.resource
    if not limit.is_quota or limit.calendar is not None or limit.period_ms:
        return bucket
    if resource not in limits_on:
        limits, _ = await limiter.resolve_limits(entity_id, resource)
        limits_on[resource] = {one.name: one for one in limits}
    known = limits_on[resource].get(limit.name)
    if known is None or known.calendar is None:
        return bucket
    return replace(bucket, limit=known.changed(capacity_milli=limit.capacity_milli))


def _used(bucket: BucketStatus, now_ms: int) -> LimitUsage:
    limit = bucket.limit
    untouched = not limit.is_concurrent and not bucket.full_in_seconds  # `available` is rounded down
    used = 0 if untouched else from_milli(limit.capacity_milli - bucket.available * MILLI)
    return LimitUsage(
        bucket.resource,
        limit.name,
        str(limit),
        limit.capacity,
        bucket.available,
        used,
        bucket.full_in_seconds,
        bucket.blocked_for_seconds,
        _resets_at_ms(bucket, now_ms) if limit.is_quota else UNSET,
    )


def _resets_at_ms(bucket: BucketStatus, now_ms: int) -> int | None:
    calendar = bucket.limit.calendar
    if calendar is not None:
        return calendar.window(now_ms).ends_ms
    return now_ms + round(bucket.full_in_seconds * MILLI) if bucket.full_in_seconds else None


@operation("POST", "/v1/adjust", "decide")
async def adjust(asked: Asked, body: AdjustForm) -> None:
    """Report what was used, afterwards and without a lease. Never refuses; applies to the ancestors too."""
    await asked.limiter.adjust(body.entity_id, body.resource, body.amounts, limits_of(body.limits))


@operation("POST", "/v1/penalize", "decide")
async def penalize(asked: Asked, body: PenalizeForm) -> None:
    """Let nothing pass for a while, or keep only a part of the tokens, for instance after a vendor's 429."""
    await asked.limiter.penalize(
        body.entity_id,
        body.resource,
        seconds=body.seconds,
        factor=body.factor,
        limits=limits_of(body.limits),
        actor=asked.actor,
    )


@operation("POST", "/v1/reset", "admin")
async def reset(asked: Asked, body: PlaceForm) -> None:
    """Fill the buckets of an entity on a resource, and free all its slots."""
    await asked.limiter.reset(body.entity_id, body.resource, actor=asked.actor)
