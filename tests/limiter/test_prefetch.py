"""Prefetch: what a slice gives out was counted before, and it is given out in time or given back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit, RateLimiter, SyncRateLimiter, ValidationError
from headgate.core.decide import Answer, Mode, Part, Request
from headgate.core.units import MILLI
from headgate.limiter.acquire.chain import Chain, Shape
from headgate.limiter.acquire.prefetch import Slices, ahead_plan
from headgate.limiter.acquire.slice import Stream
from headgate.plan import Settle, SettleEach, run
from headgate.stores.memory.store import MemoryStore
from headgate.testing import ManualClock

SPAN = 50
LIMIT = Limit.per_second("rps", 1000)


class Watched:
    """Slices in front of a store, and what passed."""

    def __init__(self, limit: Limit = LIMIT, store: MemoryStore | None = None) -> None:
        self.now = 1_000_000
        self.store = store or MemoryStore()
        self.limit = limit
        self.generation = 0
        self.slices = Slices(SPAN, lambda: float(self.now), self)
        self.chain = Chain(("ns/b/user#api",), Shape([{limit.name: limit}], [0]))
        self.requests: list[Request] = []
        self.passes: list[tuple[int, int]] = []
        self.taken = 0

    def parts(self, amount: int) -> tuple[Part, ...]:
        return self.chain.shape.spread({self.limit.name: amount * MILLI})

    def perform(self, call: Any) -> Any:
        batch = call.batch if isinstance(call, SettleEach) else [call.request]
        answers = self.store.settle(batch, self.now)
        self.requests += batch
        for request, answer in zip(batch, answers):
            if answer.allowed:
                self.taken += request.parts[0].amount_milli
        return answers[0] if isinstance(call, Settle) else answers

    def acquire(self, amount: int = 1) -> tuple[bool, Any]:
        parts = self.parts(amount)
        given_here = self.slices.give(self.chain.keys, parts)
        if given_here is not None:
            assert given_here[0].began <= self.now < given_here[0].began + SPAN
            self.passes.append((self.now, amount))
            return True, given_here[0]
        answer: Answer = run(ahead_plan(self.slices, self.chain, parts), self.perform)
        if answer.allowed:
            self.passes.append((self.now, amount))
        return answer.allowed, None

    @property
    def held(self) -> int:
        return sum(made.left[0] for made in self.slices._live.values())

    @property
    def takes(self) -> int:
        return sum(request.mode is Mode.TAKE for request in self.requests)


steps = st.lists(st.tuples(st.integers(0, 80), st.integers(0, 30)), max_size=120)


@given(steps, st.sampled_from([LIMIT, Limit.per_second("rps", 50), Limit.per_minute("rps", 200)]))
def test_in_any_interval_no_more_passes_than_is_promised(steps: list[tuple[int, int]], limit: Limit) -> None:
    watched = Watched(limit)
    for pause, count in steps:
        watched.now += pause
        for _ in range(count):
            watched.acquire()
        passed = sum(amount for _, amount in watched.passes) * MILLI
        assert passed + watched.held <= watched.taken
    check_the_promise(watched.passes, limit)


def check_the_promise(passes: list[tuple[int, int]], limit: Limit) -> None:
    for start, (since, _) in enumerate(passes):
        passed = 0
        for until, amount in passes[start:]:
            passed += amount
            refilled = limit.refill_milli * (until - since + SPAN) / limit.period_ms
            assert passed * MILLI <= limit.capacity_milli + refilled + 1


@given(
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 2), st.integers(0, 40)), max_size=60),
    st.sampled_from([Limit.per_second("rps", 100), Limit("rps", 40, 400, 1)]),
)
def test_several_processes_keep_the_promise_together(steps: list[tuple[int, int, int]], limit: Limit) -> None:
    store = MemoryStore()
    processes = [Watched(limit, store) for _ in range(3)]
    passes: list[tuple[int, int]] = []
    for pause, number, count in steps:
        for process in processes:
            process.now += pause
        processes[number].passes = passes
        for _ in range(count):
            processes[number].acquire()
    check_the_promise(passes, limit)


def test_what_comes_back_late_is_less_by_what_was_refilled_meanwhile() -> None:
    limit = Limit("rps", 40, 400, 1)
    store = MemoryStore()
    late, other = Watched(limit, store), Watched(limit, store)
    while not late.held:
        late.acquire()
    held = late.held
    late.now = other.now = late.now + 10 * SPAN
    while other.acquire()[0]:
        pass
    assert late.acquire()[0] is False, held


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20)), max_size=80))
def test_no_more_is_taken_ahead_than_a_quarter_of_what_was_left(steps: list[tuple[int, int]]) -> None:
    watched = Watched(Limit.per_minute("rps", 500))
    left = 0
    for pause, amount in steps:
        watched.now += pause
        asked = len(watched.requests)
        watched.acquire(amount)
        for request in watched.requests[asked:]:
            if request.mode is Mode.TAKE:
                assert request.parts[0].amount_milli - amount * MILLI <= left // 4
        if len(watched.requests) > asked:
            left = watched.slices._streams[watched.chain.keys][0].levels[0]


def test_of_a_bucket_that_runs_low_a_quarter_is_taken_ahead() -> None:
    watched = Watched(Limit.per_hour("rpm", 100))
    watched.acquire(60)
    watched.acquire(1)
    assert watched.held == 10 * MILLI
    watched.acquire(30)
    watched.acquire(8)
    watched.acquire(1)
    assert watched.held == 0, "a quarter of what is left is less than one more"


def test_a_slice_of_other_limits_is_not_used() -> None:
    watched = Watched()
    while not watched.held:
        watched.acquire()
    watched.generation += 1
    assert watched.slices.give(watched.chain.keys, watched.parts(1)) is None
    watched.acquire()
    assert all(request.mode is Mode.TAKE for request in watched.requests), (
        "what may not be the bucket's is not given back"
    )


@given(st.lists(st.integers(SPAN + 1, 1000), min_size=1, max_size=30))
def test_a_lone_request_now_and_then_takes_nothing_ahead(pauses: list[int]) -> None:
    watched = Watched()
    for pause in pauses:
        watched.now += pause
        assert watched.acquire() == (True, None)
    assert [request.parts[0].amount_milli for request in watched.requests] == [MILLI] * len(pauses)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40))
def test_a_refusal_is_the_stores_while_this_process_holds_nothing(amounts: list[int]) -> None:
    watched = Watched(Limit("rps", 100, refill_amount=1, refill_period_seconds=3600))
    for amount in amounts:
        before = sum(amount for _, amount in watched.passes)
        passed, _ = watched.acquire(amount)
        assert passed == (before + amount <= 100)
        if not passed:
            assert not watched.slices._live
            assert watched.requests[-1].parts[0].amount_milli == amount * MILLI


def test_a_thousand_in_sequence_each_second_ask_the_store_for_one_in_25_at_most() -> None:
    watched = Watched(Limit("rps", 100_000, refill_amount=100_000, refill_period_seconds=1))
    for _ in range(2000):
        watched.now += 1
        assert watched.acquire()[0]
    assert watched.takes <= 2000 / 25


def slice_of(watched: Watched) -> Any:
    made = None
    while made is None:
        _, made = watched.acquire()
    return made


def test_what_is_rolled_back_goes_to_its_own_slice_while_that_lives() -> None:
    watched = Watched()
    made = slice_of(watched)
    before = watched.held
    assert watched.slices.give_back(made, watched.parts(1))
    assert watched.held == before + MILLI
    watched.now += SPAN
    assert not watched.slices.give_back(made, watched.parts(1))


def test_a_clock_that_is_set_back_ends_a_slice() -> None:
    watched = Watched()
    slice_of(watched)
    watched.now -= 1000
    assert watched.slices.give(watched.chain.keys, watched.parts(1)) is None


def test_a_slice_that_was_on_its_way_during_a_penalty_is_dropped() -> None:
    watched = Watched()
    watched.acquire()
    fill, _ = watched.slices.fill(watched.chain.keys, watched.parts(1))
    assert fill.extra == [MILLI]
    watched.slices.drop(watched.chain.keys)
    fill.landed(Answer(True, 0, [(900 * MILLI, 0)]))
    assert not watched.slices._live


def test_only_one_request_at_a_time_takes_ahead() -> None:
    watched = Watched()
    for _ in range(5):
        watched.acquire()
    watched.now += 1
    while watched.slices.give(watched.chain.keys, watched.parts(1)):
        pass
    first, _ = watched.slices.fill(watched.chain.keys, watched.parts(1))
    second, _ = watched.slices.fill(watched.chain.keys, watched.parts(1))
    assert any(first.extra)
    assert not any(second.extra)


def test_streams_are_few_and_looked_through_once_in_a_span(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    looked: list[int] = []
    monkeypatch.setattr(Stream, "idle", lambda *_: looked.append(1))
    for number in range(40):
        limit = Limit.per_second("rps", 1000 + number)
        chain = Chain(watched.chain.keys, Shape([{"rps": limit}], [0]))
        parts = chain.shape.spread({"rps": MILLI})
        assert run(ahead_plan(watched.slices, chain, parts), watched.perform).allowed
    assert len(looked) == len(watched.slices._streams[watched.chain.keys]) == 16


# Limiters


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limiter(tmp_path: Path, clock: ManualClock) -> Iterator[SyncRateLimiter]:
    with SyncRateLimiter(f"sqlite:///{tmp_path}/a.db", limits=[LIMIT], clock=clock, prefetch=0.05) as limiter:
        yield limiter


def held(limiter: Any) -> int:
    """Millitokens in slices."""
    return sum(made.left[0] for made in limiter.engine.slices._live.values())


def until_held(limiter: SyncRateLimiter, limits: list[Limit] | None = None) -> int:
    """Acquire until a slice has something left; returns how many passed."""
    for count in range(1, 50):
        assert limiter.try_acquire("user", "api", {"rps": 1}, limits)
        if held(limiter):
            return count
    raise AssertionError("nothing was taken ahead")


def until_local(limiter: SyncRateLimiter) -> Any:
    until_held(limiter)
    decision = limiter.try_acquire("user", "api", {"rps": 1})
    assert decision.local
    until_held(limiter)
    return decision


def looked_at(limiter: SyncRateLimiter) -> int:
    return limiter.available("user", "api")["rps"]


@pytest.mark.parametrize("value", [-0.1, 10.1, float("nan"), float("inf"), True, "0.05", None])
def test_prefetch_is_checked(value: Any) -> None:
    with pytest.raises(ValidationError, match="prefetch must be a number of seconds from 0"):
        SyncRateLimiter("memory://", prefetch=value)


def test_memory_has_nothing_to_prefetch() -> None:
    with SyncRateLimiter("memory://", limits=[LIMIT], prefetch=0.05) as limiter:
        assert not any(limiter.try_acquire("user", "api", {"rps": 1}).local for _ in range(20))


def test_statuses_say_what_is_left_for_this_process(limiter: SyncRateLimiter) -> None:
    for count in range(1, 40):
        (status,) = limiter.try_acquire("user", "api", {"rps": 1}).statuses
        assert status.available == 1000 - count


def test_what_is_left_at_the_end_is_given_back_with_the_next_call(limiter: SyncRateLimiter, clock: ManualClock) -> None:
    slow = [Limit("rps", 1000, refill_amount=1, refill_period_seconds=3600)]
    count = until_held(limiter, slow)
    clock.advance(0.05)
    assert limiter.available("user", "api", slow) == {"rps": 1000 - count}


def test_close_gives_back(tmp_path: Path, clock: ManualClock) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with SyncRateLimiter(url, limits=[LIMIT], clock=clock, prefetch=0.05) as limiter:
        count = until_held(limiter)
    with SyncRateLimiter(url, limits=[LIMIT], clock=clock) as other:
        assert looked_at(other) == 1000 - count


def test_tasks_give_back_by_themselves_and_on_close(tmp_path: Path) -> None:
    url, limit = f"sqlite:///{tmp_path}/a.db", Limit("rps", 1000, refill_amount=1, refill_period_seconds=3600)

    async def until_some_is_held(limiter: RateLimiter) -> int:
        count = 0
        while not held(limiter):
            assert await limiter.try_acquire("user", "api", {"rps": 1})
            count += 1
        return count

    async def main() -> None:
        async with RateLimiter(url, limits=[limit]) as other:
            async with RateLimiter(url, limits=[limit], prefetch=0.05) as limiter:
                passed = await until_some_is_held(limiter)
                while (await other.available("user", "api"))["rps"] < 1000 - passed - 1:  # noqa: ASYNC110 - the store says
                    await asyncio.sleep(0.01)
                passed += await until_some_is_held(limiter)
            # What came back late, by the timer, may be less by a millitoken.
            assert 0 <= 1000 - passed - (await other.available("user", "api"))["rps"] <= 1

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_rollback_is_given_out_again_without_the_store(limiter: SyncRateLimiter) -> None:
    until_held(limiter)
    decision = limiter.try_acquire("user", "api", {"rps": 1})
    before = held(limiter)
    assert decision.local
    assert decision.lease is not None
    decision.lease.rollback()
    assert decision.lease.consumed == {"rps": 0}
    assert held(limiter) == before + MILLI


def test_a_rollback_after_the_end_of_the_slice_goes_to_the_store(limiter: SyncRateLimiter, clock: ManualClock) -> None:
    slow = [Limit("rps", 1000, refill_amount=1, refill_period_seconds=3600)]
    count = until_held(limiter, slow)
    decision = limiter.try_acquire("user", "api", {"rps": 1}, slow)
    assert decision.local
    assert decision.lease is not None
    clock.advance(0.05)
    decision.lease.rollback()
    assert limiter.available("user", "api", slow) == {"rps": 1000 - count}


@pytest.mark.parametrize(
    "change",
    [
        lambda limiter: limiter.penalize("user", "api", seconds=5),
        lambda limiter: limiter.reset("user", "api"),
        lambda limiter: limiter.set_limits("user", [Limit.per_second("rps", 10)], resource="api"),
        lambda limiter: limiter.invalidate_config_cache(),
    ],
    ids=["penalize", "reset", "set_limits", "invalidate"],
)
def test_a_penalty_a_reset_or_a_changed_limit_ends_the_slices(limiter: SyncRateLimiter, change: Any) -> None:
    until_local(limiter)
    change(limiter)
    assert not limiter.try_acquire("user", "api", {"rps": 1}).local


def test_a_penalty_refuses_at_once(limiter: SyncRateLimiter) -> None:
    until_local(limiter)
    limiter.penalize("user", "api", seconds=5)
    assert not limiter.try_acquire("user", "api", {"rps": 1})


@pytest.mark.parametrize("options", [{"max_wait": 1}, {"on_unavailable": "allow"}, {"record_lease": True}])
def test_options_go_to_the_store(limiter: SyncRateLimiter, options: dict[str, Any]) -> None:
    until_local(limiter)
    assert not limiter.try_acquire("user", "api", {"rps": 1}, **options).local


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_has_none_of_its_parents_slices(limiter: SyncRateLimiter) -> None:
    until_held(limiter)
    child = os.fork()
    if not child:
        slices = limiter.engine.slices
        os._exit(1 if slices is None or slices._live or slices._streams or slices.surrender() else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert limiter.try_acquire("user", "api", {"rps": 1}).local


def test_watchers_hear_of_decisions_made_here(limiter: SyncRateLimiter) -> None:
    heard: list[str] = []

    class Watcher:
        def decided(self, entity_id: str, resource: str, outcome: str, seconds: float) -> None:
            heard.append(outcome)

        def settled(self, requests: int, seconds: float, ok: bool) -> None:
            heard.append("store")

        def decided_here(self, resource: str) -> None:
            heard.append(f"here: {resource}")

    until_held(limiter)
    limiter.watch(Watcher())
    assert limiter.try_acquire("user", "api", {"rps": 1}).local
    assert heard == ["allowed", "here: api"]
