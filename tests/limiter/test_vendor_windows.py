"""A vendor that counts fixed windows, and which of our limits it never refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate import Limit, SyncRateLimiter
from headgate.testing import ManualClock

ROOT = Path(__file__).parents[2]
START_MS = 1_700_000_000_000
MINUTE_MS = 60_000
QUOTA = 100

WHOLE = Limit.per_minute("rpm", QUOTA)
SPLIT = Limit.per_minute("rpm", QUOTA * 3 // 4, burst=QUOTA // 4)


class Outcome(NamedTuple):
    sent: int
    refused: int


def play(limit: Limit, quota: int, phase_ms: int, wishes_ms: Iterable[int]) -> Outcome:
    """Send each wish that our limit lets through. The vendor takes `quota` in each minute, from `phase_ms` on."""
    clock = ManualClock(START_MS)
    windows: Counter[int] = Counter()
    with SyncRateLimiter("memory://", clock=clock) as limiter:
        for at_ms in wishes_ms:
            clock.set(START_MS + at_ms)
            if limiter.try_acquire("vendor", "model", {"rpm": 1}, [limit]):
                windows[(at_ms + phase_ms) // MINUTE_MS] += 1
    return Outcome(windows.total(), sum(max(0, sent - quota) for sent in windows.values()))


def always_busy(minutes: int) -> Iterable[int]:
    return range(0, minutes * MINUTE_MS, 50)


def busy_after_pauses(minutes: int) -> Iterable[int]:
    """Half of every third minute, at full speed."""
    return (at_ms for at_ms in always_busy(minutes) if at_ms % (3 * MINUTE_MS) < MINUTE_MS // 2)


@pytest.mark.parametrize(
    ("wishes", "whole", "split"),
    [
        (always_busy, Outcome(sent=1099, refused=99), Outcome(sent=774, refused=0)),
        (busy_after_pauses, Outcome(sent=596, refused=196), Outcome(sent=248, refused=0)),
    ],
)
def test_vendor_refuses_what_the_guides_say(
    wishes: Callable[[int], Iterable[int]], whole: Outcome, split: Outcome
) -> None:
    assert play(WHOLE, QUOTA, 0, wishes(10)) == whole
    assert play(SPLIT, QUOTA, 0, wishes(10)) == split
    for outcome in (whole, split):
        assert f"| {outcome.sent:,} | {outcome.refused} |" in (ROOT / "docs" / "calling.md").read_text()
    assert "99 of 1,099" in (ROOT / "README.md").read_text()


@given(
    quota=st.integers(2, 40),
    burst=st.integers(1, 39),
    phase_ms=st.integers(0, MINUTE_MS - 1),
    gaps_ms=st.lists(st.integers(0, 5_000) | st.integers(0, 3 * MINUTE_MS), max_size=150),
)
@example(quota=40, burst=10, phase_ms=0, gaps_ms=[100] * 150)
@example(quota=4, burst=1, phase_ms=MINUTE_MS - 1, gaps_ms=[1] * 150)
def test_vendor_never_refuses_where_burst_and_refill_add_up_to_its_quota(
    quota: int, burst: int, phase_ms: int, gaps_ms: list[int]
) -> None:
    burst = min(burst, quota - 1)
    limit = Limit.per_minute("rpm", quota - burst, burst=burst)
    assert play(limit, quota, phase_ms, accumulate(gaps_ms)).refused == 0
