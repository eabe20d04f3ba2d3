"""A limit and how much of it is left: of a quota, how much is used, and when it resets in the words of its zone."""

from __future__ import annotations

from datetime import datetime
from time import time
from typing import NamedTuple

from ...core.calendar import EPOCH, MILLISECOND, UTC, epoch_ms, zone_of
from ...core.limit import Limit
from ...core.schedule import Schedule
from ...core.units import MILLI
from ...limiter import BucketStatus
from .words import duration

_LONGEST_MS = 400 * 366 * 86_400_000  # what is later is not known
_SOON_MS = 7 * 86_400_000  # a schedule looks no farther


class ResetTime(NamedTuple):
    """`tomorrow, Thu 19 Nov 06:30`, `Europe/Berlin`, `in 9 h`; and the same for machines."""

    day: str
    zone: str
    left: str
    iso: str

    def __str__(self) -> str:
        return f"{self.day} {self.zone} ({self.left})"


def moment_at(at_ms: int, zone: str = UTC, now_ms: int | None = None) -> ResetTime:
    now_ms = _now_ms() if now_ms is None else now_ms
    at, today = ((EPOCH + ms * MILLISECOND).astimezone(zone_of(zone)) for ms in (at_ms, now_ms))
    near = {0: "today, ", 1: "tomorrow, "}.get((at.date() - today.date()).days, "")
    year = "" if at.year == today.year else f" {at.year}"
    seconds = abs(at_ms - now_ms) / MILLI
    left = f"in {duration(seconds)}" if at_ms > now_ms else f"{duration(seconds)} ago"
    return ResetTime(f"{near}{at:%a} {at.day} {at:%b}{year} {at:%H:%M}", zone, left, at.isoformat(timespec="minutes"))


def moment_of(at: datetime) -> ResetTime:
    return moment_at(epoch_ms(at))


def next_change(schedule: Schedule) -> ResetTime | None:
    """When other limits hold than now; None: not in the next days."""
    now_ms = _now_ms()
    until_ms = schedule.at(now_ms).until_ms
    return moment_at(until_ms, schedule.tz, now_ms) if until_ms < now_ms + _SOON_MS else None


def _now_ms() -> int:
    return int(time() * MILLI)


class Gauge(NamedTuple):
    """A limit, its bucket (None: it is full) and its level (None: the caller passed it)."""

    limit: Limit
    bucket: BucketStatus | None
    source: str | None = None

    @classmethod
    def of(cls, bucket: BucketStatus) -> Gauge:
        return cls(bucket.limit, bucket)

    @property
    def used(self) -> int | float:
        return 0 if self.bucket is None else self.bucket.used

    @property
    def available(self) -> int | float:
        if self.bucket is None:
            return self.limit.capacity
        return self.limit.capacity - self.used if self.limit.is_quota else self.bucket.available

    @property
    def part(self) -> float:
        """The share that is left, from 0 to 1. A debt is 0."""
        return min(1.0, max(0.0, self.available / self.limit.capacity))

    @property
    def resets(self) -> ResetTime | None:
        """When a quota is full again. None if that is not known, or if no window is open."""
        now_ms = _now_ms()
        if not self.limit.is_quota:
            return None
        if (calendar := self.limit.calendar) is not None:
            ends_ms, zone = calendar.window(now_ms).ends_ms, calendar.tz
        else:  # from first use, or read from a store, which knows no calendars
            ends_ms, zone = now_ms + round(MILLI * (self.bucket.full_in_seconds if self.bucket else 0)), UTC
        return moment_at(ends_ms, zone, now_ms) if now_ms < ends_ms < now_ms + _LONGEST_MS else None


def gauge_of(limit: Limit, bucket: BucketStatus | None, source: str | None) -> Gauge:
    """Of a limit in force. What it used when it was one of another kind no longer counts."""
    if bucket is not None and (bucket.limit.is_quota, bucket.limit.is_concurrent) != (
        limit.is_quota,
        limit.is_concurrent,
    ):
        bucket = None
    return Gauge(limit, bucket, source)
