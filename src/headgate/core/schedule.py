"""Limits that depend on the hour: a schedule says which hold when.

Each entry has hours and the limits that hold in them: `mon-fri 08:00-18:00`, `sat,sun`, `22:00-06:00` (until the next
morning), or a cron expression, which holds for the minutes that match. The first entry that matches holds, and where it
does not name a limit, the one of `otherwise` does. Instead of limits an entry may have a factor: 0.5 is half of all.

`at(now_ms)` also says since when that has been so, and until when it will be. The former is part of the limits'
revision, so that a bucket is reshaped once at each edge, and clocks that disagree do not reshape it back and forth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from .bucket import Bucket
from .calendar import EPOCH, MILLISECOND, UTC, WEEKDAYS, check_cron, check_zone, epoch_ms, zone_of
from .decide import Answer, Parts
from .errors import ValidationError
from .limit import Limit, by_name
from .quota import Quota
from .units import MAX_TOKENS, MILLI, shown

Entry: TypeAlias = "tuple[str, Iterable[Limit] | float]"

_SPAN = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-(?:([01]\d|2[0-3]):([0-5]\d)|24:00)")
_DAY_MINUTES = 1440
_MOST_ENTRIES = 50
_MOST_MINUTES = _DAY_MINUTES  # that a run of minutes of a cron expression is followed
_FAR_MS = 8 * 86_400_000
_LARGEST_FACTOR = 1000


class Scheduled(NamedTuple):
    """The limits that hold at a moment: since `since_ms` (0: for a week and more) and until `until_ms`."""

    limits: tuple[Limit, ...]
    since_ms: int
    until_ms: int


class LimitsNow(tuple[Limit, ...]):
    """The limits of a schedule since `since_ms` and until `until_ms`, when the `following` hold."""

    since_ms = until_ms = 0
    following: tuple[Limit, ...] = ()


class Schedule:
    """`otherwise`: the limits outside of all hours. No entry may have a limit that is not in it."""

    def __init__(self, entries: Iterable[Entry], *, otherwise: Iterable[Limit], tz: str = UTC) -> None:
        self.otherwise = tuple(by_name(otherwise).values())
        if not self.otherwise:
            raise ValidationError("otherwise must have at least one limit: those that hold outside of all hours")
        self.tz = check_zone(tz)
        self.entries: list[tuple[str, tuple[Limit, ...] | float]] = []
        self._hours: list[_Hours] = []
        self._limits: list[tuple[Limit, ...]] = []
        zone = zone_of(tz)
        for entry in _listed(entries):
            hours, what = entry
            self._hours.append(_hours(hours, zone))
            named, kept = self._checked(hours, what)
            self.entries.append((hours, kept))
            self._limits.append(tuple(named.values()))
        self._now = Scheduled((), 0, 0)
        self._limits_now = LimitsNow()

    def _checked(self, hours: str, what: Any) -> tuple[dict[str, Limit], tuple[Limit, ...] | float]:
        usual = {limit.name: limit for limit in self.otherwise}
        if isinstance(what, (int, float)) and not isinstance(what, bool):
            if not 0 < what <= _LARGEST_FACTOR:
                raise ValidationError(f"the factor of {hours!r} must be above 0 and at most 1,000, not {what!r}")
            return {name: multiplied(limit, what) for name, limit in usual.items()}, float(what)
        own = by_name(what)
        if not own:
            raise ValidationError(f"{hours!r} has no limits: give it some, or a factor like 0.5")
        if unknown := own.keys() - usual.keys():
            raise ValidationError(
                f"{hours!r} has a limit {min(unknown)!r} that otherwise= lacks: outside of these hours, requests that "
                "name it would fail. Add it there"
            )
        return usual | own, tuple(own.values())

    def at(self, now_ms: int) -> Scheduled:
        known = self._now
        if known.since_ms <= now_ms < known.until_ms:
            return known
        held = [hours.at(now_ms) for hours in self._hours]
        limits = next((limits for limits, (holds, _, _) in zip(self._limits, held) if holds), self.otherwise)
        since_ms = max((since_ms for _, since_ms, _ in held), default=0)
        until_ms = min((until_ms for _, _, until_ms in held), default=now_ms + _FAR_MS)
        self._now = Scheduled(limits, since_ms, until_ms)
        return self._now

    def now(self, now_ms: int) -> LimitsNow:
        """For a call that limits are passed to."""
        now = self._limits_now
        if not now.since_ms <= now_ms < now.until_ms:
            limits, since_ms, until_ms = self.at(now_ms)
            now = self._limits_now = LimitsNow(limits)
            now.since_ms, now.until_ms, now.following = since_ms, until_ms, self.at(until_ms).limits
        return now

    @property
    def variants(self) -> list[tuple[Limit, ...]]:
        """All the limits that may hold."""
        return [self.otherwise, *self._limits]

    def as_dict(self) -> dict[str, Any]:
        """Without `otherwise`, which a record keeps as its limits."""
        return {
            "tz": self.tz,
            "entries": [
                {"hours": hours, "factor": what}
                if isinstance(what, float)
                else {"hours": hours, "limits": [limit.as_dict() for limit in what]}
                for hours, what in self.entries
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], otherwise: Iterable[Limit]) -> Schedule:
        try:
            entries: list[Entry] = [
                (
                    one["hours"],
                    one["factor"] if "factor" in one else [Limit.from_dict(limit) for limit in one["limits"]],
                )
                for one in data["entries"]
            ]
            return cls(entries, otherwise=otherwise, tz=data["tz"])
        except KeyError as missing:
            raise ValidationError(f"a schedule lacks {missing}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    @property
    def _value(self) -> tuple[Any, ...]:
        return self.tz, self.otherwise, tuple(self.entries)

    def __repr__(self) -> str:
        return f"Schedule({self.entries!r}, otherwise={list(self.otherwise)!r}, tz={self.tz!r})"


def multiplied(limit: Limit, factor: float) -> Limit:
    """A limit with so many times its amounts, rounded down. At least a thousandth of a token is left, or one slot."""

    def times(milli: int) -> int:
        return min(max(1, int(milli * round(factor * 10**6)) // 10**6), MAX_TOKENS * MILLI)

    if limit.is_concurrent:
        return limit.changed(capacity_milli=max(times(limit.capacity_milli) // MILLI, 1) * MILLI)
    refill_milli = limit.refill_milli if limit.is_quota else times(limit.refill_milli)
    return limit.changed(capacity_milli=times(limit.capacity_milli), refill_milli=refill_milli)


def _listed(entries: Any) -> Sequence[Any]:
    if isinstance(entries, (str, bytes)) or not isinstance(entries, Iterable):
        raise ValidationError(f"entries must be a list of (hours, limits or factor), not {shown(entries)}")
    found = list(entries)
    if not 1 <= len(found) <= _MOST_ENTRIES:
        raise ValidationError(f"a schedule has from 1 to {_MOST_ENTRIES} entries, not {len(found)}")
    for entry in found:
        if not isinstance(entry, (tuple, list)) or len(entry) != 2 or not isinstance(entry[0], str):
            raise ValidationError(
                f"an entry is a pair like ('mon-fri 08:00-18:00', [limit, ...]) or ('sat,sun', 0.5), not {shown(entry)}"
            )
    return found


class _Hours:
    def at(self, now_ms: int) -> tuple[bool, int, int]:
        """Whether they hold, since when, and until when."""
        raise NotImplementedError


@lru_cache(maxsize=1024)
def _hours(text: str, zone: tzinfo) -> _Hours:
    """Shared by all schedules that have them: what was found out of a moment is found out once."""
    words = text.split()
    if len(words) == 5:
        return _CronHours(check_cron(text), zone)
    days = _days(words[0]) if words and not words[0][0].isdigit() else None
    span = _SPAN.fullmatch(words[-1]) if words and words[-1][0].isdigit() else None
    if not words or len(words) != (days is not None) + (span is not None):
        raise ValidationError(
            f"hours {text!r} cannot be read: write them like 'mon-fri 08:00-18:00', 'sat,sun', '22:00-06:00', or as a "
            "cron expression like '* 8-17 * * 1-5'"
        )
    start, end = (0, _DAY_MINUTES) if span is None else _minutes(span)
    if start == end:
        raise ValidationError(f"hours {text!r} end when they begin; for whole days leave the hours out")
    return _DayHours(frozenset(range(7)) if days is None else days, start, end, zone)


def _minutes(span: re.Match[str]) -> tuple[int, int]:
    start = int(span[1]) * 60 + int(span[2])
    return start, _DAY_MINUTES if span[3] is None else int(span[3]) * 60 + int(span[4])


def _days(word: str) -> frozenset[int] | None:
    days: set[int] = set()
    for part in word.lower().split(","):
        first, _, last = part.partition("-")
        numbers = [_weekday(name) for name in (first, last or first)]
        if None in numbers:
            return None
        begin, end = (number or 0 for number in numbers)
        days.update(day % 7 for day in range(begin, end + 1 if end >= begin else end + 8))
    return frozenset(days)


def _weekday(name: str) -> int | None:
    return next((number for number, day in enumerate(WEEKDAYS) if name in (day, day[:3])), None)


class _DayHours(_Hours):
    """From `start` to `end`, in minutes of the day, on some days of the week; an earlier end is on the next day."""

    def __init__(self, days: frozenset[int], start: int, end: int, zone: tzinfo) -> None:
        self._days = days
        self._start = start
        self._end = end if end > start else end + _DAY_MINUTES
        self._zone = zone

    def at(self, now_ms: int) -> tuple[bool, int, int]:
        edges: list[tuple[int, bool]] = []
        today = (EPOCH + now_ms * MILLISECOND).date()
        for spans in self._spans(today):
            starts_ms, ends_ms = spans
            if edges and edges[-1][0] >= starts_ms:
                edges.pop()  # no gap between the two
                edges.append((ends_ms, False))
            elif ends_ms > starts_ms:
                edges += [(starts_ms, True), (ends_ms, False)]
        before = [edge for edge in edges if edge[0] <= now_ms]
        after = [edge for edge in edges if edge[0] > now_ms]
        always = len(edges) == 2 and edges[0][0] <= now_ms - _FAR_MS and edges[1][0] > now_ms + _FAR_MS
        holds = bool(before) and before[-1][1]
        since_ms = before[-1][0] if before and not always else 0
        return holds, since_ms, after[0][0] if after and not always else now_ms + _FAR_MS

    def _spans(self, today: date) -> Iterator[tuple[int, int]]:
        for offset in range(-10, 11):
            day = today + timedelta(days=offset)
            if day.weekday() in self._days:
                yield self._ms(day, self._start), self._ms(day, self._end)

    def _ms(self, day: date, minutes: int) -> int:
        days, minutes = divmod(minutes, _DAY_MINUTES)
        day += timedelta(days=days)
        return epoch_ms(datetime(day.year, day.month, day.day, minutes // 60, minutes % 60, tzinfo=self._zone))


class _CronHours(_Hours):
    """The minutes that match a cron expression."""

    def __init__(self, cron: str, zone: tzinfo) -> None:
        self._cron = cron
        self._zone = zone
        self._asked_ms = 0
        self._known = (False, 0, 0)

    def at(self, now_ms: int) -> tuple[bool, int, int]:
        if not self._asked_ms <= now_ms < self._known[2]:
            self._asked_ms, self._known = now_ms, self._at(now_ms)
        return self._known

    def _at(self, now_ms: int) -> tuple[bool, int, int]:
        minute_ms = now_ms - now_ms % 60_000
        holds = next(self._minutes(minute_ms - 60_000), None) == minute_ms
        if holds:
            first_ms, last_ms = self._run(minute_ms, -60_000), self._run(minute_ms, 60_000)
            return True, first_ms or 0, minute_ms + _FAR_MS // 8 if last_ms is None else last_ms + 60_000
        following = next(self._minutes(minute_ms), None)
        previous = next(self._minutes(minute_ms, reverse=True), None)
        since_ms = 0 if previous is None else previous + 60_000
        return False, since_ms, now_ms + _FAR_MS if following is None else following

    def _run(self, minute_ms: int, step_ms: int) -> int | None:
        """The last minute of the run of matching ones, in one direction; None if it is not within a day."""
        for found in islice(self._minutes(minute_ms, reverse=step_ms < 0), _MOST_MINUTES):
            if found != minute_ms + step_ms:
                return minute_ms
            minute_ms = found
        return None

    def _minutes(self, since_ms: int, *, reverse: bool = False) -> Iterator[int]:
        from cronsim import CronSim

        for moment in CronSim(self._cron, (EPOCH + since_ms * MILLISECOND).astimezone(self._zone), reverse=reverse):
            yield epoch_ms(moment)


def past_edge(
    parts: Parts, answer: Answer, following: Sequence[Mapping[str, Limit]], now_ms: int, edge_ms: int
) -> Answer:
    """A refusal whose wait looks past the edge at which the `following` limits of each level begin to hold.

    The states are made again from the answer, without what a bucket has earned of its next millitoken: no wait is too
    short.
    """
    left_ms = edge_ms - now_ms
    if answer.wait_ms is not None and answer.wait_ms <= left_ms:
        return answer
    levels = []
    for part, (available_milli, wait_ms) in zip(parts, answer.levels):
        limit = following[part.level].get(part.limit.name) if part.level < len(following) else None
        if limit is not None and not limit.is_concurrent and not part.limit.is_concurrent:
            state = _as_answered(part.limit, available_milli, wait_ms, part.amount_milli, now_ms)
            state.settle(edge_ms)
            if limit != part.limit and type(state) is (Quota if limit.is_quota else Bucket):
                state.reshape(limit)
            elif limit.is_quota != part.limit.is_quota:
                state = (Quota if limit.is_quota else Bucket).full(limit, edge_ms)
            wait = state.wait_ms(part.amount_milli)
            wait_ms = None if wait is None else left_ms + wait
        levels.append((available_milli, wait_ms))
    waits = [wait_ms for _, wait_ms in levels]
    longest = None if None in waits else max(wait_ms or 0 for wait_ms in waits)
    return Answer(answer.allowed, longest, levels)


def _as_answered(limit: Limit, tokens_milli: int, wait_ms: int | None, amount_milli: int, now_ms: int) -> Bucket:
    blocked_until_ms = now_ms + wait_ms if wait_ms and tokens_milli >= amount_milli else 0
    if not limit.is_quota:
        return Bucket(limit, tokens_milli, now_ms, blocked_until_ms=blocked_until_ms)
    if limit.calendar is not None:
        ends_ms = limit.calendar.window(now_ms).ends_ms
    else:
        ends_ms = now_ms + (wait_ms or limit.period_ms) if tokens_milli < limit.capacity_milli else 0
    return Quota(limit, tokens_milli, now_ms, ends_ms, blocked_until_ms)
