"""Charts: what is drawn is what was given, it is well-formed, and nothing that is written in it is markup."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta, timezone
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.charts import Moments, Series, TimeChart, largest, moments_of
from headgate.charts.time_chart import short, ticks

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = """<script>alert(1)</script>&'"]]>"""
values = st.lists(st.floats(-1e6, 1e12), min_size=3, max_size=3)


def chart(*series: Series, kind: str = "bars", **more: object) -> TimeChart:
    names = Moments(["a", "b", "c"], {0: "a", 2: "c"})
    return TimeChart("title", "words", names, series, kind, **more)  # type: ignore[arg-type]


def drawn(picture: TimeChart, *, standalone: bool = False) -> ElementTree.Element:
    return ElementTree.fromstring(picture.svg(standalone=standalone))


@given(st.lists(values, max_size=5), st.sampled_from(["bars", "lines"]), st.booleans())
def test_any_numbers_make_a_picture(rows: list[list[float]], kind: str, standalone: bool) -> None:
    root = drawn(chart(*(Series(f"s{n}", row) for n, row in enumerate(rows)), kind=kind), standalone=standalone)
    assert "nan" not in ElementTree.tostring(root, "unicode")
    assert len(root.findall(f".//{SVG}path")) == len(rows)


@given(st.lists(st.integers(0, 1000), min_size=3, max_size=3), st.lists(st.integers(0, 1000), min_size=3, max_size=3))
def test_bars_stand_on_each_other(lower: list[int], upper: list[int]) -> None:
    most = ticks(max(a + b for a, b in zip(lower, upper)))[-1]
    first, second = drawn(chart(Series("lower", lower), Series("upper", upper))).findall(f".//{SVG}path")
    bars = [re.findall(r"M([\d.]+) (\d+)V(\d+)", path.get("d") or "") for path in (first, second)]
    for bar in bars[0]:
        index, low, high = int(float(bar[0])), int(bar[1]), int(bar[2])
        assert low == 1000
        assert high == 1000 - round(1000 * lower[index] / most)
    for bar in bars[1]:
        index, low, high = int(float(bar[0])), int(bar[1]), int(bar[2])
        assert low == 1000 - round(1000 * lower[index] / most)
        assert high == 1000 - round(1000 * (lower[index] + upper[index]) / most)


@given(st.floats(1e-9, 1e18), st.integers(1, 8))
def test_an_axis_reaches_as_far_as_it_must(most: float, count: int) -> None:
    found = ticks(most, count)
    assert found[0] == 0
    assert most <= found[-1] * (1 + 1e-9)
    assert len(found) <= count + 2
    assert found[-2] < most


@pytest.mark.parametrize("most", [0, -1, float("inf"), float("nan")])
def test_axis_of_no_values_goes_from_0_to_1(most: float) -> None:
    assert ticks(most) == [0, 1]


def test_axis_numbers_are_short_with_a_unit() -> None:
    assert [short(one) for one in (0, 0.25, 950, 1200, 34e6, 2.5e9, 7e12)] == [
        "0", "0.25", "950", "1.2k", "34M", "2.5G", "7T",
    ]  # fmt: skip


@pytest.mark.parametrize("standalone", [True, False])
def test_what_is_written_is_no_markup(standalone: bool) -> None:
    picture = TimeChart(HOSTILE, HOSTILE, Moments([HOSTILE], {0: HOSTILE}), [Series(HOSTILE, [1])])
    root = drawn(picture, standalone=standalone)
    assert root.findall(f".//{SVG}script") == []
    assert root.findtext(f"{SVG}title") == root.findtext(f"{SVG}desc") == HOSTILE
    assert f"{HOSTILE}: {HOSTILE} 1" in [one.text for one in root.iter(f"{SVG}title")]


def test_a_chart_on_a_page_has_no_style_of_its_own() -> None:
    """The policy of the pages forbids it; a file that is on its own needs it."""
    picture = chart(Series("one", [1, 2, 3]))
    assert "style" not in picture.svg()
    assert "prefers-color-scheme: dark" in picture.svg(standalone=True)


def test_it_says_what_it_is_to_those_who_cannot_see_it() -> None:
    root = drawn(chart(Series("one", [1, 2, 3])))
    assert root.get("role") == "img"
    assert (root.findtext(f"{SVG}title"), root.findtext(f"{SVG}desc")) == ("title", "words")


@given(st.lists(values, max_size=9), st.integers(1, 6))
def test_largest_series_keep_the_sum_in_one_for_all_others(rows: list[list[float]], count: int) -> None:
    series = [Series(f"s{n}", row) for n, row in enumerate(rows)]
    found = largest(series, count)
    assert len(found) == min(count, len(series))
    for column in range(3):
        whole = math.fsum(row[column] for row in rows)
        assert math.fsum(one.values[column] for one in found) == pytest.approx(whole, rel=1e-9, abs=1e-3)


@pytest.mark.parametrize("window", ["second", "minute", "hour", "day", "month"])
def test_the_newest_moment_is_marked(window: str) -> None:
    starts = [datetime(2025, 1, 1, tzinfo=timezone.utc) + timedelta(days=31 * n) for n in range(17)]
    found = moments_of(starts, window)
    assert len(found.names) == 17
    assert 16 in found.marks
    assert len(found.marks) <= 6
