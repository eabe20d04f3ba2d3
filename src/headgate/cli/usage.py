"""`headgate usage`: consumption by hour, day or month."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import NamedTuple, get_args

import click

from ..core.usage import UsageSummary, UsageWindow, Window, window_end, window_start
from ..limiter import SyncRateLimiter
from ..limiter.config.levels import LimitLevel
from .command import CliCommand
from .options import CommandSession, store_options
from .output import Chart, TextTable, all_pages, answer, answer_json, number
from .values import read_moment

# What a chart shows without --start: 24 hours, 30 days, 12 months.
_SHOWN = {"hour": timedelta(hours=23), "day": timedelta(days=29), "month": timedelta(days=334)}
_SPELLED = {"hour": "%Y-%m-%d %H:%M", "day": "%Y-%m-%d", "month": "%Y-%m"}
_LABELS = {"hour": "%H:%M", "day": "%m-%d", "month": "%Y-%m"}
_NOTHING = "nothing was consumed in this period"
_DAYS_BEGIN_TO_COUNT = 36  # hours


@click.command(
    cls=CliCommand,
    short_help="Show consumption by hour, day or month.",
    examples=[
        "headgate usage acme",
        "headgate usage acme --window day --plot",
        "headgate usage --window month --start 2026-01-01 --summary",
        "headgate usage acme --resource llm --start 2026-01-31T08:00 --end 2026-01-31T18:00 --json",
    ],
)
@click.argument("entity_id", metavar="[ENTITY]", required=False)
@click.option("--resource", metavar="RESOURCE", help="Only consumption on this resource.")
@click.option(
    "--window",
    metavar="WINDOW",
    type=click.Choice(get_args(Window)),
    default="hour",
    show_default=True,
    help="The window of each sum: hour, day or month, in UTC.",
)
@click.option(
    "--start",
    metavar="TIME",
    help="The start, in UTC without an offset. Default: the last 24 hours, 30 days or 12 months.",
)
@click.option("--end", metavar="TIME", help="The end. Default: now.")
@click.option("--summary", is_flag=True, help="Show the total, the average and the peak of each limit.")
@click.option("--plot", is_flag=True, help="Draw a chart for each limit.")
@store_options
def usage(
    session: CommandSession,
    entity_id: str | None,
    resource: str | None,
    window: Window,
    start: str | None,
    end: str | None,
    summary: bool,
    plot: bool,
) -> None:
    """Show what ENTITY has consumed; without ENTITY, what all entities have. Tokens that were given back do not count.

    Windows without consumption are left out. Usage is kept for 90 days, unless `usage_days` of a limiter is different.
    """
    if summary and plot:
        raise click.UsageError("--summary and --plot contradict each other: use one of them")
    first, last = read_moment(start, "--start"), read_moment(end, "--end")
    query = _Query(entity_id and session.stored_id(entity_id), resource, window, first, last)
    with session.limiter() as limiter:
        if summary:
            _tell_summary(session, limiter.get_usage_summary(*query), window)
        elif plot and not session.as_json:
            answer(*_charts(limiter, query))
        else:
            _tell(session, _read(limiter, query), window, everyone=entity_id is None)


class _Query(NamedTuple):
    entity_id: str | None
    resource: str | None
    window: Window
    start: datetime | None
    end: datetime | None


def _read(limiter: SyncRateLimiter, query: _Query) -> list[UsageWindow]:
    return list(all_pages(lambda cursor: limiter.get_usage(*query, cursor=cursor)))


def _tell(session: CommandSession, found: Sequence[UsageWindow], window: Window, *, everyone: bool) -> None:
    if session.as_json:
        answer_json([one.as_dict() for one in found])
    else:
        answer(_table(found, window, everyone=everyone) if found else _NOTHING)


def _tell_summary(session: CommandSession, found: dict[str, UsageSummary], window: Window) -> None:
    if session.as_json:
        answer_json({name: one.as_dict() for name, one in found.items()})
        return
    if not found:
        answer(_NOTHING)
        return
    rows = [
        [name, number(one.total), f"{one.average:,.1f}", number(one.peak), f"{one.peak_start:{_SPELLED[window]}}"]
        for name, one in found.items()
    ]
    answer(TextTable(["limit", ">total", f">average per {window}", ">peak", "in"], rows))


def _table(found: Sequence[UsageWindow], window: Window, *, everyone: bool) -> TextTable:
    names = sorted({name for one in found for name in one.consumed})
    rows = [
        [
            f"{one.start:{_SPELLED[window]}}",
            one.entity_id if everyone else "",
            one.resource,
            *(number(one.consumed[name]) if name in one.consumed else "" for name in names),
        ]
        for one in sorted(found, key=lambda one: (one.start, one.entity_id, one.resource))
    ]
    return TextTable([f"{window} (UTC)", "entity", "resource", *(f">{name}" for name in names)], rows)


def _charts(limiter: SyncRateLimiter, query: _Query) -> Iterator[Chart | str]:
    """A chart for each resource and limit, including windows without consumption."""
    window, end = query.window, query.end or datetime.now(timezone.utc)
    start = query.start or end - _SHOWN[window]
    sums = _sums(_read(limiter, query._replace(start=start, end=end)))
    if not sums:
        yield _NOTHING
    windows = list(_windows(window, start, end))
    several_days = window == "hour" and len(windows) > _DAYS_BEGIN_TO_COUNT
    labels = [f"{began:{'%m-%d %Hh' if several_days else _LABELS[window]}}" for began in windows]
    for (resource, name), amounts in sorted(sums.items()):
        total = number(round(sum(amounts.values()), 3))
        title = f"{LimitLevel(query.entity_id, resource)}: {name} per {window}, {total} in all"
        yield Chart(title, [amounts.get(began, 0) for began in windows], labels)
        yield ""


def _sums(found: Iterable[UsageWindow]) -> dict[tuple[str, str], dict[datetime, int | float]]:
    """The consumption of all entities in each window, by resource and limit."""
    sums: dict[tuple[str, str], dict[datetime, int | float]] = {}
    for one in found:
        for name, amount in one.consumed.items():
            of_limit = sums.setdefault((one.resource, name), {})
            of_limit[one.start] = of_limit.get(one.start, 0) + amount
    return sums


def _windows(window: Window, start: datetime, end: datetime) -> Iterator[datetime]:
    began = window_start(window, start.astimezone(timezone.utc))
    while began < end:
        yield began
        began = window_end(window, began)
