"""Quotas and their calendars: the law, over its full range."""

from __future__ import annotations

import json
import pickle
from copy import copy
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headgate import Limit, ValidationError
from headgate.core.calendar import WEEKDAYS, Calendar
from headgate.core.decide import Answer, Mode, Part, Request, decide, state_of, take_one
from headgate.core.quota import Quota
from headgate.core.stored import bucket_as_stored
from headgate.testing.model import ModelCharge, ModelLimiter, ModelQuota

ZONES = (
    "UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Chatham", "Africa/Casablanca",
    "Australia/Lord_Howe", "America/St_Johns", "Pacific/Apia", "Asia/Gaza",
)  # fmt: skip
START = 1_790_000_000_000
moments = st.one_of(st.integers(START, START + 3 * 366 * 86_400_000), st.integers(0, 4 * 10**12))
at_times = st.builds("{:02d}:{:02d}".format, st.integers(0, 23), st.sampled_from([0, 1, 15, 30, 45, 59]))
zones = st.sampled_from(ZONES)
calendars = st.one_of(
    st.builds(lambda minute: Calendar.every("hour", at=f"00:{minute:02d}"), st.integers(0, 59)),
    st.builds(lambda tz, at: Calendar.every("day", tz=tz, at=at), zones, at_times),
    st.builds(
        lambda tz, at, on: Calendar.every("week", tz=tz, at=at, on=on), zones, at_times, st.sampled_from(WEEKDAYS)
    ),
    st.builds(lambda tz, at, on: Calendar.every("month", tz=tz, at=at, on=on), zones, at_times, st.integers(1, 31)),
    st.builds(
        lambda tz, at, on: Calendar.every("year", tz=tz, at=at, on=on),
        zones,
        at_times,
        st.sampled_from(["01-01", "02-29", "12-31", "04-06"]),
    ),
)
amounts = st.one_of(st.integers(1, 20_000), st.integers(1, 10**15))
quotas = st.one_of(
    st.builds(lambda amount, calendar: Limit.from_stored("x", amount, -1, 0, calendar), amounts, calendars),
    st.builds(lambda amount, ms: Limit.from_stored("x", amount, -1, ms), amounts, st.integers(1, 366 * 86_400_000)),
)


def take(part: Part, state: Any, now_ms: int, max_wait_ms: int = 0) -> Answer:
    return take_one(state, *part[1:], now_ms, max_wait_ms)


def is_edge(calendar: Calendar, ms: int) -> bool:
    """By the wall clock, minute by minute: without any arithmetic of the calendar's own."""
    moment = datetime.fromtimestamp(ms / 1000, timezone.utc).astimezone(ZoneInfo(calendar.tz))
    hour, minute = map(int, calendar.at.split(":"))
    day = moment.date()
    if calendar.per == "hour":
        return moment.minute == minute
    for candidate in (day, day - timedelta(days=1)):  # a day that the zone skips begins on the next one
        there = datetime(candidate.year, candidate.month, candidate.day, hour, minute, tzinfo=ZoneInfo(calendar.tz))
        if there.timestamp() * 1000 == ms and _is_day(calendar, candidate):
            return True
    return False


def _is_day(calendar: Calendar, day: Any) -> bool:
    last = (day + timedelta(days=1)).day == 1
    if calendar.per == "week":
        return bool(WEEKDAYS[day.weekday()] == calendar.on)
    if calendar.per == "month":
        return bool(day.day == calendar.on or (last and day.day < int(calendar.on or 0)))
    if calendar.per == "year":
        return bool(f"{day:%m-%d}" == calendar.on or (calendar.on == "02-29" and last and f"{day:%m-%d}" == "02-28"))
    return True


@given(calendars, moments)
def test_windows_follow_each_other_and_begin_and_end_at_edges(calendar: Calendar, now_ms: int) -> None:
    window = calendar.window(now_ms)
    assert window.starts_ms <= now_ms < window.ends_ms
    assert is_edge(calendar, window.starts_ms)
    assert is_edge(calendar, window.ends_ms)
    following = calendar.window(window.ends_ms)
    assert following.starts_ms == window.ends_ms
    assert calendar.window(window.starts_ms) == window == calendar.window(window.ends_ms - 1)


@given(calendars, moments, st.integers(0, 10**6))
def test_no_edge_is_inside_a_window(calendar: Calendar, now_ms: int, where: int) -> None:
    window = calendar.window(now_ms)
    minutes = (window.ends_ms - window.starts_ms) // 60_000
    inside = window.starts_ms + (1 + where % max(1, minutes - 1)) * 60_000
    assume(window.starts_ms < inside < window.ends_ms)
    assert not is_edge(calendar, inside)


@given(calendars)
def test_equal_calendars_are_one_object_even_after_a_pickle(calendar: Calendar) -> None:
    assert pickle.loads(pickle.dumps(calendar)) is calendar


@given(quotas)
def test_a_quota_is_read_back_from_its_text_and_its_json(limit: Limit) -> None:
    assert Limit.parse("x", str(limit)) == limit
    assert Limit.from_dict(json.loads(json.dumps(limit.as_dict()))) == limit
    assert eval(repr(limit)) == limit
    assert pickle.loads(pickle.dumps(limit)) == limit


steps = st.lists(
    st.tuples(
        st.integers(-5_000, 5 * 86_400_000),
        st.sampled_from(["take", "force", "lower", "penalize", "reshape", "look"]),
        st.integers(0, 30_000),
    ),
    max_size=30,
)


@given(quotas, quotas, moments, steps)
def test_any_history_equals_the_model(limit: Limit, other: Limit, now_ms: int, steps: list[Any]) -> None:
    state, model, place = state_of(Part(0, limit, 0), now_ms), ModelLimiter(), ("e", "r", "x")
    state.settle(now_ms)
    revision = 0
    for pause, what, amount in steps:
        now_ms = max(0, now_ms + pause)
        if what == "reshape":
            limit, other = other, limit
            revision += amount % 2
            what = "take"
        part = Part(0, limit, amount, revision)
        charge = {place: ModelCharge(limit, Fraction(amount, 1000), revision)}
        if what == "take":
            answer = take(part, state, now_ms)
            assert (answer.allowed, answer.wait_ms) == model.take(charge, now_ms)
        elif what == "force":
            sign = -1 if amount % 2 else 1
            decide(Request(Mode.FORCE, ("k",), (part._replace(amount_milli=sign * amount),)), [state], now_ms)
            model.force({place: charge[place]._replace(amount=sign * charge[place].amount)}, now_ms)
        elif what == "penalize":
            block_ms, keep = amount * (amount % 3), amount % 1001
            request = Request(
                Mode.PENALIZE, ("k",), (part._replace(amount_milli=0),), block_ms=block_ms, keep_milli=keep
            )
            decide(request, [state], now_ms)
            model.penalize({place: charge[place]._replace(amount=Fraction(0))}, now_ms, block_ms, keep)
        else:
            decide(Request(Mode.PEEK, ("k",), (part,)), [state], now_ms)
            model.look(charge, now_ms)
        seen = model.look(charge, now_ms)[place]
        assert isinstance(seen, ModelQuota)
        state.settle(now_ms)
        state = stored_and_read(limit, state) if amount % 2 else state
        looked = copy(state)
        if looked.limit != limit:
            looked.reshape(limit, revision)
        assert looked.available_milli() // 1000 == seen.available()


def stored_and_read(limit: Limit, state: Any) -> Quota:
    numbers = (state.tokens_milli, state.settled_at_ms, state.remainder, state.blocked_until_ms, state.revision)
    of = state.limit
    read = bucket_as_stored(limit, "x", of.capacity_milli, of.refill_milli, of.period_ms, *numbers)
    assert isinstance(read, Quota)
    return read


@given(quotas, moments, st.integers(1, 10**15))
def test_the_wait_is_exact(limit: Limit, now_ms: int, amount: int) -> None:
    quota = state_of(Part(0, limit, 0), now_ms)
    take(Part(0, limit, limit.capacity_milli), quota, now_ms)
    answer = take(Part(0, limit, amount), quota, now_ms, max_wait_ms=10**13)
    assert not answer.allowed, "nothing is reserved in the next window"
    if answer.wait_ms is None:
        assert amount > limit.capacity_milli
        return
    if answer.wait_ms:
        assert not take(Part(0, limit, amount), quota, now_ms + answer.wait_ms - 1).allowed
    assert take(Part(0, limit, amount), quota, now_ms + answer.wait_ms).allowed


@given(quotas, moments, steps)
def test_in_one_window_no_more_than_the_amount_passes(limit: Limit, now_ms: int, steps: list[Any]) -> None:
    quota, passed = state_of(Part(0, limit, 0), now_ms), dict[int, int]()
    for pause, _, amount in steps:
        now_ms = max(0, now_ms + pause)
        if take(Part(0, limit, amount), quota, now_ms).allowed:
            passed[quota.remainder] = passed.get(quota.remainder, 0) + amount
    assert all(total <= limit.capacity_milli for total in passed.values())


def test_a_window_from_first_use_ends_when_everything_is_given_back() -> None:
    limit = Limit.quota("x", 45, 5 * 3600, from_first_use=True)
    quota = state_of(Part(0, limit, 0), START)
    take(Part(0, limit, 45_000), quota, START)
    assert take(Part(0, limit, 1_000), quota, START + 1).wait_ms == 5 * 3_600_000 - 1
    decide(Request(Mode.FORCE, ("k",), (Part(0, limit, -45_000),)), [quota], START + 60_000)
    take(Part(0, limit, 45_000), quota, START + 120_000)
    assert take(Part(0, limit, 1_000), quota, START + 120_000).wait_ms == 5 * 3_600_000


def test_a_client_with_an_older_calendar_gets_no_second_quota() -> None:
    newer, older = (Limit.quota("x", 5, "day", at=at) for at in ("00:00", "12:00"))
    quota = state_of(Part(0, newer, 0, 2), START)
    take(Part(0, newer, 5_000, 2), quota, START)
    now_ms = START
    for _ in range(6):
        quota = stored_and_read(older, quota)
        take(Part(0, older, 0, 1), quota, now_ms)
        taken = sum(take(Part(0, older, 1_000, 1), quota, now_ms).allowed for _ in range(6))
        assert taken <= (0 if now_ms == START else 5)
        now_ms += 86_400_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"per": "day", "tz": "Europe/Berlim"}, "'Europe/Berlim'.*'Europe/Berlin'"),
        ({"per": "day", "tz": "../etc/passwd"}, "unknown time zone"),
        ({"per": "day", "tz": ""}, "unknown time zone"),
        ({"per": "day", "tz": "a\x00b"}, "unknown time zone"),
        ({"per": "day", "tz": 7}, "name of a time zone"),
        ({"per": "day", "at": "06:30:15"}, "'06:30'.*not '06:30:15'"),
        ({"per": "day", "at": "24:00"}, "not '24:00'"),
        ({"per": "day", "on": 3}, "on=3"),
        ({"per": "week", "on": "someday"}, "'monday', not 'someday'"),
        ({"per": "month", "on": 32}, "from 1 to 31, not 32"),
        ({"per": "month", "on": True}, "not True"),
        ({"per": "year", "on": "02-30"}, "not '02-30'"),
        ({"per": "year", "on": "2-3"}, "'04-06'"),
        ({"per": "hour", "tz": "Europe/Berlin"}, "Europe/Berlin"),
        ({"per": "hour", "at": "06:30"}, "'00:30', not '06:30'"),
        ({"per": "fortnight"}, "not 'fortnight'"),
        ({"per": None}, "not None"),
        ({"per": 3600}, "from_first_use=True"),
        ({"per": "day", "from_first_use": True}, "'day'"),
        ({"per": 0, "from_first_use": True}, "not 0"),
        ({"per": 60, "tz": "Asia/Tokyo", "from_first_use": True}, "calendars"),
        ({"per": "day", "cron": "0 6 * * *"}, "leave these out"),
        ({"cron": "0 6 * *"}, "five fields"),
        ({"cron": "0 99 * * *"}, "'0 99 \\* \\* \\*'"),
    ],
)
def test_what_makes_no_sense_is_an_error_that_shows_what_does(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Limit.quota("x", 5, **arguments)


@pytest.mark.parametrize("amount", [0, -1, 10**13, 0.0001, True, "5"])
def test_an_amount_that_is_none_is_an_error(amount: Any) -> None:
    with pytest.raises(ValidationError, match="amount of limit 'x'"):
        Limit.quota("x", amount, "day")


def test_utc_needs_no_zone_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zoneinfo", None)
    limit = Limit.quota("x", 5, "day", at="03:07")
    assert take(Part(0, limit, 1), state_of(Part(0, limit, 0), START), START).allowed


@given(st.integers(4, 10**6), st.integers(1, 86_400), st.lists(st.integers(0, 10**5), min_size=1, max_size=60))
def test_at_most_holds_in_any_window(amount: int, seconds: int, pauses: list[int]) -> None:
    limit = Limit.at_most("x", amount, seconds)
    bucket, now_ms, passed = state_of(Part(0, limit, 0), START), START, list[tuple[int, int]]()
    for pause in pauses:
        now_ms += pause
        want = max(1, bucket.available_milli())
        if take(Part(0, limit, want), bucket, now_ms).allowed:
            passed.append((now_ms, want))
    for since, _ in passed:
        assert sum(milli for at, milli in passed if since <= at < since + seconds * 1000) <= amount * 1000
