"""Schedules: which limits hold when, by the wall clock."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit, ValidationError
from headgate.core.calendar import WEEKDAYS
from headgate.core.schedule import Schedule, multiplied

START = 1_790_000_000_000
DAY, MINUTE = 86_400_000, 60_000
BASE = [Limit.per_minute("rpm", 10), Limit.quota("usd", 5, "day")]
BUSY = [Limit.per_minute("rpm", 100)]
zones = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Pacific/Chatham", "Asia/Kolkata"])
clock_times = st.builds("{:02d}:{:02d}".format, st.integers(0, 23), st.sampled_from([0, 30, 59]))
day_sets = st.sampled_from(["", "mon-fri", "sat,sun", "fri-mon", "wednesday", "mon,wed,fri", "mon-sun"])
hours = st.one_of(
    st.builds(lambda days, a, b: f"{days} {a}-{b}".strip(), day_sets, clock_times, clock_times).filter(
        lambda text: text.split()[-1][:5] != text.split()[-1][6:]
    ),
    day_sets.filter(bool),
    st.sampled_from(["* 8-17 * * 1-5", "30-45 * * * *", "0 12 * * *", "* * * * *", "*/2 9 1 * *"]),
)
moments = st.integers(START, START + 366 * DAY)


def local(ms: int, tz: str) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc).astimezone(ZoneInfo(tz))


def expected(text: str, tz: str, ms: int) -> bool:
    """Whether the hours hold, from the instants of the days around."""
    words = text.split()
    if len(words) == 5:
        return _matches(words, local(ms, tz))
    names = [word for word in words if not word[0].isdigit()]
    span = next((word for word in words if word[0].isdigit()), "00:00-24:00")
    begin, end = ((int(one[:2]), int(one[3:])) for one in span.split("-"))
    today = local(ms, tz).date()
    for offset in (-2, -1, 0, 1):
        day = today + timedelta(days=offset)
        if names and day.weekday() not in _days(names[0]):
            continue
        last = day + timedelta(days=1) if end <= begin or end[0] == 24 else day
        starts = datetime(day.year, day.month, day.day, *begin, tzinfo=ZoneInfo(tz)).timestamp() * 1000
        ends = datetime(last.year, last.month, last.day, end[0] % 24, end[1], tzinfo=ZoneInfo(tz)).timestamp() * 1000
        if starts <= ms < ends:
            return True
    return False


def _days(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        a, b = (
            next(n for n, day in enumerate(WEEKDAYS) if day.startswith(name[:3])) for name in (first, last or first)
        )
        while a != b:
            found.add(a)
            a = (a + 1) % 7
        found.add(b)
        if last and first[:3] == "mon" and last[:3] == "sun":
            found = set(range(7))
    return found


def _matches(fields: list[str], moment: datetime) -> bool:
    values = (moment.minute, moment.hour, moment.day, moment.month, moment.isoweekday() % 7)
    return all(_field(field, value) for field, value in zip(fields, values))


def _field(field: str, value: int) -> bool:
    if field.startswith("*"):
        return value % int(field[2:] or 1) == 0
    first, _, last = field.partition("-")
    return int(first) <= value <= int(last or first)


@given(hours, zones, moments)
def test_hours_hold_when_the_wall_clock_says_so(text: str, tz: str, ms: int) -> None:
    schedule = Schedule([(text, BUSY)], otherwise=BASE, tz=tz)
    names = {limit.name: limit for limit in schedule.at(ms).limits}
    assert (names["rpm"] == BUSY[0]) is expected(text, tz, ms)
    assert names["usd"] == BASE[1], "what an entry does not name is as otherwise"


@given(hours, zones, moments)
def test_it_holds_from_since_until_just_before_until(text: str, tz: str, ms: int) -> None:
    schedule = Schedule([(text, BUSY)], otherwise=BASE, tz=tz)
    now = schedule.at(ms)
    assert now.since_ms <= ms < now.until_ms
    fresh = Schedule([(text, BUSY)], otherwise=BASE, tz=tz)
    for same in {max(now.since_ms, ms - 7 * DAY), ms, min(now.until_ms - 1, ms + 7 * DAY)}:
        assert fresh.at(same).limits == now.limits
    if now.until_ms < ms + 7 * DAY:
        assert Schedule([(text, BUSY)], otherwise=BASE, tz=tz).at(now.until_ms).since_ms in (now.until_ms, 0)


@given(st.lists(hours, min_size=1, max_size=4), zones, st.lists(moments, min_size=2, max_size=8).map(sorted))
def test_since_never_falls_as_time_goes_on(texts: list[str], tz: str, at: list[int]) -> None:
    schedule = Schedule([(text, 0.5) for text in texts], otherwise=BASE, tz=tz)
    seen = [schedule.at(ms).since_ms for ms in at]
    assert [since for since in seen if since] == sorted(since for since in seen if since)


def test_the_first_entry_that_matches_holds() -> None:
    schedule = Schedule([("mon", 0.1), ("mon-fri", 0.5)], otherwise=BASE)
    monday = 1_717_416_000_000
    held = [schedule.at(monday + day * DAY).limits[0].capacity for day in (0, 1, 5)]
    assert held == [1, 5, 10]


@given(hours, zones, st.one_of(st.just(BUSY), st.floats(0.001, 1000).map(lambda value: round(value, 6))))
def test_it_is_read_back_from_json(text: str, tz: str, what: Any) -> None:
    schedule = Schedule([(text, what)], otherwise=BASE, tz=tz)
    assert Schedule.from_dict(json.loads(json.dumps(schedule.as_dict())), BASE) == schedule


@pytest.mark.parametrize(
    ("limit", "factor", "result"),
    [
        (Limit.per_minute("x", 10, burst=4), 0.5, Limit.per_minute("x", 5, burst=2)),
        (Limit.quota("x", 7, "day", at="06:30"), 0.5, Limit.quota("x", 3.5, "day", at="06:30")),
        (Limit.concurrent("x", 3), 0.5, Limit.concurrent("x", 1)),
        (Limit.concurrent("x", 1), 0.5, Limit.concurrent("x", 1)),
        (Limit.per_day("x", 0.001), 0.1, Limit.per_day("x", 0.001)),
        (Limit.per_day("x", 10**12), 1000, Limit.per_day("x", 10**12)),
    ],
)
def test_a_factor_multiplies_every_kind(limit: Limit, factor: float, result: Limit) -> None:
    assert multiplied(limit, factor) == result


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([("mon-fri 8-18", BUSY)], "'mon-fri 8-18' cannot be read.*'mon-fri 08:00-18:00'"),
        ([("", BUSY)], "cannot be read"),
        ([("someday", BUSY)], "'someday'"),
        ([("08:00-08:00", BUSY)], "end when they begin"),
        ([("25:00-26:00", BUSY)], "'25:00-26:00'"),
        ([("* 99 * * *", BUSY)], "'\\* 99 \\* \\* \\*'"),
        ([("mon", [])], "has no limits"),
        ([("mon", 0)], "not 0"),
        ([("mon", -0.5)], "not -0.5"),
        ([("mon", float("nan"))], "not nan"),
        ([("mon", True)], "must be a list of Limit"),
        ([("mon", [Limit.per_minute("other", 1)])], "'other' that otherwise= lacks"),
        ([], "from 1 to 50"),
        ("mon", "must be a list"),
        ([("mon",)], "a pair"),
    ],
)
def test_what_makes_no_sense_is_an_error_that_shows_what_does(entries: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Schedule(entries, otherwise=BASE)
