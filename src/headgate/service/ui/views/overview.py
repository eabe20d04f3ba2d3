"""The overview and the audit trail. They cost the same however many entities there are."""

from __future__ import annotations

from time import monotonic

from ....charts import Moments, Series, TimeChart
from ....core.errors import RateLimiterUnavailable
from ....core.names import shown_url
from ....core.records import Page
from ....limiter import Alert
from ...reading import cursor_of
from ..live import SECONDS, Snapshot, snapshot
from ..pages import Answer, Context, Shown, Visit, page, read_cursor
from .buckets import tightest

_STEP = 2  # seconds that a bar of the chart stands for
_RECENT = 6
_DELAY = 2  # seconds, after which the counts of all workers are there
_BREAKERS = ("closed", "half-open", "open")
_PER_PAGE = 50


@page("GET", "")
async def overview(visit: Visit) -> Answer:
    recent = await visit.limiter.get_audit_events(limit=_RECENT)
    return Shown("overview.html", {**await _state(visit), "events": recent})


@page("GET", "/live")
async def live(visit: Visit) -> Answer:
    """The part that is refreshed."""
    return Shown("live.html", await _state(visit))


async def _state(visit: Visit) -> Context:
    service = visit.dashboard.service
    context: Context = {
        "decides": visit.dashboard.decides,
        "store": shown_url(service.url).partition("://")[0],
        "workers": service.workers,
    }
    if not visit.dashboard.decides:
        page_of_store = await visit.limiter.list_buckets()
        return {
            **context,
            "alerts": await _alerts(visit),
            "buckets": tightest(page_of_store),
            "more_buckets": page_of_store.cursor is not None,
        }
    counts = service.counts(visit.token.namespace)
    states = [one.state for one in counts if one.state is not None]
    until = monotonic() - (_DELAY if service.shared else 0)
    now = snapshot([one.live for one in counts if one.live is not None], until)
    decided = now.total("allowed", "refused", "degraded", "unavailable")
    breaker = max((one.breaker for one in states), key=_BREAKERS.index)
    return {
        **context,
        "alerts": await _alerts(visit) if breaker == _BREAKERS[0] else None,
        "now": now,
        "decided": decided,
        "refused_share": now.total("refused") / decided if decided else 0.0,
        "chart": _chart(now),
        "breaker": breaker,
        "waiters": sum(one.waiters for one in states),
        "leases": sum(one.leases for one in states),
    }


async def _alerts(visit: Visit) -> Page[Alert] | None:
    """The latest. None if the store does not answer: the rest of the overview does not need it."""
    try:
        return await visit.limiter.list_alerts(limit=_RECENT)
    except RateLimiterUnavailable:
        return None


@page("GET", "/alerts")
async def alerts(visit: Visit) -> Answer:
    found = await visit.limiter.list_alerts(limit=_PER_PAGE, cursor=read_cursor(visit.query))
    return Shown("alerts.html", {"alerts": found, "cursor": cursor_of(found), "corrupt": found.corrupt})


def _chart(now: Snapshot) -> TimeChart:
    starts = range(SECONDS % _STEP, SECONDS, _STEP)

    def rates(*outcomes: str) -> list[float]:
        return [sum(sum(now.outcomes[one][start : start + _STEP]) for one in outcomes) / _STEP for start in starts]

    names = [f"{SECONDS - start} s ago" for start in starts]
    minutes = {index * len(names) // 5: f"\N{MINUS SIGN}{5 - index} min" for index in range(5)}
    series = [Series("allowed", rates("allowed"), 1), Series("refused", rates("refused"), 2)]
    others = Series("without the store", rates("degraded", "unavailable"), 4)
    if any(others.values):
        series.append(others)
    words = f"{now.rate('allowed'):,.0f} allowed and {now.rate('refused'):,.0f} refused per second now."
    return TimeChart(
        "Decisions per second in the last five minutes",
        words,
        Moments(names, {**minutes, len(names) - 1: "now"}),
        series,
        height=220,
    )


@page("GET", "/audit")
async def audit(visit: Visit) -> Answer:
    entity_id = visit.query.or_none("entity")
    events = await visit.limiter.get_audit_events(entity_id, limit=_PER_PAGE, cursor=read_cursor(visit.query))
    return Shown("audit.html", {"events": events, "entity_id": entity_id, "cursor": cursor_of(events)})
