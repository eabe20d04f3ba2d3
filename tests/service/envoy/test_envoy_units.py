"""A limit, told per one of Envoy's units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit
from headgate.service.envoy.descriptors import UNITS_MS
from headgate.service.envoy.servicer import per_unit


@given(st.integers(1, 10**15), st.integers(1, 366 * 86_400_000))
def test_a_limit_is_told_per_unit_of_envoy(refill_milli: int, period_ms: int) -> None:
    amount, unit = per_unit(Limit.from_stored("x", 10**6, refill_milli, period_ms))
    exact_milli, rest = divmod(refill_milli * UNITS_MS[unit], period_ms)
    assert amount == min(exact_milli // 1000, 2**32 - 1)  # never more than it is
    if rest or exact_milli % 1000:
        others = [ms for ms in UNITS_MS.values() if ms >= period_ms]
        assert not any(refill_milli * ms % (period_ms * 1000) == 0 for ms in others)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("10/minute burst 20", (10, "MINUTE")),
        ("5/10s", (30, "MINUTE")),
        ("100/week", (100, "WEEK")),
        ("1/15 minutes", (4, "HOUR")),
        ("1/90 days", (4, "YEAR")),
        ("1000/day resets 06:30 Europe/Berlin", (1000, "DAY")),
        ("100/hour resets 00:30 UTC", (100, "HOUR")),
        ("5/week resets sunday UTC", (5, "WEEK")),
        ("50/month resets 15 UTC", (50, "MONTH")),
        ("50/month resets 31 UTC", (50, "MONTH")),
        ("1/year resets UTC", (1, "YEAR")),
        ("45/5h from first use", (45, "DAY")),
        ("9/cron 0 6 * * * resets UTC", (9, "DAY")),
    ],
)
def test_limits_are_told_per_unit_if_one_fits(spec: str, told: tuple[int, str]) -> None:
    assert per_unit(Limit.parse("x", spec)) == told
