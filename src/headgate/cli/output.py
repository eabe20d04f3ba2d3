"""Output: JSON for programs; lines, tables and charts for people. `drawing` draws tables and charts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeAlias, TypeVar

import click

from ..core.calendar import zone_of
from ..core.limit import Limit
from ..core.records import Page
from ..core.schedule import Schedule
from ..core.written import spelled_hours

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bar:
    """How full something is, from 0 to 1."""

    fraction: float


Cell: TypeAlias = "str | Bar"


@dataclass(frozen=True, slots=True)
class TextTable:
    """Columns whose name starts with `>` are aligned to the right. Empty columns are left out, and so is the header if
    no column has a name."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A column for each value, with labels below some of them."""

    title: str
    values: Sequence[int | float]
    labels: Sequence[str]


def answer_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def answer(*parts: str | TextTable | Chart) -> None:
    """Print lines, tables and charts."""
    for part in parts:
        if isinstance(part, str):
            click.echo(printable(part))
            continue
        from .drawing import draw_chart, draw_table  # imports rich, which is slow

        if isinstance(part, TextTable):
            draw_table(part)
        else:
            draw_chart(part)


def printable(text: str) -> str:
    """Without control characters: names from a store must not control the terminal."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def number(value: int | float) -> str:
    return f"{value:,}"


def duration(seconds: float | None) -> str:
    """Rounded up, so that this wait is long enough."""
    if seconds is None:
        return "never"
    if seconds <= 0:
        return ""
    if seconds < 60:
        return f"{math.ceil(seconds * 1000) / 1000:g} s"
    whole = math.ceil(seconds)
    days, hours, minutes, rest = whole // 86_400, whole // 3_600 % 24, whole // 60 % 60, whole % 60
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next(index for index, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count:,} {unit}" for count, unit in parts[first : first + 2] if count)


def moment(at: datetime | None) -> str:
    """In UTC."""
    return "" if at is None else f"{at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}"


def resets(limit: Limit, at_ms: int | None, now_ms: int) -> str:
    """When a quota is full again, in the words of its zone: `tomorrow 06:30 Europe/Berlin`."""
    if not limit.is_quota or at_ms is None:
        return ""
    if limit.calendar is None:
        return f"in {duration((at_ms - now_ms) / 1000) or '0 s'}"
    zone = zone_of(limit.calendar.tz)
    at, now = (datetime.fromtimestamp(ms / 1000, zone) for ms in (at_ms, now_ms))
    days = (at.date() - now.date()).days
    day = {0: "today", 1: "tomorrow"}.get(days, f"{at:%Y-%m-%d}")
    return f"{day} {at:%H:%M} {limit.calendar.tz}"


def limit_dict(limit: Limit) -> dict[str, Any]:
    return limit.as_dict() | {"limit": str(limit)}


def schedule_dict(schedule: Schedule) -> dict[str, Any]:
    """What holds when, instead of the other limits."""
    entries = [
        {"hours": hours, "factor": what}
        if isinstance(what, float)
        else {"hours": hours, "limits": [limit_dict(limit) for limit in what]}
        for hours, what in schedule.entries
    ]
    return {"tz": schedule.tz, "entries": entries}


def spelled(limits: Iterable[Limit], schedule: Schedule | None = None) -> str:
    """As commands accept them."""
    hours = [] if schedule is None else [spelled_hours(schedule)]
    return "; ".join([", ".join(f"{limit.name}={limit}" for limit in limits), *hours])


def all_pages(read: Callable[[str | None], Page[T]]) -> Iterator[T]:
    """The items of all pages. `read` takes the cursor of a page, None for the first. Corrupt items become warnings."""
    cursor: str | None = None
    while True:
        page = read(cursor)
        for error in page.corrupt:
            click.echo(f"warning: {printable(str(error))}", err=True)
        yield from page
        cursor = page.cursor
        if cursor is None:
            return
