"""Prefetch of quotas: what is taken ahead is used, or given back, in the window in which it was counted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit
from headgate.core.decide import Mode, Part, Request
from headgate.core.units import MILLI
from headgate.limiter.acquire.chain import Chain, Shape
from headgate.limiter.acquire.prefetch import Slices, ahead_plan
from headgate.plan import Settle, SettleEach, run
from headgate.stores.memory.store import MemoryStore

SPAN = 50
HOUR_MS = 3_600_000
HOURLY = Limit.quota("n", 200, "hour")
FIRST_USE = Limit.quota("n", 200, 3600, from_first_use=True)


class Process:
    generation = 0

    def __init__(self, limit: Limit, store: MemoryStore, now_ms: int) -> None:
        self.now = now_ms
        self.store = store
        self.slices = Slices(SPAN, lambda: self.now, self, wall_ms=lambda: self.now)
        self.chain = Chain(("ns/b/user#api",), Shape([{limit.name: limit}], [0]))
        self.parts: tuple[Part, ...] = self.chain.shape.spread({limit.name: MILLI})
        self.requests: list[Request] = []

    def perform(self, call: Any) -> Any:
        batch = call.batch if isinstance(call, SettleEach) else [call.request]
        self.requests += batch
        answers = self.store.settle(batch, self.now)
        return answers[0] if isinstance(call, Settle) else answers

    def acquire(self) -> bool:
        given_here = self.slices.give(self.chain.keys, self.parts)
        return given_here is not None or run(ahead_plan(self.slices, self.chain, self.parts), self.perform).allowed

    @property
    def taken_ahead(self) -> bool:
        return any(one.mode is Mode.TAKE and one.parts[0].amount_milli > MILLI for one in self.requests)


@given(
    st.integers(0, 3_000),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 1), st.integers(0, 60)), min_size=20, max_size=80),
)
def test_no_window_has_more_than_its_amount(before_ms: int, steps: list[tuple[int, int, int]]) -> None:
    start, store = 500_000 * HOUR_MS - before_ms, MemoryStore()
    processes = [Process(HOURLY, store, start) for _ in range(2)]
    passed: dict[int, int] = {}
    for pause, number, count in steps:
        for process in processes:
            process.now += pause
        for _ in range(count):
            window = processes[number].now // HOUR_MS
            passed[window] = passed.get(window, 0) + processes[number].acquire()
    assert all(count <= 200 for count in passed.values())


def hammered(limit: Limit, now_ms: int) -> Process:
    process = Process(limit, MemoryStore(), now_ms)
    for _ in range(40):
        process.now += 1
        assert process.acquire()
    return process


def test_a_quota_is_taken_ahead_far_from_its_edge_only() -> None:
    edge_ms = 500_000 * HOUR_MS
    assert hammered(HOURLY, edge_ms - HOUR_MS // 2).taken_ahead
    assert not hammered(HOURLY, edge_ms - 2 * SPAN - 500).taken_ahead


def test_a_quota_from_first_use_is_not_taken_ahead() -> None:
    assert not hammered(FIRST_USE, 500_000 * HOUR_MS).taken_ahead


@pytest.mark.parametrize("late_ms", [SPAN, 10 * HOUR_MS])
def test_what_comes_back_late_is_lost(late_ms: int) -> None:
    process = hammered(HOURLY, 500_000 * HOUR_MS - HOUR_MS // 2)
    assert process.slices.next_end() is not None
    process.now += SPAN + late_ms
    assert list(process.slices.due().requests) == []
