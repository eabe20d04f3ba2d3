"""The page of an entity: its record, its limits and what is left, its usage, and its changes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import cycle

from ....charts import Series, TimeChart, largest, moments_of
from ....core.errors import EntityNotFound
from ....core.names import check_entity_id
from ....core.records import Entity, Page
from ....core.usage import UsageSummary, UsageWindow, Window, check_window, window_end, window_start
from ....limiter import RateLimiter, StoredLimits
from ..gauge import Gauge, gauge_of
from ..pages import Answer, Shown, Visit, page

_RESOURCES = 25  # that are shown; each costs a few reads
_CHILDREN = 12
_EVENTS = 8
_ANCESTORS = 8
_TONES = (1, 5, 3, 4, 6)
_BACK = {"hour": timedelta(hours=23), "day": timedelta(days=29), "month": timedelta(days=334)}


@page("GET", "/entities/{entity_id}")
async def entity(visit: Visit) -> Answer:
    entity_id = check_entity_id(visit.parts["entity_id"])
    window = check_window(visit.query.get("window") or "hour")
    limiter = visit.limiter
    found, (default, resources), usage, events = await asyncio.gather(
        _entity(limiter, entity_id),
        _limits(limiter, entity_id),
        _usage(limiter, entity_id, window),
        limiter.get_audit_events(entity_id, limit=_EVENTS),
    )
    children = await limiter.get_children(entity_id, limit=_CHILDREN) if found else Page[Entity]([])
    return Shown(
        "entity.html",
        {
            "entity_id": entity_id,
            "entity": found,
            "ancestors": await _ancestors(limiter, found),
            "children": children,
            "default": default,
            "resources": resources[:_RESOURCES],
            "more_resources": len(resources) > _RESOURCES,
            "window": window,
            "usage": usage,
            "events": events,
        },
    )


async def _entity(limiter: RateLimiter, entity_id: str) -> Entity | None:
    try:
        return await limiter.get_entity(entity_id)
    except EntityNotFound:
        return None  # limits and buckets do not need a record


async def _ancestors(limiter: RateLimiter, below: Entity | None) -> list[Entity]:
    """The nearest first."""
    found: list[Entity] = []
    while below is not None and below.parent_id is not None and len(found) < _ANCESTORS:
        below = await _entity(limiter, below.parent_id)
        if below is not None:
            found.append(below)
    return found


# What holds, and how much is left


@dataclass(frozen=True, slots=True)
class OnResource:
    """`own`: the limits that the entity has itself here."""

    resource: str
    gauges: Sequence[Gauge]
    own: StoredLimits


async def _limits(limiter: RateLimiter, entity_id: str) -> tuple[StoredLimits, list[OnResource]]:
    """Its default limits; and the resources on which it has its own limits or recent usage, and all with limits for
    everyone."""
    own, buckets, everyone = await asyncio.gather(
        limiter.get_own_limits(entity_id),
        limiter.get_buckets(entity_id),
        limiter.list_resources_with_defaults(limit=_RESOURCES),
    )
    named = [*filter(None, own), *(bucket.resource for bucket in buckets), *everyone]
    resources = list(dict.fromkeys(named))[: _RESOURCES + 1]
    resolved = await asyncio.gather(*(limiter.resolve_limits(entity_id, resource) for resource in resources))
    found = []
    for resource, held in zip(resources, resolved):
        by_name = {bucket.limit.name: bucket for bucket in buckets if bucket.resource == resource}
        gauges = [gauge_of(limit, by_name.pop(limit.name, None), held.sources[limit.name]) for limit in held.limits]
        gauges += [Gauge.of(bucket) for bucket in by_name.values()]
        found.append(OnResource(resource, gauges, own.get(resource) or StoredLimits()))
    return own.get(None) or StoredLimits(), found


# What was used


@dataclass(frozen=True, slots=True)
class UsageChart:
    """The usage of one limit on all resources: a chart, its numbers, and a summary."""

    limit_name: str
    chart: TimeChart
    rows: Sequence[tuple[str, Sequence[int | float]]]
    summary: UsageSummary


async def _usage(limiter: RateLimiter, entity_id: str, window: Window) -> list[UsageChart]:
    starts = _starts(window)
    windows, summaries = await asyncio.gather(
        limiter.get_usage(entity_id, None, window, starts[0]),
        limiter.get_usage_summary(entity_id, None, window, starts[0]),
    )
    # A resource has the same colour in all charts. Orange is reserved for refusals.
    tones = dict(zip(sorted({one.resource for one in windows}), cycle(_TONES)))
    return [_used(name, window, starts, windows, tones, summary) for name, summary in summaries.items()]


def _used(
    name: str,
    window: Window,
    starts: Sequence[datetime],
    windows: Sequence[UsageWindow],
    tones: Mapping[str, int],
    summary: UsageSummary,
) -> UsageChart:
    consumed = {(one.resource, one.start): one.consumed[name] for one in windows if name in one.consumed}
    resources = dict.fromkeys(resource for resource, _ in consumed)
    series = largest(
        [Series(one, [consumed.get((one, start), 0) for start in starts], tones[one]) for one in resources],
        len(_TONES),
    )
    moments = moments_of(starts, window)
    words = f"{summary.total:,} in all, {summary.peak:,} in the {window} with most."
    rows = [(moment, [one.values[index] for one in series]) for index, moment in enumerate(moments.names)]
    return UsageChart(name, TimeChart(f"{name} used by {window}", words, moments, series, height=170), rows, summary)


def _starts(window: Window) -> list[datetime]:
    """Of the windows that are shown, the newest last and not yet over."""
    now = datetime.now(timezone.utc)
    starts = [window_start(window, now - _BACK[window])]
    while (following := window_end(window, starts[-1])) <= now:
        starts.append(following)
    return starts
