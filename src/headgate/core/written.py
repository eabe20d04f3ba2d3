"""Limits as files have them: by name, as text. A schedule is a mapping:

    otherwise: {rph: 20/hour, rpm: 5/minute}
    tz: Europe/Berlin
    hours:
      - mon-fri 08:00-18:00: {rph: 100/hour}
      - sat,sun: 0.5

`hours` is a list, because the first entry that matches holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .calendar import UTC
from .errors import ValidationError
from .limit import Limit
from .schedule import Entry, Schedule
from .units import shown

SCHEDULE = ("otherwise", "tz", "hours")


def is_schedule(spec: Any) -> bool:
    """Whether it is written as a schedule. A limit may have the name of one of its keys, but is a text."""
    return isinstance(spec, Mapping) and any(isinstance(spec.get(key), (list, Mapping)) for key in SCHEDULE)


def read_schedule(spec: Mapping[str, Any], read_limits: Callable[[Any], Iterable[Limit]]) -> Schedule:
    for key in spec:
        if key not in SCHEDULE:
            raise ValidationError(f"unknown key {key!r} in a schedule: it has {', '.join(SCHEDULE)}")
    for key in ("otherwise", "hours"):
        if key not in spec:
            raise ValidationError(f"a schedule lacks {key!r}")
    if not isinstance(spec["hours"], list):
        raise ValidationError(
            f"hours must be a list like [{{'mon-fri 08:00-18:00': {{'rph': '100/hour'}}}}, {{'sat,sun': 0.5}}], "
            f"not {shown(spec['hours'])}"
        )
    entries = [read_entry(one, read_limits) for one in spec["hours"]]
    return Schedule(entries, otherwise=read_limits(spec["otherwise"]), tz=spec.get("tz", UTC))


def read_entry(entry: Any, read_limits: Callable[[Any], Iterable[Limit]]) -> Entry:
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise ValidationError(
            "an entry of hours is one key with limits or a factor, like {'mon-fri 08:00-18:00': {'rph': '100/hour'}} "
            f"or {{'sat,sun': 0.5}}, not {shown(entry)}"
        )
    ((hours, what),) = entry.items()
    return hours, what if isinstance(what, (int, float)) else read_limits(what)


def write_limits(limits: Iterable[Limit]) -> dict[str, str]:
    return {limit.name: str(limit) for limit in limits}


def write_schedule(schedule: Schedule) -> dict[str, Any]:
    """What `read_schedule` reads back."""
    hours = [
        {hours: _factor(what) if isinstance(what, float) else write_limits(what)} for hours, what in schedule.entries
    ]
    return {"otherwise": write_limits(schedule.otherwise), "tz": schedule.tz, "hours": hours}


def spelled_hours(schedule: Schedule) -> str:
    """On one line, without `otherwise`: `mon-fri 08:00-18:00: rph=100/hour; sat,sun: 0.5 (Europe/Berlin)`."""
    return f"{'; '.join(spelled_entries(schedule))} ({schedule.tz})"


def spelled_entries(schedule: Schedule) -> list[str]:
    return [
        f"{hours}: {_factor(what)}"
        if isinstance(what, float)
        else f"{hours}: {', '.join(f'{limit.name}={limit}' for limit in what)}"
        for hours, what in schedule.entries
    ]


def _factor(factor: float) -> int | float:
    return int(factor) if factor.is_integer() else factor
