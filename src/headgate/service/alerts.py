"""Alerts: limits whose use has reached a threshold."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from .operations import Asked, operation
from .reading import cursor_of, read_cursor
from .schema import Number, PageQuery


class AlertReply(Struct):
    """`threshold`: 0.8 when 80 % are used. `resets_at`: when the limit is full again if nothing more is taken.
    `delivered`: whether the webhook has it."""

    id: str
    at: datetime
    entity_id: str
    resource: str
    limit_name: str
    threshold: float
    used: Number
    amount: Number
    resets_at: datetime
    delivered: bool


class AlertsReply(Struct):
    items: list[AlertReply]
    cursor: str | None


@operation("GET", "/v1/alerts", "read")
async def list_alerts(asked: Asked, query: PageQuery) -> AlertsReply:
    """List the alerts of the last week, newest first."""
    page = await asked.limiter.list_alerts(limit=query.limit, cursor=read_cursor(query))
    return AlertsReply([_reply(alert) for alert in page], cursor_of(page))


def _reply(alert: Any) -> AlertReply:
    return AlertReply(**{name: getattr(alert, name) for name in AlertReply.__struct_fields__})
