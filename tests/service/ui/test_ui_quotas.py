"""Quotas, schedules and alerts on the pages: what they say, and that editing one thing keeps the others."""

from __future__ import annotations

import itertools
from datetime import datetime
from typing import Any

import httpx
import pytest
from dashboard_site import TOKENS, Site, path_of, text_of
from markupsafe import escape
from service_process import ServeProcess, inside

from headgate import Limit, Schedule, SyncRateLimiter, ValidationError
from headgate.core.calendar import epoch_ms
from headgate.limiter import BucketStatus
from headgate.service.app import create_app
from headgate.service.ui.gauge import Gauge, gauge_of, moment_at
from headgate.service.ui.hours import read_entries, read_schedule, spelled_entries, spelled_level
from headgate.service.ui.words import field_changes, limit_changes, line_changes

_numbers = itertools.count()
DAILY = "1000/day resets 06:30 Europe/Berlin"
HOURS = [
    "mon-fri 08:00-18:00: rph=100/hour",
    "* 12 * * 6,0: rph=9/cron 0 6 * * 1,3 resets UTC; rpm=1/minute",
    "sat: 0.5",
]


def at(text: str) -> int:
    return epoch_ms(datetime.fromisoformat(text))


# Quotas


@pytest.mark.parametrize(
    ("moment", "zone", "words"),
    [
        ("2026-11-19T05:30:00+00:00", "Europe/Berlin", "tomorrow, Thu 19 Nov 06:30 Europe/Berlin (in 9 h)"),
        ("2026-11-18T23:00:00+00:00", "Europe/Berlin", "tomorrow, Thu 19 Nov 00:00 Europe/Berlin (in 2 h 30 min)"),
        ("2026-11-18T23:00:00+00:00", "UTC", "today, Wed 18 Nov 23:00 UTC (in 2 h 30 min)"),
        ("2026-11-22T08:00:00+00:00", "Asia/Tokyo", "Sun 22 Nov 17:00 Asia/Tokyo (in 3 d 11 h)"),
        ("2027-01-01T05:00:00+00:00", "America/New_York", "Fri 1 Jan 2027 00:00 America/New_York (in 43 d 8 h)"),
    ],
)
def test_resets_are_told_in_the_words_of_the_zone(moment: str, zone: str, words: str) -> None:
    assert str(moment_at(at(moment), zone, at("2026-11-18T20:30:00+00:00"))) == words


def status(limit: Limit, available: int, full_in_seconds: float) -> BucketStatus:
    return BucketStatus("acme", "chat", limit, available, full_in_seconds, 0.0, limit.capacity - available)


def test_a_quota_whose_calendar_the_store_does_not_know() -> None:
    bare = Limit.parse("calls", DAILY).changed(calendar=None)
    known, unknown = Gauge.of(status(bare, 250, 7200.0)), Gauge.of(status(bare, 250, 4.6e15))
    assert (known.used, known.available, known.part) == (750, 250, 0.25)
    assert known.resets is not None
    assert known.resets.zone == "UTC"
    assert known.resets.left == "in 2 h"
    assert unknown.resets is None
    in_force = gauge_of(Limit.parse("calls", DAILY), status(bare, 250, 4.6e15), "entity")
    assert in_force.resets is not None
    assert in_force.resets.zone == "Europe/Berlin"


def test_what_was_used_as_another_kind_does_not_count() -> None:
    quota, bucket = Limit.parse("calls", DAILY), Limit.per_day("calls", 1000)
    assert gauge_of(quota, status(bucket, 10, 60.0), None).used == 0
    assert gauge_of(bucket, status(quota, 10, 60.0), None).available == 1000
    smaller = gauge_of(Limit.parse("calls", "900/day resets UTC"), status(quota, 250, 60.0), None)
    assert (smaller.used, smaller.available) == (750, 150)


def test_a_quota_on_the_pages(entity: str, boss: Site, served: ServeProcess) -> None:
    place = {"entity": entity, "resource": f"quotas/{next(_numbers)}"}
    stored(boss, place, ["calls", "msgs", "rpm"], [DAILY, "45/5h from first use", "60/day"])
    with served.client(TOKENS["admin"]) as api:
        ask = {"entity_id": entity, "resource": place["resource"], "consume": {"calls": 750, "msgs": 45, "rpm": 60}}
        assert api.post("/v1/acquire", json=ask).json()["allowed"]
    page = text_of(boss.get(path_of(entity)))
    assert f"calls {DAILY.replace('1000', '1,000')} 750 / 1,000 used 250 left · resets to" in page
    assert "06:30 Europe/Berlin (in " in page
    assert "msgs 45/5h from first use 45 / 45 used 0 left · resets to" in page
    assert "rpm 60/day 0 / 60 full in 23 h" in page or "rpm 60/day 0 / 60 full in 1 d" in page
    table = text_of(boss.get("/ui/buckets", resource=place["resource"]))
    assert "750 / 1,000 used to" in table
    assert "45 / 45 used to" in table
    boss.post(path_of(entity, "reset"), resource=place["resource"])
    assert "0 / 1,000 used 1,000 left · resets to" in text_of(boss.get(path_of(entity)))


def test_changes_between_kinds_are_put_in_words() -> None:
    minus = "\N{MINUS SIGN}"
    pairs = {
        "a": ("100/day", "100/day resets UTC", "now a quota: starts full"),
        "b": ("100/day resets UTC", "5 concurrent", "now slots: starts full"),
        "c": ("5 concurrent", "100/day", "now a bucket: starts full"),
        "d": (DAILY, "1500/day resets 06:30 Europe/Berlin", "amount +50%"),
        "e": (DAILY, "500/day resets Europe/Berlin", f"amount {minus}50%, other window"),
        "f": (DAILY, "1000/5h from first use", "other window"),
        "g": ("45/5h from first use", "45/4h from first use alert 80%", "other window, other alerts"),
        "h": ("100/day", "100/day alert 80%", "other alerts"),
    }
    before, after = ([Limit.parse(name, pair[index]) for name, pair in pairs.items()] for index in (0, 1))
    assert {one.name: one.words for one in limit_changes(before, after)} == {
        name: words for name, (_, _, words) in pairs.items()
    }


# Schedules


def stored(boss: Site, place: dict[str, str], names: list[str], specs: list[str], **fields: str) -> httpx.Response:
    preview = boss.follow(
        boss.get("/ui/limits/edit", **place), "/ui/limits/edit", 200, name=names, spec=specs, **fields
    )
    boss.follow(preview, "/ui/limits/edit")
    return preview


def test_schedules_are_read_as_they_are_written() -> None:
    limits = [Limit.per_hour("rph", 20), Limit.per_minute("rpm", 5)]
    schedule = read_schedule(read_entries("\r\n".join(["", *HOURS, ""])), limits, "Europe/Berlin")
    assert schedule is not None
    assert spelled_entries(schedule) == HOURS
    assert read_entries("sat: rph=1/hour, rpm=2/minute") == read_entries("sat: rph=1/hour; rpm=2/minute;")
    assert read_schedule(read_entries(" \n"), limits, "nowhere") is None
    assert read_schedule(read_entries("sat: 2"), limits, "") == Schedule([("sat", 2.0)], otherwise=limits)


@pytest.mark.parametrize(
    ("hours", "tz", "words"),
    [
        ("noon", "", "'noon' cannot be read: write hours, a colon"),
        ("noon: 0.5", "", "hours 'noon' cannot be read"),
        ("sat:", "", "cannot be read"),
        ("sat: half", "", "'half' for 'sat' is no limit and no factor"),
        ("sat: rph=lots", "", "cannot be read from 'lots'"),
        ("sat: -1", "", "must be above 0"),
        ("sat: nan", "", "must be above 0"),
        ("sat: other=1/hour", "", "'sat' has a limit 'other' that is not among the limits above"),
        ("sat: 0.5", "Europe/Berln", "unknown time zone 'Europe/Berln'"),
    ],
)
def test_hours_that_cannot_be_used(hours: str, tz: str, words: str, entity: str, boss: Site) -> None:
    form = boss.get("/ui/limits/edit", entity=entity)
    answer = boss.follow(form, "/ui/limits/edit", 422, name="rph", spec="1/hour", hours=hours, tz=tz)
    assert words in text_of(answer)
    assert answer.text.count('role="alert"') == 1
    assert f">{escape(hours)}</textarea>" in answer.text
    field = '<input id="tz"' if tz else '<textarea id="hours"'
    assert 'aria-invalid="true"' in answer.text.partition(field)[2].partition(">")[0]


def test_a_schedule_is_kept_when_something_else_is_edited(entity: str, boss: Site) -> None:
    place = {"entity": entity, "resource": f"quotas/{next(_numbers)}"}
    preview = stored(boss, place, ["rph"], ["20/hour"], hours="mon-sun: 0.5\nsat: rph=7/hour", tz="Asia/Tokyo")
    assert "mon-sun: 0.5" in text_of(preview)
    form = boss.get("/ui/limits/edit", **place)
    assert 'value="20/hour"' in form.text, "and not the 10/hour that are in force"
    assert "mon-sun: 0.5\nsat: rph=7/hour</textarea>" in form.text
    assert 'value="Asia/Tokyo"' in form.text
    preview = boss.follow(form, "/ui/limits/edit", 200, name=["rph"], spec=["30/hour"])  # as a form without the field
    assert "rph 10/hour its own 15/hour its own" in text_of(preview)
    assert "removed: at other times: rph=20/hour new: at other times: rph=30/hour" in text_of(preview)
    boss.follow(preview, "/ui/limits/edit")
    page = text_of(boss.get(path_of(entity)))
    assert (
        "Instead, at these hours in Asia/Tokyo: mon-sun 0.5 \N{MULTIPLICATION SIGN} each limit sat rph 7/hour" in page
    )
    late = boss.follow(form, "/ui/limits/edit", 409, name=["rph"], spec=["30/hour"], hours="", tz="")
    assert "removed: mon-sun: 0.5" in text_of(late)
    boss.follow(late, "/ui/limits/edit")
    assert "Instead" not in text_of(boss.get(path_of(entity)))


def test_a_limit_with_hours_is_stored_though_it_was_inherited(entity: str, boss: Site) -> None:
    resource = f"quotas/{next(_numbers)}"
    stored(boss, {"resource": resource}, ["rph", "rpm"], ["20/hour", "5/minute"])
    place = {"entity": entity, "resource": resource}
    rows = (["rph", "rpm"], ["20/hour", "5/minute"])
    preview = stored(boss, place, *rows, hours="mon-sun: rph=100/hour", tz="")
    assert "rph 20/hour from the resource 100/hour its own" in text_of(preview)
    assert "rpm 5/minute from the resource 5/minute from the resource unchanged" in text_of(preview)
    question = text_of(boss.get("/ui/limits/delete", **place))
    assert "removed: mon-sun: rph=100/hour" in question
    assert "rph 100/hour its own 20/hour from the resource" in question


def test_schedules_of_everyone_are_shown(boss: Site) -> None:
    resource = f"quotas/{next(_numbers)}"
    stored(boss, {"resource": resource}, ["rph"], ["20/hour"], hours="mon-fri 08:00-18:00: rph=100/hour", tz="")
    assert f"{resource} rph 20/hour Instead, at these hours in UTC: mon-fri 08:00-18:00 rph 100/hour" in text_of(
        boss.get("/ui/limits")
    )
    assert "schedule is mon-fri 08:00-18:00: rph=100/hour (UTC)" in text_of(boss.get("/ui/audit"))


def test_changes_of_lines_and_of_schedules_in_the_audit_trail() -> None:
    found = line_changes(["a", "b", "c"], ["b", "a", "c"])
    assert [one.text for one in found if one.kind != "added"] == ["a", "b", "c"]
    assert [one.text for one in found if one.kind != "removed"] == ["b", "a", "c"]
    assert spelled_level(None) == []
    with SyncRateLimiter("memory://") as limiter:
        limiter.set_limits("acme", Schedule([("sat", 0.5)], otherwise=[Limit.per_hour("rph", 5)], tz="Asia/Tokyo"))
        (event,) = limiter.get_audit_events()
    assert field_changes(event.before, event.after) == [
        ("rph", "", "5/hour"), ("schedule", "", "sat: 0.5 (Asia/Tokyo)"),
    ]  # fmt: skip
    with pytest.raises(ValidationError):
        read_entries("sat")


# Alerts


def test_alerts_are_on_the_overview_the_newest_first(entity: str, boss: Site, served: ServeProcess) -> None:
    resource = f"quotas{next(_numbers)}"
    limits = ["usd=100/month resets Europe/Berlin alert 80% 100%"]
    with served.client(TOKENS["admin"]) as api:
        for amount in (80, 20):
            ask = {"entity_id": entity, "resource": resource, "consume": {"usd": amount}, "limits": limits}
            assert api.post("/v1/acquire", json=ask).json()["allowed"]
            told(boss, f"{80 if amount == 80 else 100} % usd of {entity} on {resource}")
    for path in ("/ui", "/ui/alerts"):
        page = text_of(boss.get(path))
        first, second = (
            f"100 % usd of {entity} on {resource} 100 / 100 used Resets",
            f"80 % usd of {entity} on {resource}",
        )
        assert page.index(first) < page.index(second), path
        assert "UTC (in " in page.partition(first)[2]


def told(boss: Site, words: str) -> None:
    """An alert is written beside the decision, so it may take a moment."""
    for _ in range(600):
        if words in text_of(boss.get("/ui")):
            return
    raise AssertionError(f"no alert {words!r}")


def test_an_overview_without_alerts_and_without_a_store() -> None:
    async def work(client: httpx.AsyncClient) -> tuple[httpx.Response, httpx.Response]:
        return await client.get("/ui/alerts"), await client.get("/ui/live")

    alerts, live = inside(create_app("memory://"), work)
    assert "There are no more alerts" in alerts.text
    assert "No limit was used up to a threshold" in live.text
    away: Any = inside(create_app("redis://127.0.0.1:1/0"), work)
    assert [one.status_code for one in away] == [503, 200]
    assert 'data-live="tiles"' in away[1].text
    assert 'data-live="alerts"' not in away[1].text
