"""What the overview counts: exact by the second, bounded in memory, and never less than was seen."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit, SyncRateLimiter
from headgate.service.ui.live import OUTCOMES, SECONDS, LiveStats, Top

names = st.integers(0, 40).map(str)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(names, max_size=600), st.integers(1, 12))
def test_a_sketch_is_never_far_off(seen: list[str], kept: int) -> None:
    top, true = Top(kept=kept), Counter(seen)
    for name in seen:
        top.add(name)
    assert len(top.counts) <= 2 * kept
    assert top.floor * (kept + 1) <= len(seen)
    for name, times in true.items():
        if name in top.counts:
            assert times <= top.counts[name] <= times + top.floor
        else:
            assert times <= top.floor


@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from(OUTCOMES)), max_size=60))
def test_each_second_has_what_was_decided_in_it(steps: list[tuple[float, str]]) -> None:
    clock = Clock()
    live = LiveStats(clock)
    decided: Counter[tuple[int, str]] = Counter()
    for seconds, outcome in steps:
        clock.now += seconds
        live.decided("a", "r", outcome, 0.0)
        decided[int(clock.now), outcome] += 1
    found = live.snapshot()
    last = int(clock.now)
    for outcome in OUTCOMES:
        expected = [decided[second, outcome] for second in range(last - SECONDS, last + 1)]
        assert found.outcomes[outcome] == expected


def test_what_is_older_is_forgotten() -> None:
    clock = Clock()
    live = LiveStats(clock)
    live.decided("old", "r", "refused", 0.0)
    clock.now += SECONDS + 120
    assert live.snapshot().total("refused") == 0
    live.decided("new", "r", "allowed", 0.0)
    found = live.snapshot()
    assert [one.entity_id for one in found.busiest] == ["new"]
    assert found.most_refused == []


def test_a_million_entities_take_no_more_room_than_a_few() -> None:
    clock = Clock()
    live = LiveStats(clock)
    for number in range(20_000):
        clock.now += 0.05
        live.decided(f"e{number}", "r", "refused", 0.0)
        live.decided("often", "r", "allowed", 0.0)
    held = sum(len(top.counts) for minute in live._minutes for top in (minute.all, minute.refused))
    assert held <= 6 * 2 * 128
    found = live.snapshot()
    assert found.busiest[0].entity_id == "often"
    assert found.busiest[0].about


class Interrupted(str):
    """An id in the middle of whose counting others have their turn."""

    def __hash__(self) -> int:
        time.sleep(0)
        return super().__hash__()


def test_nothing_is_lost_between_threads() -> None:
    clock = Clock()
    live = LiveStats(clock)

    def work() -> None:
        for _ in range(300):
            live.decided(Interrupted("a"), "r", "allowed", 0.0)
            live.settled(1, 0.001, True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.now += 1
    found = live.snapshot()
    assert found.total("allowed") == found.store_calls == found.busiest[0].times == 1200
    assert found.store_mean_ms == pytest.approx(1.0)


def test_live_counts_are_those_of_the_limiter() -> None:
    clock = Clock()
    live = LiveStats(clock)
    with SyncRateLimiter("memory://") as limiter:
        limiter.watch(live)
        for _ in range(3):
            limiter.try_acquire("ann", "api", {"rpm": 1}, [Limit.per_minute("rpm", 2)])
    clock.now += 1
    found = live.snapshot()
    assert (found.total("allowed"), found.total("refused")) == (2, 1)
    assert [(one.entity_id, one.times) for one in found.most_refused] == [("ann", 1)]


def test_rates_are_of_the_time_that_is_known() -> None:
    clock = Clock()
    live = LiveStats(clock)
    for _ in range(10):
        live.decided("a", "r", "allowed", 0.0)
    clock.now += 1
    assert live.snapshot().rate("allowed") == 10
    clock.now += 4
    assert live.snapshot().rate("allowed") == 2
