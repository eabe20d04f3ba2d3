"""A schedule in a file: each mistake has its own line."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..core.calendar import UTC, check_zone
from ..core.limit import Limit
from ..core.schedule import Entry, Schedule
from ..core.written import SCHEDULE, read_entry
from .document import Node


def read_schedule(node: Node, read_limits: Callable[[Node], Iterable[Limit] | None]) -> Schedule | None:
    """None if something is wrong with it, which is recorded. So does `read_limits` for limits."""
    fields = node.fields(SCHEDULE, ["otherwise", "hours"])
    tz = fields["tz"].read(check_zone) if "tz" in fields else UTC
    otherwise = read_limits(fields["otherwise"]) if "otherwise" in fields else None
    items = fields["hours"].items() if "hours" in fields else []
    entries = [_entry(item, read_limits) for item in items]
    known = len(fields) == len(node.entries()) and "hours" in fields and isinstance(fields["hours"].value, list)
    if not known or tz is None or otherwise is None or None in entries:
        return None
    usual = list(otherwise)
    alone = [item.attempt(Schedule, [entry], otherwise=usual, tz=tz) for item, entry in zip(items, entries)]
    return None if None in alone else node.attempt(Schedule, entries, otherwise=usual, tz=tz)


def _entry(node: Node, read_limits: Callable[[Node], Iterable[Limit] | None]) -> Entry | None:
    entry = node.attempt(read_entry, node.plain(), lambda _: [])
    if entry is None:
        return None
    hours, factor = entry
    if isinstance(factor, (int, float)):
        return hours, factor
    limits = read_limits(node.entries()[hours])
    return None if limits is None else (hours, limits)
