"""Usage over time, and the audit trail."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from ..core.usage import Window
from .operations import Asked, operation
from .reading import cursor_of, read_cursor
from .schema import Cursor, EntityId, Input, Number, PageQuery, Resource

Moment = Annotated[datetime, Meta(tz=True, description="With a time zone, like 2026-01-31T12:00:00Z.")]


class RangeQuery(Input):
    """From the window that contains `start` to the last that begins before `end`; without them, the latest windows."""

    entity_id: EntityId | UnsetType = UNSET
    resource: Resource | UnsetType = UNSET
    window: Window = "hour"
    start: Moment | UnsetType = UNSET
    end: Moment | UnsetType = UNSET

    def asked(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in RangeQuery.__struct_fields__}
        return {name: value for name, value in given.items() if value is not UNSET}


class HistoryQuery(RangeQuery):
    cursor: Cursor = ""


class Windowed(Struct):
    entity_id: str
    resource: str
    window: Window
    start: datetime
    end: datetime
    consumed: dict[str, Number]


class UsageHistoryReply(Struct):
    """Windows without usage are left out. Without `entity_id`, the list is in pages."""

    items: list[Windowed]
    cursor: str | None


class Summed(Struct):
    total: Number
    average: float
    peak: Number
    peak_start: datetime


class UsageSummaryReply(Struct):
    limits: Annotated[dict[str, Summed], Meta(description="By limit name.")]


class AuditQuery(PageQuery):
    entity_id: EntityId | UnsetType = UNSET


class Audited(Struct):
    id: str
    at: datetime
    actor: str
    action: str
    namespace: str
    entity_id: str | None
    resource: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class AuditReply(Struct):
    items: list[Audited]
    cursor: str | None


@operation("GET", "/v1/usage/history", "read")
async def usage_history(asked: Asked, query: HistoryQuery) -> UsageHistoryReply:
    """List the exact consumption in each hour, day or month (UTC)."""
    page = await asked.limiter.get_usage(**query.asked(), cursor=read_cursor(query))
    items = [Windowed(one.entity_id, one.resource, one.window, one.start, one.end, one.consumed) for one in page]
    return UsageHistoryReply(items, cursor_of(page))


@operation("GET", "/v1/usage/summary", "read")
async def usage_summary(asked: Asked, query: RangeQuery) -> UsageSummaryReply:
    """Get the total, the average window and the largest window of each limit."""
    found = await asked.limiter.get_usage_summary(**query.asked())
    return UsageSummaryReply(
        {name: Summed(one.total, one.average, one.peak, one.peak_start) for name, one in found.items()}
    )


@operation("GET", "/v1/audit", "read")
async def audit(asked: Asked, query: AuditQuery) -> AuditReply:
    """List the changes of an entity, or of the whole namespace, newest first."""
    entity_id = None if query.entity_id is UNSET else query.entity_id
    page = await asked.limiter.get_audit_events(entity_id, limit=query.limit, cursor=read_cursor(query))
    return AuditReply([_audited(event) for event in page], cursor_of(page))


def _audited(event: Any) -> Audited:
    return Audited(**{name: getattr(event, name) for name in Audited.__struct_fields__})
