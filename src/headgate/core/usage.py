"""Usage: how much was consumed, by the hour.

A take from a bucket is counted in the bucket itself (`Bucket.used_milli`), so counting costs no round trip and cannot
be forgotten. A bucket counts one hour, the one in which it was last settled. The first request of another hour stores
the count beside the bucket before it settles, where it stays for as long as usage is kept. What is given back counts
as negative, in the hour in which it is given back: the sum of all hours is what was consumed, to the token.

Days and months are sums of hours. All are those of UTC. Slots come back, and have no usage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, TypeAlias, get_args

from .bucket import Bucket
from .errors import ValidationError

Window: TypeAlias = Literal["hour", "day", "month"]
WINDOWS: tuple[Window, ...] = get_args(Window)
Hours: TypeAlias = "Mapping[int, int]"  # millitokens by the hour, counted from 1970

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


def hour_of(ms: int) -> int:
    return ms // HOUR_MS


def is_over(bucket: Bucket, now_ms: int) -> bool:
    """Whether what a bucket has counted is of an hour that is over."""
    return bool(bucket.used_milli) and hour_of(bucket.settled_at_ms) < hour_of(now_ms)


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What an entity has used of a resource, by limit."""

    entity_id: str
    resource: str
    used: Mapping[str, Hours]


@dataclass(frozen=True, slots=True)
class UsageWindow:
    """What an entity consumed of a resource from `start` until before `end`, by limit, net of what was given back."""

    entity_id: str
    resource: str
    window: Window
    start: datetime
    end: datetime
    consumed: dict[str, int | float]

    def as_dict(self) -> dict[str, Any]:
        return {
            "entity_id": self.entity_id,
            "resource": self.resource,
            "window": self.window,
            "start": self.start.isoformat(),
            "end": self.end.isoformat(),
            "consumed": self.consumed,
        }


@dataclass(frozen=True, slots=True)
class UsageSummary:
    """Of one limit over a range. `average`: of a window, those without any use included. `peak`: of the largest one."""

    total: int | float
    average: float
    peak: int | float
    peak_start: datetime

    def as_dict(self) -> dict[str, Any]:
        return {
            "total": self.total,
            "average": self.average,
            "peak": self.peak,
            "peak_start": self.peak_start.isoformat(),
        }


def check_window(value: Any) -> Window:
    for window in WINDOWS:
        if value == window:
            return window
    raise ValidationError(f"window must be 'hour', 'day' or 'month', not {value!r}")


def moment_of(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * HOUR_MS // 1000, timezone.utc)


def hour_at(moment: datetime) -> int:
    return hour_of(int(moment.timestamp() * 1000))


def window_start(window: Window, moment: datetime) -> datetime:
    """When the window began that a moment of UTC is in."""
    start = moment.replace(minute=0, second=0, microsecond=0)
    if window != "hour":
        start = start.replace(hour=0)
    return start.replace(day=1) if window == "month" else start


def window_end(window: Window, start: datetime) -> datetime:
    if window == "month":
        return (start + 31 * _DAY).replace(day=1)
    return start + (_HOUR if window == "hour" else _DAY)
