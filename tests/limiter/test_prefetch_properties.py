"""Prefetch, whatever happens in whatever order: what passes was counted before, in its time, and once."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import Limit, RateLimiterUnavailable
from headgate.core.decide import PEEK, TAKE, Part, Parts, Request, refund
from headgate.core.units import MILLI
from headgate.limiter.acquire.chain import Chain, Shape
from headgate.limiter.acquire.prefetch import Slices, ahead_plan, beside_plan
from headgate.limiter.acquire.slice import Slice
from headgate.plan import DeleteBuckets, Settle, SettleEach, run
from headgate.stores.memory.store import MemoryStore

SPAN = 50
HARDLY = (0.001, 366 * 86_400)  # is refilled: every token is accounted for
OWN, OTHER, SHARED = (Limit.custom(name, count, *HARDLY) for name, count in (("rpm", 200), ("tpm", 900), ("rpm", 300)))
PARENT = "ns/b/org#api"
SHAPE = Shape([{"rpm": OWN, "tpm": OTHER}, {"rpm": SHARED}], [0, 0])
CHAINS = [Chain((f"ns/b/{name}#api", PARENT), SHAPE) for name in ("left", "right")]


class Cancelled(BaseException):
    pass


class Process:
    """`fails`: how the next call to the store does. `lost`: what of the parent's may be lost by that."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.generation = 0
        self.time = self.now = 1_000_000.0  # and as its clock has it
        self.slices = Slices(SPAN, lambda: self.now, self)
        self.passed = self.lost = 0
        self.given: list[tuple[Slice, Parts]] = []
        self.fails = ""

    def perform(self, call: Any) -> Any:
        if isinstance(call, DeleteBuckets):
            return None
        batch = call.batch if isinstance(call, SettleEach) else [call.request]
        fails, self.fails = self.fails, ""
        if fails == "before":
            self.lost -= sum(min(0, of_parent(request)) for request in batch)
            raise RateLimiterUnavailable("away")
        answers = self.store.settle(batch, int(self.time))
        if fails == "after":
            self.lost += sum(abs(of_parent(one)) for one, answer in zip(batch, answers) if answer.allowed)
            raise RateLimiterUnavailable("away")
        if fails == "cancelled":  # what it gave back has landed, what it took has been given back
            if batch[-1].mode is TAKE and answers[-1].allowed:
                self.store.settle([refund(batch[-1])], int(self.time))
            raise Cancelled
        return answers[0] if isinstance(call, Settle) else answers

    def acquire(self, chain: Chain, amounts: dict[str, int]) -> None:
        parts = chain.parts(amounts)
        rpm = amounts.get("rpm", 0) * MILLI
        given_here = self.slices.give(chain.keys, parts)
        if given_here is not None:
            made, answer = given_here
            assert made.began <= self.now < made.began + SPAN
            assert made.generation == self.generation
            assert all(left >= 0 for left in made.left)
            assert len(answer.levels) == len(parts)
            self.given.append((made, parts))
            self.passed += rpm
            return
        try:
            answer = run(ahead_plan(self.slices, chain, parts), self.perform)
        except (RateLimiterUnavailable, Cancelled):
            return
        if answer.allowed:
            self.passed += rpm
        else:
            assert not self.slices.holds(chain.keys), "refused, while it holds something"

    def roll_back(self) -> None:
        """The last decision made here, once."""
        if self.given:
            made, parts = self.given.pop()
            own = tuple(part for part in parts if part.level == 0)
            spread = SHAPE.spread({part.limit.name: part.amount_milli for part in own})
            if self.slices.give_back(made, spread):
                assert made.began <= self.now < made.ends
            else:
                self.store.settle([refund(Request(TAKE, made.stream.keys, spread))], int(self.time))
            self.passed -= sum(part.amount_milli for part in spread if part.level == 1)

    def drop(self) -> None:
        self.lost += self.held
        run(beside_plan(self.slices, DeleteBuckets(CHAINS[0].keys)), self.perform)
        assert not self.slices.holds([PARENT])

    def change_limits(self) -> None:
        self.lost += self.held
        self.generation += 1

    def look(self) -> None:
        try:
            run(beside_plan(self.slices, Settle(Request(PEEK, (PARENT,), (Part(0, SHARED, 0),)))), self.perform)
        except (RateLimiterUnavailable, Cancelled):
            return
        assert not self.slices.holds([PARENT])

    def fork(self) -> None:
        self.lost += self.held
        self.slices.after_fork()
        self.given.clear()  # a lease belongs to the process that took it

    def end(self) -> None:
        with self.slices.surrender() as back:
            if back:
                self.store.settle(back.requests, int(self.time))

    @property
    def held(self) -> int:
        return sum(of_parent(Request(TAKE, one.stream.keys, one.stream.parts), one.left) for one in self.live)

    @property
    def live(self) -> list[Slice]:
        return list(self.slices._live.values())


def of_parent(request: Request, left: list[int] | None = None) -> int:
    amounts = left or [part.amount_milli for part in request.parts]
    return sum(own for part, own in zip(request.parts, amounts) if request.keys[part.level] == PARENT)


amounts = st.sampled_from([{"rpm": 1}, {"rpm": 1, "tpm": 3}, {"tpm": 3, "rpm": 1}, {"rpm": 2}, {"rpm": 40}])
steps = st.one_of(
    st.tuples(st.just("acquire"), st.integers(0, 1), st.integers(0, 1), amounts, st.integers(1, 12)),
    st.tuples(st.just("pass"), st.integers(0, 80)),
    st.tuples(st.just("jump"), st.integers(0, 1), st.integers(-200, 200)),
    st.tuples(st.just("fail"), st.integers(0, 1), st.sampled_from(["before", "after", "cancelled"])),
    st.tuples(st.sampled_from(["roll_back", "drop", "change_limits", "look", "fork"]), st.integers(0, 1)),
)


@settings(max_examples=300)
@given(st.lists(steps, min_size=5, max_size=80))
def test_what_passes_was_counted_before_and_what_is_not_used_comes_back(steps: list[tuple[Any, ...]]) -> None:
    store = MemoryStore()
    processes = [Process(store) for _ in range(2)]
    for step in steps:
        match step:
            case ("acquire", number, side, consume, count):
                for _ in range(count):
                    processes[number].acquire(CHAINS[side], consume)
            case ("pass", ms):
                for process in processes:
                    process.time += ms
                    process.now += ms
            case ("jump", number, ms):
                # Tokens whose lateness is not known are lost, and those of a time to come are late.
                processes[number].lost += processes[number].held
                processes[number].now += ms
            case ("fail", number, how):
                processes[number].fails = how
            case (what, number):
                getattr(processes[number], what)()
        missing = SHARED.capacity_milli - stored(store, processes[0].time)
        accounted = sum(process.passed + process.held for process in processes)
        assert accounted <= missing + 1, step
        assert not any(process.slices._trips for process in processes)
    for process in processes:
        process.fails = ""
        process.end()
    missing = SHARED.capacity_milli - stored(store, processes[0].time)
    passed, lost = (sum(getattr(process, name) for process in processes) for name in ("passed", "lost"))
    # What comes back late is less by a millitoken each time.
    assert passed - 1 <= missing < passed + lost + MILLI


def stored(store: MemoryStore, now: float) -> int:
    (answer,) = store.settle([Request(PEEK, (PARENT,), (Part(0, SHARED, 0),))], int(now))
    return answer.levels[0][0]
