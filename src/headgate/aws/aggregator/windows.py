"""The windows in which usage is counted: hours, days and months, in UTC. Times are whole seconds since 1970."""

from __future__ import annotations

from datetime import datetime, timezone

from ...core.errors import ValidationError

WINDOWS = ("hour", "day", "month")
DEFAULT_RETENTION_DAYS = 90
_FEWEST_DAYS, _MOST_DAYS = 2, 3660
_HOUR, _DAY = 3600, 86400
_LAST_MOMENT = 253_370_764_799  # of the year 9998: the window after it can still be named
# Days and months are few, so they are kept longer than hours: for a year, and for five.
_AT_LEAST_DAYS = {"hour": 0, "day": 400, "month": 5 * 366}


def check_retention_days(days: int) -> int:
    # A stream record may be delivered again for a day: its usage item must exist that long.
    if not isinstance(days, int) or not _FEWEST_DAYS <= days <= _MOST_DAYS:
        raise ValidationError(f"usage retention must be from {_FEWEST_DAYS} to {_MOST_DAYS} days, not {days!r}")
    return days


def window_start(window: str, at: int) -> int:
    """The first second of the window that a time is in."""
    if window == "month":
        moment = datetime.fromtimestamp(at, timezone.utc)
        return int(moment.replace(day=1, hour=0, minute=0, second=0).timestamp())
    return at - at % (_HOUR if window == "hour" else _DAY)


def next_start(window: str, start: int) -> int:
    """The first second after the window that starts there."""
    if window == "month":
        return window_start("month", start + 31 * _DAY)
    return start + (_HOUR if window == "hour" else _DAY)


def start_text(start: int) -> str:
    return datetime.fromtimestamp(start, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_moment(at: int) -> bool:
    return 0 <= at <= _LAST_MOMENT


def kept_until(window: str, start: int, retention_days: int) -> int:
    """When a window's usage may be deleted."""
    return next_start(window, start) + max(retention_days, _AT_LEAST_DAYS[window]) * _DAY
