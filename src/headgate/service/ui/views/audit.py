"""Who changed what."""

from __future__ import annotations

from ...paging import cursor_of
from ..pages import Answer, Shown, Visit, page, read_cursor

_PER_PAGE = 50


@page("GET", "/audit")
async def audit(visit: Visit) -> Answer:
    entity_id = visit.query.or_none("entity")
    events = await visit.limiter.get_audit_events(entity_id, limit=_PER_PAGE, cursor=read_cursor(visit.query))
    return Shown("audit.html", {"events": events, "entity_id": entity_id, "cursor": cursor_of(events)})
