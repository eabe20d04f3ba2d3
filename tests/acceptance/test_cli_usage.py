"""`headgate usage`."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

pytest.importorskip("click")

from cli_helpers import Cli

from headgate import Limit
from headgate.testing import ManualClock

NEW_YEAR = datetime(2026, 1, 1, tzinfo=timezone.utc)
LIMITS = [Limit.per_second("rpm", 10**6), Limit.per_second("tpm", 10**9)]
JANUARY = ("--start", "2026-01-01", "--end", "2026-01-03")


@pytest.fixture
def used(inside: Cli) -> Cli:
    """Two days in which acme and globex use llm every third hour, the more the later, and acme search once."""
    clock = ManualClock(start_ms=int(NEW_YEAR.timestamp() * 1000))
    with inside.limiter(clock=clock, usage_days=3650) as limiter:
        for hour in range(48):
            if hour % 3 == 0:
                limiter.adjust("acme", "llm", {"rpm": hour + 1, "tpm": 1000 * (hour + 1)}, LIMITS)
                limiter.adjust("globex", "llm", {"rpm": 1}, LIMITS)
            clock.advance(3600)
        clock.set(int(NEW_YEAR.timestamp() * 1000) + 47 * 3_600_000)
        limiter.adjust("acme", "search", {"rpm": 0.5}, LIMITS)
    return inside


def test_windows_as_a_table_and_as_json(used: Cli) -> None:
    found = used.json("usage", "acme", "--resource", "llm", *JANUARY)
    assert sum(one["consumed"]["rpm"] for one in found) == sum(range(1, 49, 3)) == 376
    assert [one["start"] for one in found[:2]] == ["2026-01-01T00:00:00+00:00", "2026-01-01T03:00:00+00:00"]
    days = used.json("usage", "acme", "--resource", "llm", "--window", "day", *JANUARY)
    assert [one["consumed"] for one in days] == [{"rpm": 92, "tpm": 92_000}, {"rpm": 284, "tpm": 284_000}]
    shown = used("usage", "--window", "month", *JANUARY).stdout.splitlines()
    assert shown[0].split() == ["month", "(UTC)", "entity", "resource", "rpm", "tpm"]
    assert [line.split() for line in shown[2:]] == [
        ["2026-01", "acme", "llm", "376", "376,000"],
        ["2026-01", "acme", "search", "0.5"],
        ["2026-01", "globex", "llm", "16"],
    ]
    hours = used("usage", "acme", "--start", "2026-01-02T22:00+01:00", "--end", "2026-01-02T22:00Z").stdout
    assert "2026-01-02 21:00" in hours
    assert "2026-01-02 18:00" not in hours


def test_summary_shows_total_average_and_peak(used: Cli) -> None:
    found = used.json("usage", "acme", "--resource", "llm", "--summary", *JANUARY)
    assert found["rpm"] == {
        "total": 376,
        "average": 376 / 48,
        "peak": 46,
        "peak_start": "2026-01-02T21:00:00+00:00",
    }
    shown = used("usage", "acme", "--summary", "--window", "day", *JANUARY).stdout
    assert "average per day" in shown
    assert ["tpm", "376,000", "188,000.0", "284,000", "2026-01-02"] in [line.split() for line in shown.splitlines()]


def test_a_chart_for_each_limit_and_resource(used: Cli) -> None:
    shown = used("usage", "acme", "--plot", "--window", "day", *JANUARY).stdout
    titles = [line for line in shown.splitlines() if line.startswith("acme")]
    assert titles == [
        "acme on llm: rpm per day, 376 in all",
        "acme on llm: tpm per day, 376,000 in all",
        "acme on search: rpm per day, 0.5 in all",
    ]
    assert "01-01   01-02" in shown
    assert "284k ┤" in shown
    everyone = used("usage", "--plot", "--resource", "llm", *JANUARY).stdout
    assert everyone.startswith("everyone on llm: rpm per hour, 392 in all\n")
    assert all(len(line) <= 80 for line in everyone.splitlines())


def test_without_dates_it_is_about_now(inside: Cli) -> None:
    assert inside("usage", "acme").stdout == "nothing was consumed in this period\n"
    assert inside("usage", "--summary").stdout == "nothing was consumed in this period\n"
    assert inside.json("usage") == []
    inside("check", "acme", "llm", "--consume", "rpm=3", "--limit", "rpm=5/hour")
    assert inside.json("usage")[0]["consumed"] == {"rpm": 3}
    for window in ("hour", "day", "month"):
        assert "3 in all" in inside("usage", "acme", "--plot", "--window", window).stdout
