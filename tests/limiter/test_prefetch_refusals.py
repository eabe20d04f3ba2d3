"""Prefetch: a refusal is the store's, while this process holds nothing of the buckets, and nothing is on its way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from headgate import Ask, Limit, RateLimiterUnavailable, SyncRateLimiter
from headgate.core.decide import FORCE, PEEK, Answer, Part, Request
from headgate.core.units import MILLI
from headgate.limiter.acquire.chain import Chain, Shape
from headgate.limiter.acquire.prefetch import Slices, ahead_plan, beside_plan
from headgate.plan import Nap, Settle, SettleEach, run
from headgate.stores.memory.store import MemoryStore
from headgate.testing import ManualClock

POOL = Limit.custom("rate", 100, 0.001, 366 * 86_400)
PLENTY = Limit.custom("rate", 10**6, 0.001, 366 * 86_400)
PARENT = "ns/b/org#api"
PATIENCE_SECONDS = 60.0


class World:
    """One process with prefetch: plans are performed step by step, on a store that answers at once."""

    generation = 0

    def __init__(self, patience: float = 10.0) -> None:
        self.now = 1_000_000.0
        self.store = MemoryStore()
        self.bells: list[threading.Event] = []
        self.slices = Slices(50, lambda: self.now, self, self.new_bell, patience)
        shape = Shape([{"rate": PLENTY}, {"rate": POOL}], [0, 0])
        self.left, self.right = (Chain((f"ns/b/{name}#api", PARENT), shape) for name in ("left", "right"))

    def new_bell(self) -> threading.Event:
        self.bells.append(threading.Event())
        return self.bells[-1]

    def parts(self, amount: int = 1) -> tuple[Part, ...]:
        return self.left.shape.spread({"rate": amount * MILLI})

    def perform(self, call: Any) -> Any:
        if isinstance(call, Nap):
            raise AssertionError("nothing is on its way")
        batch = call.batch if isinstance(call, SettleEach) else [call.request]
        answers = self.store.settle(batch, int(self.now))
        return answers[0] if isinstance(call, Settle) else answers

    def take(self, chain: Chain, amount: int = 1) -> bool:
        given = self.slices.give(chain.keys, self.parts(amount))
        return given is not None or self.ask(chain, amount).allowed

    def ask(self, chain: Chain, amount: int = 1) -> Answer:
        return run(ahead_plan(self.slices, chain, self.parts(amount)), self.perform)

    def slow_ask(self, chain: Chain, amount: int = 1) -> Generator[Any, Any, Answer]:
        return ahead_plan(self.slices, chain, self.parts(amount))

    def until_enlarged(self, chain: Chain) -> tuple[Any, Any]:
        """An ask that takes something ahead: it is in the store, and its answer is on its way."""
        for _ in range(20):
            plan = self.slow_ask(chain)
            call = next(plan)
            answer = self.perform(call)
            if (call.request if isinstance(call, Settle) else call.batch[-1]).parts[1].amount_milli > MILLI:
                return plan, answer
            ended(plan, answer)
        raise AssertionError("nothing was taken ahead")

    @property
    def stored(self) -> int:
        (answer,) = self.store.settle([Request(PEEK, (PARENT,), (Part(0, POOL, 0),))], int(self.now))
        return answer.levels[0][0] // MILLI


def ended(plan: Any, answer: Any) -> Answer:
    with pytest.raises(StopIteration) as stop:
        plan.send(answer)
    return stop.value.value  # type: ignore[no-any-return]


def test_a_request_that_is_refused_waits_for_a_slice_that_is_on_its_way() -> None:
    world = World()
    first, answer = world.until_enlarged(world.left)
    left = world.stored
    second = world.slow_ask(world.right, left + 1)  # what is taken ahead is missing
    call = second.send(world.perform(next(second)))
    assert isinstance(call, Nap)
    assert not world.bells[0].is_set()
    assert ended(first, answer).allowed
    assert world.bells[0].is_set()
    call = second.send(None)
    assert [request.mode for request in call.batch[:-1]] == [FORCE]
    assert ended(second, world.perform(call)).allowed
    assert not world.slices._trips


def test_a_request_that_is_refused_waits_for_what_is_on_its_way_back() -> None:
    world = World()
    ended(*world.until_enlarged(world.left))
    back = world.slices.surrender()
    assert back
    left = world.stored
    refused = world.slow_ask(world.right, left + 1)
    assert isinstance(refused.send(world.perform(next(refused))), Nap)
    with back:
        world.perform(SettleEach(back.requests))
    assert ended(refused, world.perform(refused.send(None))).allowed


def test_a_request_that_was_refused_before_something_came_back_asks_again() -> None:
    world = World()
    ended(*world.until_enlarged(world.left))
    back = world.slices.surrender()
    refused = world.slow_ask(world.right, world.stored + 1)
    answer = world.perform(next(refused))
    assert not answer.allowed
    with back:
        world.perform(SettleEach(back.requests))
    assert ended(refused, world.perform(refused.send(answer))).allowed


def test_nothing_is_taken_ahead_while_a_refused_request_asks_again() -> None:
    world = World()
    first, answer = world.until_enlarged(world.left)
    refused = world.slow_ask(world.right, world.stored + 1)
    assert isinstance(refused.send(world.perform(next(refused))), Nap)
    ended(first, answer)
    for _ in range(10):
        world.now += 1
        assert any(world.slices.give(world.left.keys, world.parts()) is None for _ in range(200))
        assert world.ask(world.left).allowed
        assert not world.slices._live
    refused.close()
    for _ in range(5):
        assert world.take(world.left)
    assert world.slices._live
    refused.close()
    assert not world.slices._trips


def test_a_request_that_is_refused_alone_asks_once() -> None:
    world = World()
    assert world.ask(world.left, 100).allowed
    refused = world.slow_ask(world.right)
    assert not ended(refused, world.perform(next(refused))).allowed


def test_what_never_arrives_is_waited_for_no_longer_than_a_call_takes() -> None:
    world = World(patience=0.0)
    first, _ = world.until_enlarged(world.left)
    refused = world.slow_ask(world.right, world.stored + 1)
    assert isinstance(refused.send(world.perform(next(refused))), Nap)
    assert not ended(refused, world.perform(refused.send(None))).allowed
    first.close()
    assert not world.slices._trips


@pytest.mark.parametrize("how", ["refused", "error", "cancelled"])
def test_an_ask_that_fails_lets_others_take_ahead(how: str) -> None:
    world = World()
    plan, _ = world.until_enlarged(world.left)
    if how == "error":
        with pytest.raises(RateLimiterUnavailable):
            plan.throw(RateLimiterUnavailable("away"))
    elif how == "cancelled":
        plan.close()
    else:
        call = plan.send(Answer(False, 1, [(0, 1), (0, 1)]))
        assert call.request.parts == world.parts()
        assert not ended(plan, Answer(False, 1, [(0, 1), (0, 1)])).allowed
    assert not world.slices._trips
    assert not world.slices._live
    world.until_enlarged(world.left)


def test_what_is_given_back_and_not_answered_is_lost_and_no_concern_of_the_caller() -> None:
    world = World()
    ended(*world.until_enlarged(world.left))
    world.now += 51
    plan = world.slow_ask(world.left)
    call = next(plan)
    assert [request.mode for request in call.batch[:-1]] == [FORCE]
    (answer,) = world.store.settle(call.batch[-1:], int(world.now))
    assert ended(plan, [RateLimiterUnavailable("away"), answer]).allowed
    assert not world.slices.surrender(), "not given back twice"


def test_a_request_that_takes_nothing_ahead_finds_nothing_taken_ahead() -> None:
    world = World()
    ended(*world.until_enlarged(world.left))
    before = world.stored + sum(made.left[1] for made in world.slices._live.values()) // MILLI
    look = Settle(Request(PEEK, (PARENT,), (Part(0, POOL, 0),)))
    answer = run(beside_plan(world.slices, look), world.perform)
    assert answer.levels[0][0] // MILLI == before
    assert not world.slices._live


# Limiters


@pytest.fixture
def limiter(tmp_path: Path) -> Any:
    limit = Limit.custom("rpm", 1000, 0.001, 366 * 86_400)
    with SyncRateLimiter(f"sqlite:///{tmp_path}/a.db", limits=[limit], clock=ManualClock(), prefetch=0.05) as limiter:
        yield limiter


@pytest.mark.parametrize(
    "rest",
    [
        lambda limiter, count: limiter.try_acquire("e", "r", {"rpm": count}, max_wait=0.001).allowed,
        lambda limiter, count: all(limiter.try_acquire_each([Ask("e", "r", {"rpm": count})])),
        lambda limiter, count: limiter.available("e", "r")["rpm"] == count,
        lambda limiter, count: limiter.time_until_available("e", "r", {"rpm": count}) == 0,
    ],
    ids=["max_wait", "each", "available", "time_until_available"],
)
def test_what_goes_to_the_store_finds_all_that_is_left(limiter: Any, rest: Callable[[Any, int], bool]) -> None:
    count = 0
    while not (limiter.engine.slices._live and limiter.try_acquire("e", "r", {"rpm": 1}).local):
        assert limiter.try_acquire("e", "r", {"rpm": 1})
        count += 1
        assert count < 100
    used = 1000 - limiter.engine.slices._live[next(iter(limiter.engine.slices._live))]._levels[0] // MILLI
    held = sum(made.left[0] for made in limiter.engine.slices._live.values()) // MILLI
    assert rest(limiter, 1000 - used + held)


def test_a_quiet_process_of_threads_gives_back_by_itself(tmp_path: Path) -> None:
    url, limit = f"sqlite:///{tmp_path}/a.db", Limit.custom("rpm", 1000, 0.001, 366 * 86_400)
    with (
        SyncRateLimiter(url, limits=[limit], prefetch=0.05) as quiet,
        SyncRateLimiter(url, limits=[limit]) as other,
    ):
        count, back = 0, threading.Event()
        slices: Any = quiet.engine.slices
        while not any(made.left[0] >= 10 * MILLI for made in list(slices._live.values())):
            assert quiet.try_acquire("e", "r", {"rpm": 1})
            count += 1
        until = time.monotonic() + PATIENCE_SECONDS
        while other.available("e", "r")["rpm"] < 1000 - count - 1:
            assert time.monotonic() < until
            back.wait(0.01)
