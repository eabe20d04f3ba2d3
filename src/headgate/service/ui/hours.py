"""Schedules as text, an entry in each line: `mon-fri 08:00-18:00: rph=100/hour; rpm=10/minute`, `sat,sun: 0.5`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from ...core.calendar import UTC
from ...core.errors import ValidationError
from ...core.limit import Limit, by_name
from ...core.schedule import Entry, Schedule
from ...limiter import StoredLimits

Entries: TypeAlias = "Sequence[tuple[str, tuple[Limit, ...] | float]]"
_NEXT = re.compile(r"\s*[;,]\s*(?=[^\s=;,]+=)|\s*;\s*$")  # a cron expression has commas too


def spelled_entries(schedule: Schedule) -> list[str]:
    return [f"{hours}: {spelled(what)}" for hours, what in schedule.entries]


def spelled(what: Iterable[Limit] | float) -> str:
    if isinstance(what, (int, float)):
        return str(int(what) if float(what).is_integer() else what)
    return "; ".join(f"{limit.name}={limit}" for limit in what)


def read_entries(text: str) -> Entries:
    return [_entry(line.strip()) for line in text.splitlines() if line.strip()]


def read_schedule(entries: Entries, otherwise: Iterable[Limit], tz: str) -> Schedule | None:
    """None if there are no entries."""
    if not entries:
        return None
    usual = by_name(otherwise)
    for hours, what in entries:
        for limit in () if isinstance(what, float) else what:
            if limit.name not in usual:
                raise ValidationError(
                    f"{hours!r} has a limit {limit.name!r} that is not among the limits above: outside of these hours, "
                    "requests that name it would fail. Add it there too"
                )
    typed: list[Entry] = list(entries)
    return Schedule(typed, otherwise=usual.values(), tz=tz or UTC)


def _entry(line: str) -> tuple[str, tuple[Limit, ...] | float]:
    hours, separator, what = line.partition(": ")
    if not separator or not what.strip():
        raise ValidationError(
            f"{line!r} cannot be read: write hours, a colon and limits or a factor, like "
            "'mon-fri 08:00-18:00: rph=100/hour' or 'sat,sun: 0.5'"
        )
    try:
        return hours.strip(), float(what)
    except ValueError:
        return hours.strip(), tuple(_limit(hours, one) for one in _NEXT.split(what.strip()) if one)


def _limit(hours: str, text: str) -> Limit:
    name, separator, spec = text.partition("=")
    if not separator:
        raise ValidationError(f"{text!r} for {hours!r} is no limit and no factor: write it like rph=100/hour, or 0.5")
    return Limit.parse(name.strip(), spec.strip())


def spelled_level(limits: StoredLimits | None) -> list[str]:
    """What a level has at which hours, in lines; of one without a schedule, a single line."""
    if not limits:
        return []
    if limits.schedule is None:
        return [f"at all times: {spelled(limits)}"]
    zone = f"time zone: {limits.schedule.tz}"
    return [*spelled_entries(limits.schedule), f"at other times: {spelled(limits)}", zone]
