"""How answers look: durations, charts, and names that come from anywhere."""

from __future__ import annotations

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from cli_helpers import Cli
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.drawing import HEIGHT, lines, short
from headgate.cli.output import Chart, duration, printable


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "never"),
        (0, ""),
        (0.0101, "0.011 s"),
        (11.5, "11.5 s"),
        (60, "1 min"),
        (125.2, "2 min 6 s"),
        (7300, "2 h 1 min"),
        (400 * 86_400 + 3600, "400 d 1 h"),
    ],
)
def test_durations_are_written_in_the_largest_fitting_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_names_cannot_steer_the_terminal(inside: Cli) -> None:
    inside("entity", "create", "acme", "--name", "\x1b[31mred [bold]name")
    for arguments in (["entity", "get", "acme"], ["entity", "list"], ["audit"]):
        assert "\\x1b[31mred [bold]name" in inside(*arguments).stdout
    assert printable("naïve\n") == "naïve\\n"


thousandths = st.one_of(st.integers(-5, 10**4), st.integers(0, 10**16)).map(lambda milli: milli / 1000)
values = st.lists(thousandths, min_size=1, max_size=300)


@given(values, st.integers(20, 200))
def test_a_chart_fits_and_shows_whatever_is_more_than_nothing(values: list[float], width: int) -> None:
    labels = [f"{number:05}" for number in range(len(values))]
    title, *rows, axis, below = [line for line, _ in lines(Chart("title", values, labels), width)]
    assert title.startswith("title")
    assert len(rows) == HEIGHT
    assert all(len(line) <= width for line in (*rows, axis, below))
    bars = [row.partition("┤")[2] or row.partition("│")[2] for row in rows]
    highest = max(values)
    assert ("█" in bars[0]) == any(value > 0 for value in values), "the highest reaches the top"
    if len(values) * 2 <= width - 10:  # none are added up
        column = len(axis.partition("└")[2]) // len(values)
        drawn = [bars[-1].ljust(column * len(values))[index * column] != " " for index in range(len(values))]
        assert drawn == [value > 0 and value / highest > 0 for value in values]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (999, "999"), (999.9, "1k"), (12345, "12.3k"), (999_999, "1M"), (10**9, "1G")],
)
def test_short_numbers_have_at_most_three_digits_and_a_unit(value: float, text: str) -> None:
    assert short(value) == text
