"""Quotas, limits by hours and alerts on the command line."""

from __future__ import annotations

import re
import time
from datetime import datetime, timezone
from typing import Any

import pytest

pytest.importorskip("click")

from cli_helpers import Cli

from headgate import Limit, Schedule
from headgate.cli.output import resets
from headgate.core.decide import Part
from headgate.core.names import StoredId, bucket_key
from headgate.limiter.bind import blocking
from headgate.limiter.observe.thresholds import Crossing, tell_plan

SPECS = [
    "usd=10/year resets Europe/Berlin alert 80% 100%",
    "n=5/year resets 04-06 06:30 America/New_York",  # no edge is near while the test runs
    "h=45/5h from first use",
    "c=9/cron 0 6 1 1 * resets UTC",
    "b=10/minute burst 15",
]
HOURS = [
    "--hours",
    "mon-fri 08:00-18:00: rph=100/hour; rpm=7/minute",
    "--hours",
    "sat,sun: 0.5",
    "--tz",
    "Europe/Berlin",
]
OFFICE = Schedule(
    [("mon-fri 08:00-18:00", [Limit.per_hour("rph", 100), Limit.per_minute("rpm", 7)]), ("sat,sun", 0.5)],
    otherwise=[Limit.per_hour("rph", 20), Limit.per_minute("rpm", 5)],
    tz="Europe/Berlin",
)


@pytest.mark.parametrize(("group", "place"), [("limits", ["acme"]), ("resource", ["llm"]), ("system", [])])
def test_quotas_are_written_as_everywhere(inside: Cli, group: str, place: list[str]) -> None:
    inside(group, "set", *place, *SPECS)
    stored = inside.json(group, "get", *place)
    assert [f"{limit['name']}={limit['limit']}" for limit in stored["limits"]] == SPECS
    assert "10/year resets Europe/Berlin alert 80% 100%" in inside(group, "get", *place).stdout
    assert "5/year resets 04-06 06:30 America/New_York" in inside("limits", "resolve", "acme", "llm").stdout


@pytest.mark.parametrize(("group", "place"), [("limits", ["acme"]), ("resource", ["llm"]), ("system", [])])
def test_limits_by_hours(inside: Cli, group: str, place: list[str]) -> None:
    said = inside(group, "set", *place, "rph=20/hour", "rpm=5/minute", *HOURS).stdout
    entries = "mon-fri 08:00-18:00: rph=100/hour, rpm=7/minute; sat,sun: 0.5"
    assert f"rph=20/hour, rpm=5/minute; {entries} (Europe/Berlin)" in said
    found = inside.json(group, "get", *place)
    assert Schedule.from_dict(found["schedule"], [Limit.from_dict(limit) for limit in found["limits"]]) == OFFICE
    shown = inside(group, "get", *place).stdout
    assert "in these hours (Europe/Berlin), instead:\n  mon-fri 08:00-18:00: rph=100/hour, rpm=7/minute\n" in shown
    assert "  sat,sun: 0.5\n" in shown
    assert "schedule: mon-fri 08:00-18:00: rph=100/hour" in inside("audit").stdout
    in_force = inside.json("limits", "resolve", "acme", "llm")["limits"]
    assert [Limit.from_dict(limit) for limit in in_force] in [list(one) for one in OFFICE.variants]
    inside(group, "set", *place, "rph=20/hour", "rpm=5/minute")
    assert "schedule" not in inside.json(group, "get", *place), "a set replaces all of it"


def test_lists_show_hours(inside: Cli) -> None:
    inside("limits", "set", "acme", "rph=20/hour", "rpm=5/minute", *HOURS)
    assert "sat,sun: 0.5 (Europe/Berlin)" in inside("limits", "list").stdout
    assert inside.json("limits", "list")[0]["schedule"]["tz"] == "Europe/Berlin"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["n=1/day resets Mars"], "unknown time zone 'Mars': write it like 'Europe/Berlin'"),
        (["n=1/day resets 06:30:15 UTC"], "at must be hours and minutes, like '06:30', not '06:30:15'"),
        (["n=1/hour resets Europe/Berlin"], "an hour begins at the same moment everywhere"),
        (["n=0/day resets UTC"], "amount of limit 'n' must be more than zero, not 0"),
        (["n=1/year resets 02-30 UTC"], "on must be a month and a day, like '04-06', not '02-30'"),
        (["n=1/month resets 32 UTC"], "on must be a day of the month from 1 to 31, not 32"),
        (["n=1/week resets fryday UTC"], "'fryday UTC' cannot be read"),
        (["n=1/cron 61 * * * * resets UTC"], "cron expression '61 * * * *' cannot be read"),
        (["n=1/day alert 120%"], "alert_at of limit 'n' must be at most 1, not 1.2"),
        (["n=1/day", "--hours", "fry: 0.5"], "hours 'fry' cannot be read"),
        (["n=1/day", "--hours", "sat: x=1/day"], "'sat' has a limit 'x' that otherwise= lacks"),
        (["n=1/day", "--hours", "sat: 0"], "the factor of 'sat' must be above 0"),
        (["n=1/day", "--hours", "sat: nan"], "the factor of 'sat' must be above 0"),
        (["n=1/day", "--hours", "sat=0.5"], "hours 'sat=0.5' cannot be read: write them like"),
        (["n=1/day", "--hours", "sat: 1/day"], "'1/day' cannot be read: write NAME=SPEC"),
        (["n=1/day", "--hours", "sat: 2", "--tz", "Mars"], "unknown time zone 'Mars'"),
        (["n=1/day", "--tz", "UTC"], "--tz UTC is for --hours"),
    ],
)
def test_bad_input_is_named_and_a_right_one_shown(inside: Cli, arguments: list[str], message: str) -> None:
    assert message in inside.error("limits", "set", "acme", *arguments)


def test_buckets_show_how_much_of_a_quota_is_used_and_when_it_resets(inside: Cli) -> None:
    inside("limits", "set", "acme", *SPECS)
    assert inside.json("check", "acme", "x", *(f"--consume={name}=1" for name in ("n", "h", "c", "b")))["allowed"]
    shown = inside("check", "acme", "x", "--consume", "usd=8.5").stdout
    assert "00:00 Europe/Berlin" in shown
    assert " alert" not in shown
    by_name = {bucket["limit_name"]: bucket for bucket in inside.json("buckets", "acme")}
    assert by_name["usd"]["limit"] == "10/year resets Europe/Berlin", "a store knows no calendars"
    assert (by_name["usd"]["used"], by_name["usd"]["available"]) == (8.5, 1)
    for name in ("usd", "n", "c"):
        limit, now_ms = Limit.parse(name, by_name[name]["limit"]), time.time_ns() // 1_000_000
        assert limit.calendar is not None
        ends_ms = by_name[name]["resets_at_ms"]
        assert limit.calendar.window(ends_ms - 1).ends_ms == ends_ms
        assert by_name[name]["full_in_seconds"] == pytest.approx((ends_ms - now_ms) / 1000, abs=60)
    assert by_name["h"]["full_in_seconds"] == pytest.approx(5 * 3600, abs=60)
    assert "used" not in by_name["b"]
    lines = {line.split()[1]: line for line in inside("buckets", "acme").stdout.splitlines() if line.startswith("x ")}
    assert "8.5 / 10" in lines["usd"]
    assert "1 / 5 " in lines["n"]
    assert "06:30 America/New_York" in lines["n"].partition("1 / 5 ")[2]
    assert re.search("in (5 h|4 h 59 min)", lines["h"])
    assert "/" not in lines["b"].partition("burst")[2]


def test_a_dry_run_says_when_a_quota_resets(inside: Cli) -> None:
    inside("limits", "set", "acme", *SPECS)
    inside("check", "acme", "x", "--consume", "h=1")
    found = {limit["limit_name"]: limit for limit in inside.json("check", "acme", "x", "--dry-run")["limits"]}
    year = Limit.parse("usd", "10/year resets Europe/Berlin").calendar
    assert year is not None
    assert year.window(found["usd"]["resets_at_ms"] - 1).ends_ms == found["usd"]["resets_at_ms"]
    assert found["h"]["resets_at_ms"] == pytest.approx((time.time() + 5 * 3600) * 1000, abs=60_000)
    assert re.search("in (5 h|4 h 59 min)", inside("check", "acme", "x", "--dry-run").stdout)


@pytest.mark.parametrize(
    ("spec", "at", "words"),
    [
        ("5/day resets 18:00 Europe/Berlin", "2026-11-01T17:00", "today 18:00 Europe/Berlin"),
        ("5/day resets 06:30 Europe/Berlin", "2026-11-02T05:30", "tomorrow 06:30 Europe/Berlin"),
        ("5/day resets Asia/Tokyo", "2026-11-01T15:00", "tomorrow 00:00 Asia/Tokyo"),
        ("5/month resets 15 Europe/Paris", "2026-11-14T23:00", "2026-11-15 00:00 Europe/Paris"),
        ("5/5h from first use", "2026-11-01T13:01", "in 1 h 1 min"),
        ("5/minute", "2026-11-01T13:01", ""),
    ],
)
def test_resets_in_the_words_of_the_zone(spec: str, at: str, words: str) -> None:
    noon = datetime(2026, 11, 1, 12, tzinfo=timezone.utc)
    at_ms = round(datetime.fromisoformat(f"{at}+00:00").timestamp() * 1000)
    assert resets(Limit.parse("n", spec), at_ms, round(noon.timestamp() * 1000)) == words


def test_alerts_are_listed(inside: Cli) -> None:
    assert inside("alerts").stdout == "no alerts\n"
    inside("system", "set", SPECS[0])
    limit = Limit.parse("usd", "10/year resets Europe/Berlin alert 80% 100%")
    with inside.limiter() as limiter:
        for at, share in enumerate(limit.alerts_milli):
            key = bucket_key("default", StoredId("acme"), "llm")
            crossing = Crossing(key, Part(0, limit, 1000, 1), share, 8_500 + 1_500 * at)
            blocking(_tell_plan)(limiter, [crossing])
    alerts: list[dict[str, Any]] = inside.json("alerts")["alerts"]
    assert [(one["limit_name"], one["threshold"], one["used"], one["amount"]) for one in alerts] == [
        ("usd", 1.0, 10, 10),
        ("usd", 0.8, 8.5, 10),
    ]
    shown = inside("alerts").stdout
    assert "8.5 / 10" in shown
    assert " 80%" in shown
    page = inside.json("alerts", "--limit", "1")
    assert inside.json("alerts", "--cursor", page["cursor"])["alerts"] == alerts[1:]


def _tell_plan(engine: Any, crossed: list[Crossing]) -> Any:
    yield from tell_plan(engine, crossed)
