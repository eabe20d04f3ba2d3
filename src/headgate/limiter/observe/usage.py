"""Reading what was used."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

from ...core.errors import ValidationError
from ...core.names import check_resource
from ...core.records import Page
from ...core.units import from_milli
from ...core.usage import (
    UsageRow,
    UsageSummary,
    UsageWindow,
    Window,
    check_window,
    hour_at,
    moment_of,
    window_end,
    window_start,
)
from ...plan import ListUsage, Plan
from ..engine import Engine

_SHOWN = {"hour": 24, "day": 30, "month": 12}
_MOST_HOURS = 100_000


def get_usage_plan(
    engine: Engine,
    entity_id: str | None = None,
    resource: str | None = None,
    window: Window = "hour",
    start: datetime | None = None,
    end: datetime | None = None,
    *,
    cursor: str | None = None,
) -> Plan[Page[UsageWindow]]:
    """What was consumed in each hour, day or month (of UTC), from the one `start` is in to the last that begins before
    `end`. Windows without use are left out.

    Without `start`: the last 24 hours, 30 days or 12 months. For one entity the result is complete; for all entities
    it comes in pages.
    """
    first, after = _range(engine, check_window(window), start, end)
    rows, cursor = yield from _rows_plan(engine, entity_id, resource, (first, after), cursor)
    return Page(_windows(rows, window), cursor)


def get_usage_summary_plan(
    engine: Engine,
    entity_id: str | None = None,
    resource: str | None = None,
    window: Window = "hour",
    start: datetime | None = None,
    end: datetime | None = None,
) -> Plan[dict[str, UsageSummary]]:
    """Of each limit the total, the average of a window and the largest one, over everything that is asked for."""
    first, after = _range(engine, check_window(window), start, end)
    totals: dict[str, dict[datetime, int]] = {}
    cursor: str | None = None
    while True:
        rows, cursor = yield from _rows_plan(engine, entity_id, resource, (first, after), cursor)
        for row in rows:
            for name, began, milli in _counted(row, window):
                windows = totals.setdefault(name, {})
                windows[began] = windows.get(began, 0) + milli
        if cursor is None:
            break
    count = _count(window, moment_of(first), moment_of(after))
    return {name: _summary(windows, count) for name, windows in sorted(totals.items())}


def _rows_plan(
    engine: Engine, entity_id: str | None, resource: str | None, hours: tuple[int, int], cursor: str | None
) -> Plan[tuple[list[UsageRow], str | None]]:
    stored_id = None if entity_id is None else engine.stored_id(entity_id)
    resource = None if resource is None else check_resource(resource)
    rows: list[UsageRow] = []
    while True:
        page = yield from ListUsage(engine.namespace, stored_id, resource, hours, cursor)
        rows += page
        cursor = page.cursor
        if cursor is None or stored_id is None:
            return rows, cursor


def _counted(row: UsageRow, window: Window) -> Iterable[tuple[str, datetime, int]]:
    for name, hours in row.used.items():
        for hour, milli in hours.items():
            yield name, window_start(window, moment_of(hour)), milli


def _windows(rows: Iterable[UsageRow], window: Window) -> list[UsageWindow]:
    found: dict[tuple[str, str, datetime], dict[str, int]] = {}
    for row in rows:
        for name, began, milli in _counted(row, window):
            consumed = found.setdefault((row.entity_id, row.resource, began), {})
            consumed[name] = consumed.get(name, 0) + milli
    return [
        UsageWindow(entity_id, resource, window, began, window_end(window, began), _tokens(consumed))
        for (entity_id, resource, began), consumed in sorted(found.items())
    ]


def _tokens(consumed: dict[str, int]) -> dict[str, int | float]:
    return {name: from_milli(milli) for name, milli in sorted(consumed.items())}


def _summary(windows: dict[datetime, int], count: int) -> UsageSummary:
    total = sum(windows.values())
    peak_start, peak = max(windows.items(), key=lambda item: (item[1], -item[0].timestamp()))
    return UsageSummary(from_milli(total), total / count / 1000, from_milli(peak), peak_start)


def _range(engine: Engine, window: Window, start: Any, end: Any) -> tuple[int, int]:
    """The first hour, and the one after the last: of whole windows."""
    _check_moment(start, "start")
    _check_moment(end, "end")
    now = datetime.fromtimestamp(engine.clock.now_ms() / 1000, timezone.utc)
    last = now if end is None else _utc(end)
    ended = window_start(window, last)
    after = ended if ended == last and end is not None else window_end(window, ended)
    began = _before(window, after, _SHOWN[window]) if start is None else window_start(window, _utc(start))
    if not began < after:
        raise ValidationError(f"start must be before end, and {start} is not before {last.isoformat()}")
    if _count("hour", began, after) > _MOST_HOURS:
        raise ValidationError(f"from {began.isoformat()} to {after.isoformat()} is more than {_MOST_HOURS:,} hours")
    return hour_at(began), hour_at(after)


def _check_moment(moment: Any, what: str) -> None:
    if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
        raise ValidationError(f"{what} must be a datetime with a time zone, not {moment!r}")


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(timezone.utc)


def _before(window: Window, moment: datetime, windows: int) -> datetime:
    """The moment so many windows earlier."""
    if window == "month":
        years, month = divmod(moment.year * 12 + moment.month - 1 - windows, 12)
        return moment.replace(year=years, month=month + 1)
    return moment - timedelta(**{f"{window}s": windows})


def _count(window: Window, began: datetime, after: datetime) -> int:
    if window == "month":
        return (after.year - began.year) * 12 + after.month - began.month
    return int((after - began) / timedelta(**{f"{window}s": 1}))
