"""Calendars: at which moments a quota is full again.

An edge is a moment at which the wall clock of a time zone shows a time of day: every day, or on some days only. The
time from one edge to the next is a window. Where a wall clock skips or repeats an hour, `fold=0` decides, so that every
edge is one moment.

A calendar is a value. Limits with equal calendars share one object, which remembers this window and the last: a window
is worked out once, not for each decision.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple, cast

from .errors import ValidationError
from .units import shown

PERIODS = ("hour", "day", "week", "month", "year")
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
UTC = "UTC"
MIDNIGHT = "00:00"
_FIRST: dict[str, str | int] = {"week": "monday", "month": 1, "year": "01-01"}
_AT = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_DATE = re.compile(r"(\d\d)-(\d\d)")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MILLISECOND = timedelta(milliseconds=1)
_HOUR_MS = 3_600_000
# Before and after these years a calendar has no edges: datetime ends there.
_FIRST_MS = (datetime(1900, 1, 1, tzinfo=timezone.utc) - EPOCH) // MILLISECOND
_LAST_MS = (datetime(9990, 1, 1, tzinfo=timezone.utc) - EPOCH) // MILLISECOND
_ENDLESS_MS = 10**15 - 1
_SOME_MS = 1_717_416_000_000  # a Monday in June


class NoCalendar(ValidationError):
    """This machine lacks what it takes to know a calendar: its time zone, or the package for cron expressions."""


class QuotaWindow(NamedTuple):
    """From `starts_ms` to just before `ends_ms`."""

    starts_ms: int
    ends_ms: int


class Calendar:
    """`per` is one of PERIODS, or empty if the edges are the minutes that match `cron`."""

    __slots__ = ("_before", "_edges", "_window", "at", "cron", "on", "per", "tz")

    def __init__(self, per: str, tz: str, at: str, on: str | int | None, cron: str) -> None:
        self.per = per
        self.tz = tz
        self.at = at
        self.on = on
        self.cron = cron
        self._edges = _edges(self)
        self._window = self._before = QuotaWindow(0, 0)

    @classmethod
    def every(cls, per: Any, *, tz: Any = UTC, at: Any = MIDNIGHT, on: Any = None) -> Calendar:
        if per not in PERIODS:
            raise ValidationError(f"per must be one of {', '.join(PERIODS)}, not {shown(per)}")
        _check_at(at)
        if per == "hour":
            if tz != UTC:
                raise ValidationError(f"an hour begins at the same moment everywhere: leave out tz={tz!r}")
            if not at.startswith("00:"):
                raise ValidationError(f"at must name a minute of the hour, like '00:30', not {at!r}")
        return _shared(per, check_zone(tz), at, _checked_on(per, on), "")

    @classmethod
    def matching(cls, cron: Any, *, tz: Any = UTC) -> Calendar:
        """Its edges are the minutes that match a cron expression."""
        return _shared("", check_zone(tz), MIDNIGHT, None, check_cron(cron))

    def window(self, now_ms: int) -> QuotaWindow:
        window = self._window
        if window.starts_ms <= now_ms < window.ends_ms:
            return window
        before = self._before
        if not before.starts_ms <= now_ms < before.ends_ms:
            before = self._edges(now_ms)
        self._window, self._before = before, window
        return before

    @property
    def usual_ms(self) -> int:
        """How long a window is, more or less: months and years differ, and days when clocks are changed."""
        window = self._edges(_SOME_MS)
        return window.ends_ms - window.starts_ms

    @property
    def resets(self) -> str:
        """When it resets, as a limit's text has it."""
        on = "" if self.on in (None, _FIRST.get(self.per)) else f"{self.on} "
        at = "" if self.at == MIDNIGHT else f"{self.at} "
        return f"{on}{at}{self.tz}"

    def as_dict(self) -> dict[str, Any]:
        if self.cron:
            return {"cron": self.cron, "tz": self.tz}
        on = {} if self.on is None else {"on": self.on}
        return {"per": self.per, "tz": self.tz, "at": self.at, **on}

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Calendar) and self._value == other._value)

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _shared, self._value

    def __repr__(self) -> str:
        return f"Calendar({', '.join(map(repr, self._value))})"

    @property
    def _value(self) -> tuple[Any, ...]:
        return self.per, self.tz, self.at, self.on, self.cron


@lru_cache(maxsize=1024)
def _shared(per: str, tz: str, at: str, on: str | int | None, cron: str) -> Calendar:
    return Calendar(per, tz, at, on, cron)


def _check_at(at: Any) -> None:
    if not isinstance(at, str) or not _AT.fullmatch(at):
        raise ValidationError(f"at must be hours and minutes, like '06:30', not {shown(at)}")


def check_zone(tz: Any) -> str:
    if not isinstance(tz, str):
        raise ValidationError(f"tz must be the name of a time zone, like 'Europe/Berlin', not {shown(tz)}")
    zone_of(tz)
    return tz


def _checked_on(per: str, on: Any) -> str | int | None:
    if on is None:
        return _FIRST.get(per)
    if per == "week":
        if on not in WEEKDAYS:
            raise ValidationError(f"on must be a day of the week, like 'monday', not {shown(on)}")
    elif per == "month":
        if type(on) is not int or not 1 <= on <= 31:
            raise ValidationError(f"on must be a day of the month from 1 to 31, not {shown(on)}")
    elif per == "year":
        found = _DATE.fullmatch(on) if isinstance(on, str) else None
        month, day = (int(found[1]), int(found[2])) if found else (0, 0)
        if not (1 <= month <= 12 and 1 <= day <= monthrange(2000, month)[1]):
            raise ValidationError(f"on must be a month and a day, like '04-06', not {shown(on)}")
    else:
        raise ValidationError(f"on={on!r} is for weeks, months and years: a quota for each {per} has at= only")
    return cast("str | int", on)


@lru_cache(maxsize=256)
def zone_of(tz: str) -> tzinfo:
    if tz == UTC:
        return timezone.utc  # also where there is no zone database
    from zoneinfo import ZoneInfo  # imported only when a zone is named

    try:
        return ZoneInfo(tz)
    except (KeyError, ValueError, OSError):  # not found, no name of a zone, or a folder of zones
        raise NoCalendar(
            f"unknown time zone {shown(tz)}: write it like 'Europe/Berlin' (if the system has no zone database, "
            "`pip install tzdata` brings one)"
        ) from None


def _edges(calendar: Calendar) -> Callable[[int], QuotaWindow]:
    """The window that a moment is in."""
    hours, minutes = map(int, calendar.at.split(":"))
    if calendar.cron:
        return _cron_window(calendar.cron, zone_of(calendar.tz))
    if calendar.per == "hour":
        offset_ms = minutes * 60_000

        def hour(now_ms: int) -> QuotaWindow:
            starts_ms = now_ms - (now_ms - offset_ms) % _HOUR_MS
            return QuotaWindow(starts_ms, starts_ms + _HOUR_MS)

        return hour
    zone = zone_of(calendar.tz)
    days = _DAYS[calendar.per]

    def window(now_ms: int) -> QuotaWindow:
        if (endless := _without_edges(now_ms)) is not None:
            return endless
        today = (EPOCH + now_ms * MILLISECOND).date()
        edges = sorted(
            epoch_ms(datetime(day.year, day.month, day.day, hours, minutes, tzinfo=zone))
            for day in days(today, calendar.on)
        )
        return QuotaWindow(max(edge for edge in edges if edge <= now_ms), min(edge for edge in edges if edge > now_ms))

    return window


def epoch_ms(moment: datetime) -> int:
    return (moment - EPOCH) // MILLISECOND


def _without_edges(now_ms: int) -> QuotaWindow | None:
    if now_ms < _FIRST_MS:
        return QuotaWindow(min(now_ms, -_ENDLESS_MS), _FIRST_MS)
    return QuotaWindow(_LAST_MS, max(now_ms + 1, _ENDLESS_MS)) if now_ms >= _LAST_MS else None


# Days that may have an edge, from before a day of UTC until after it: a zone is at most a day off.


def _every_day(today: date, on: Any) -> Iterator[date]:
    for days in range(-3, 4):
        yield today + timedelta(days=days)


def _every_week(today: date, on: Any) -> Iterator[date]:
    first = today + timedelta(days=WEEKDAYS.index(on) - today.weekday())
    for weeks in range(-2, 3):
        yield first + timedelta(weeks=weeks)


def _every_month(today: date, on: Any) -> Iterator[date]:
    for months in range(-2, 3):
        year, month = divmod(today.year * 12 + today.month - 1 + months, 12)
        yield date(year, month + 1, min(on, monthrange(year, month + 1)[1]))


def _every_year(today: date, on: Any) -> Iterator[date]:
    month, day = map(int, on.split("-"))
    for year in range(today.year - 2, today.year + 3):
        yield date(year, month, min(day, monthrange(year, month)[1]))


_DAYS: dict[str, Callable[[date, Any], Iterator[date]]] = {
    "day": _every_day,
    "week": _every_week,
    "month": _every_month,
    "year": _every_year,
}


def check_cron(cron: Any) -> str:
    """Five fields with one space between them."""
    if not isinstance(cron, str) or len(cron.split()) != 5:
        raise ValidationError(f"cron must be five fields, like '0 6 * * 1-5', not {shown(cron)}")
    try:
        from cronsim import CronSim, CronSimError
    except ModuleNotFoundError:
        raise NoCalendar("cron expressions need a package: pip install 'headgate[cron]'") from None
    text = " ".join(cron.split())
    try:
        CronSim(text, EPOCH)
    except CronSimError as error:
        raise ValidationError(
            f"cron expression {text!r} cannot be read ({error}): write it like '0 6 * * 1-5'"
        ) from None
    return text


def _cron_window(cron: str, zone: tzinfo) -> Callable[[int], QuotaWindow]:
    from cronsim import CronSim

    def edge(since: datetime, *, reverse: bool) -> int | None:
        found = next(CronSim(cron, since, reverse=reverse), None)
        return None if found is None else epoch_ms(found)

    def window(now_ms: int) -> QuotaWindow:
        if (endless := _without_edges(now_ms)) is not None:
            return endless
        minute = (EPOCH + (now_ms - now_ms % 60_000) * MILLISECOND).astimezone(zone)
        ends_ms = edge(minute, reverse=False)
        starts_ms = edge(minute + timedelta(minutes=1), reverse=True)
        return QuotaWindow(_FIRST_MS if starts_ms is None else starts_ms, _ENDLESS_MS if ends_ms is None else ends_ms)

    return window
