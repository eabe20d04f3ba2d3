"""Quotas and schedules in files of limits: read, written, applied, exported, and refused with their lines."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import jsonschema
import pytest

from headgate import Limit, Schedule, SyncRateLimiter
from headgate.declare import (
    Declaration,
    DeclaredEntity,
    DeclaredLimits,
    apply,
    diff,
    export,
    limits_schema,
    read_limits_file,
    write_limits,
)
from headgate.http import DocumentError

QUOTAS = [
    "1000/day resets Europe/Berlin",
    "1000/day resets 06:30 America/New_York alert 80% 100%",
    "5000/week resets sunday 09:00 UTC",
    "50.5/month resets 15 Europe/Paris",
    "9/cron 0 6,18 * * 1-5 resets Europe/Berlin",
    "1/year resets 04-06 Europe/London",
    "100/hour resets 00:30 UTC",
    "45/5h from first use alert 99.5%",
    "10/minute alert 50%",
]
RPH, RPM = Limit.per_hour("rph", 20), Limit.per_minute("rpm", 5)
OFFICE = Schedule(
    [
        ("mon-fri 08:00-18:00", [Limit.per_hour("rph", 100)]),
        ("sat,sun", 0.5),
        ("* 8-17 * * 1-5", [Limit.quota("rph", 7, "day")]),
        ("22:00-06:00", 2),
        ("sat,sun", 0.25),
    ],
    otherwise=[RPH, RPM],
    tz="Europe/Berlin",
)
YAML = """\
system:
  limits:
    otherwise: {rph: 20/hour, rpm: 5/minute}
    tz: Europe/Berlin
    hours:
      - mon-fri 08:00-18:00: {rph: 100/hour}
      - sat,sun: 0.5
"""
TOML = """\
[system.limits]
otherwise = {rph = "20/hour", rpm = "5/minute"}
tz = "Europe/Berlin"
hours = [{"mon-fri 08:00-18:00" = {rph = "100/hour"}}, {"sat,sun" = 0.5}]
"""


def scheduled(schedule: Schedule, *, inherit: bool = True) -> DeclaredLimits:
    usual = {limit.name: limit for limit in schedule.otherwise}
    return DeclaredLimits(usual, inherit=inherit, schedule=schedule)


EVERYWHERE = Declaration(
    namespace="default",
    system=scheduled(OFFICE),
    resources={"llm": scheduled(OFFICE, inherit=False)},
    entities={"acme": DeclaredEntity(limits={None: scheduled(OFFICE), "llm": scheduled(OFFICE)})},
    plans={"pro": {"search": {"otherwise": "10/hour", "hours": [{"sat,sun": 0.5}]}}},
    rules=[{"id": "search", "limits": {"otherwise": "1/hour", "hours": [{"sat,sun": "2/hour"}]}}],
)


def read(folder: Path, text: str, name: str = "limits.yaml") -> Declaration:
    (folder / name).write_text(text)
    return read_limits_file(folder / name)


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(DocumentError) as refused:
        read(folder, text)
    return [problem.removeprefix(f"{folder}/limits.yaml:") for problem in refused.value.problems]


@pytest.mark.parametrize(("name", "text"), [("limits.yaml", YAML), ("limits.toml", TOML)])
def test_a_schedule_in_a_file(name: str, text: str, tmp_path: Path) -> None:
    entries = [("mon-fri 08:00-18:00", [Limit.per_hour("rph", 100)]), ("sat,sun", 0.5)]
    assert read(tmp_path, text, name).system == scheduled(
        Schedule(entries, otherwise=[RPH, RPM], tz="Europe/Berlin")  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("format", ["yaml", "toml"])
def test_what_is_written_reads_back_and_goes_with_the_schema(format: str, tmp_path: Path) -> None:
    quotas = {f"limit{at}": Limit.parse(f"limit{at}", text) for at, text in enumerate(QUOTAS)}
    for declaration in (EVERYWHERE, Declaration(system=quotas)):
        text = write_limits(declaration, format)  # type: ignore[arg-type]
        assert read(tmp_path, text, f"limits.{format}") == declaration
        jsonschema.validate(declaration.as_dict(), json.loads(limits_schema()))


@pytest.mark.parametrize(
    "limits",
    [
        {"rpm": "10/minute resets"},
        {"rpm": "10/day resets monday 09:00 UTC too much"},
        {"rpm": "10/day alert 80"},
        {"otherwise": {"rpm": "10/day"}},
        {"otherwise": {"rpm": "10/day"}, "hours": []},
        {"otherwise": {"rpm": "10/day"}, "hours": {"sat,sun": 0.5}},
        {"otherwise": {"rpm": "10/day"}, "hours": [{"sat": 0.5, "sun": 0.5}]},
        {"otherwise": {"rpm": "10/day"}, "hours": [{"sat": 0}]},
        {"rpm": "10/day", "hours": [{"sat": 0.5}]},
    ],
)
def test_the_schema_refuses_what_is_none(limits: object) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"system": {"limits": limits}}, json.loads(limits_schema()))


def test_a_limit_may_be_called_hours(tmp_path: Path) -> None:
    assert read(tmp_path, "system: {limits: {hours: 10/day, otherwise: 1/day, tz: 2/day}}").system == {
        name: Limit.per_day(name, amount) for name, amount in (("hours", 10), ("otherwise", 1), ("tz", 2))
    }


def test_export_and_apply_change_nothing(tmp_path: Path) -> None:
    with SyncRateLimiter(f"memory://{uuid.uuid4().hex}") as limiter:
        assert apply(limiter, diff(limiter, EVERYWHERE)) == 6
        assert export(limiter) == EVERYWHERE
        assert limiter.get_limits("acme").schedule == OFFICE
        again = read(tmp_path, write_limits(export(limiter)))
        assert diff(limiter, again, prune=True) == []


def test_the_difference_shows_hours() -> None:
    later = Schedule([("sat,sun", 0.5)], otherwise=[RPH, RPM], tz="Europe/Berlin")
    turned = Schedule([*OFFICE.entries[1::-1], *OFFICE.entries[2:]], otherwise=[RPH, RPM], tz="Europe/Berlin")
    with SyncRateLimiter(f"memory://{uuid.uuid4().hex}") as limiter:
        for limits, line in (
            ({"rph": RPH, "rpm": RPM}, "+ limits of everyone on every resource: rph 20/hour, rpm 5/minute"),
            (scheduled(later), "~ limits of everyone on every resource: +hours sat,sun: 0.5 (Europe/Berlin)"),
            (
                scheduled(OFFICE),
                "~ limits of everyone on every resource: hours sat,sun: 0.5 (Europe/Berlin) -> mon-fri",
            ),
            (scheduled(turned), "~ limits of everyone on every resource: hours mon-fri 08:00-18:00: rph=100/hour; sat"),
            ({"rph": RPH, "rpm": RPM}, "~ limits of everyone on every resource: -hours sat,sun: 0.5; mon-fri"),
        ):
            found = diff(limiter, Declaration(system=limits))
            assert [str(one)[: len(line)] for one in found] == [line]
            apply(limiter, found)
        before, after = (limiter.get_audit_events()[0].as_dict()[when] for when in ("before", "after"))
        assert before["schedule"].startswith(
            "sat,sun: 0.5; mon-fri 08:00-18:00: rph=100/hour; * 8-17 * * 1-5: rph=7/day"
        )
        assert "schedule" not in after


SCHEDULE = "system:\n  limits:\n    otherwise: {rph: 20/hour}\n    tz: UTC\n    hours:\n      - "


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("system:\n  limits:\n    rpm: 1/day resets Mars/Phobos", ["3: unknown time zone 'Mars/Phobos': write it lik"]),
        ("system:\n  limits:\n    rpm: 1/day resets 06:30:15 UTC", ["3: at must be hours and minutes, like '06:30',"]),
        ("system:\n  limits:\n    rpm: 1/hour resets Europe/Berlin", ["3: an hour begins at the same moment everywhe"]),
        ("system:\n  limits:\n    rpm: 1/year resets 02-30 UTC", ["3: on must be a month and a day, like '04-06', no"]),
        ("system:\n  limits:\n    rpm: 1/month resets 32 UTC", ["3: on must be a day of the month from 1 to 31, not"]),
        ("system:\n  limits:\n    rpm: 0/day resets UTC", ["3: amount of limit 'rpm' must be more than zero, not"]),
        ("system:\n  limits:\n    rpm: 1/cron 99 * * * * resets UTC", ["3: cron expression '99 * * * *' cannot be re"]),
        ("system:\n  limits:\n    rpm: 1/day alert 120%", ["3: alert_at of limit 'rpm' must be at most 1, not"]),
        (SCHEDULE + "mon-fry 08:00-18:00: 0.5", ["6: hours 'mon-fry 08:00-18:00' cannot be read: write them like"]),
        (SCHEDULE + "mon 08:00-08:00: 0.5", ["6: hours 'mon 08:00-08:00' end when they begin"]),
        (SCHEDULE + "sat: 0", ["6: the factor of 'sat' must be above 0 and at most 1,000, not 0"]),
        (SCHEDULE + "sat: true", ["6: limits must be a list of Limit, not True"]),
        (SCHEDULE + "sat: {rph: never}", ["6: limit 'rph' cannot be read from 'never'"]),
        (SCHEDULE + "sat: {tpm: 1/day}", ["6: 'sat' has a limit 'tpm' that otherwise= lacks"]),
        (SCHEDULE + "{sat: 0.5, sun: 0.5}", ["6: an entry of hours is one key with limits or a factor, like"]),
        (SCHEDULE + "sat: 0.5\n      - sun: x\n      - fry: 1", ["7: sun must be a mapping, not 'x'"]),
        (SCHEDULE + "sat: 0\n      - fry: 1", ["6: the factor of 'sat' must be", "7: hours 'fry' cannot be read"]),
        (SCHEDULE.replace("UTC", "Mars") + "sat: 0.5", ["4: unknown time zone 'Mars'"]),
        (SCHEDULE.replace("UTC", "[Mars]") + "sat: 0.5", ["4: tz must be the name of a time zone, like 'Europe/Berli"]),
        (SCHEDULE.replace("tz", "zone") + "sat: 0.5", ["4: unknown key 'zone' in limits: use one of otherwise, tz, h"]),
        ("system: {limits: {otherwise: {rph: 1/day}}}", ["1: limits lacks 'hours'"]),
        ("system: {limits: {otherwise: {}, hours: [sat: 1]}}", ["1: limits must not be empty"]),
        ("system: {limits: {hours: {sat: 0.5}, otherwise: {a: 1/day}}}", ["1: hours must be a list, not a mapping"]),
        ("rules:\n  - id: a\n    limits:\n      otherwise: 5/day\n      hours:\n        - fry: 1", ["6: hours 'fry'"]),
        ("rules:\n  - id: a\n    limits: 5/day resets Mars", ["3: unknown time zone 'Mars'"]),
        (
            "rules: [{id: a, limits: 5/day}]\nplans:\n  pro:\n    a: {otherwise: 5/day, hours: [{sat: {x: 1/day}}]}",
            ["4: 'sat' has a limit 'x' that otherwise= lacks"],
        ),
    ],
)  # fmt: skip
def test_mistakes_are_reported_with_their_lines(text: str, wrong: list[str], tmp_path: Path) -> None:
    found = problems(tmp_path, text)
    assert [problem[: len(start)] for problem, start in zip(found, wrong)] == wrong
    assert len(found) == len(wrong)
