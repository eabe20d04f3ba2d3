"""Random histories against the model in exact rationals: every answer of every step must be equal."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from ...core.limit import Limit
from ..clock import ManualClock
from ..model import ModelCharge, ModelLimiter, Place
from .fixtures import START_MS, Conformance

_namespaces = itertools.count()

amounts = st.one_of(
    st.integers(1, 50_000),
    st.integers(1, 10**15),
    st.sampled_from([1, 1000, 999_999_937, 10**15, 10**15 + 1000]),
)
shapes = st.one_of(
    st.tuples(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 120_000)),
    st.tuples(st.integers(1, 10**15), st.integers(1, 10**15), st.integers(1, 366 * 86_400_000)),
)
entities = st.sampled_from(["org", "ann", "bob", "solo"])
parents = {"ann": "org", "bob": "org"}
names = st.sampled_from([["x"], ["y"], ["x", "y"]])
steps_ms = st.one_of(
    st.integers(0, 20), st.integers(0, 200_000), st.integers(-5_000, 0), st.integers(0, 400 * 86_400_000)
)


class History(RuleBasedStateMachine):
    """Entities under stored limits, two of them below a parent. The model is told what the store is told."""

    def __init__(self, open_limiter: Callable[..., Any], clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.clock.set(START_MS)
        self.limiter = open_limiter(namespace=f"history-{next(_namespaces)}")
        self.model = ModelLimiter()
        self.leases: list[tuple[Any, str, int]] = []
        self.revision = 1

    @initialize(first=shapes, second=shapes)
    def begin(self, first: tuple[int, int, int], second: tuple[int, int, int]) -> None:
        self.limits = {"x": Limit.from_stored("x", *first), "y": Limit.from_stored("y", *second)}
        self.limiter.set_system_defaults(list(self.limits.values()))
        self.limiter.create_entity("org")
        for child, parent in parents.items():
            self.limiter.create_entity(child, parent_id=parent, cascade=True)

    def charges(self, entity_id: str, milli: dict[str, int]) -> dict[Place, ModelCharge]:
        chain = [entity_id, parents[entity_id]] if entity_id in parents else [entity_id]
        return {
            (link, "r", name): ModelCharge(self.limits[name], Fraction(amount, 1000), self.revision)
            for link in chain
            for name, amount in milli.items()
        }

    @rule(ms=steps_ms)
    def time_passes(self, ms: int) -> None:
        self.clock.set(self.clock.now_ms() + ms)

    @rule(name=st.sampled_from(["x", "y"]), shape=shapes)
    def a_limit_changes(self, name: str, shape: tuple[int, int, int]) -> None:
        self.limits[name] = Limit.from_stored(name, *shape)
        self.revision += 1
        self.limiter.set_system_defaults(list(self.limits.values()))

    @rule(entity_id=entities, named=names, data=st.data())
    def try_acquire(self, entity_id: str, named: list[str], data: st.DataObject) -> None:
        milli = {name: data.draw(amounts) for name in named}
        allowed, wait_ms = self.model.take(self.charges(entity_id, milli), self.clock.now_ms())
        decision = self.limiter.try_acquire(entity_id, "r", _tokens(milli))
        assert decision.allowed is allowed
        if allowed:
            assert decision.retry_after_seconds == 0.0
            self.leases.append((decision.lease, entity_id, self.revision))
        else:
            assert decision.retry_after_seconds == (None if wait_ms is None else wait_ms / 1000)

    @rule(entity_id=entities, name=st.sampled_from(["x", "y"]), milli=st.integers(-(10**15), 3 * 10**15))
    def adjust(self, entity_id: str, name: str, milli: int) -> None:
        self.model.force(self.charges(entity_id, {name: milli}), self.clock.now_ms())
        self.limiter.adjust(entity_id, "r", _tokens({name: milli}))

    @rule(entity_id=entities, seconds=st.sampled_from([None, 1, 30]), keep=st.sampled_from([None, 0, 333, 1000]))
    def penalize(self, entity_id: str, seconds: int | None, keep: int | None) -> None:
        if seconds is None and keep is None:
            return
        own = {
            (entity_id, "r", name): ModelCharge(limit, Fraction(0), self.revision)
            for name, limit in self.limits.items()
        }
        block_ms = 0 if seconds is None else seconds * 1000
        self.model.penalize(own, self.clock.now_ms(), block_ms, 1000 if keep is None else keep)
        factor = None if keep is None else Fraction(keep, 1000)
        self.limiter.penalize(entity_id, "r", seconds=seconds, factor=factor)

    @rule(index=st.integers(0, 20), how=st.sampled_from(["commit", "rollback"]))
    def end_a_lease(self, index: int, how: str) -> None:
        if not self.leases:
            return
        lease, entity_id, revision = self.leases.pop(index % len(self.leases))
        held = {name: round(amount * 1000) for name, amount in lease.consumed.items()}
        limits_then = lease._chain.shape.levels[0]
        getattr(lease, how)()
        if how == "rollback":
            charges = {
                place: ModelCharge(limits_then[place[2]], -amount, revision)
                for place, (_, amount, _) in self.charges(entity_id, held).items()
                if amount > 0
            }
            if charges:
                self.model.force(charges, self.clock.now_ms())

    @rule(entity_id=entities)
    def look(self, entity_id: str) -> None:
        charges = self.charges(entity_id, dict.fromkeys(self.limits, 0))
        seen = self.model.look(charges, self.clock.now_ms())
        lowest = {
            name: min(bucket.available() for place, bucket in seen.items() if place[2] == name) for name in self.limits
        }
        assert self.limiter.available(entity_id, "r") == lowest

    @rule(entity_id=entities, milli=amounts)
    def ask_for_the_wait(self, entity_id: str, milli: int) -> None:
        waits = self.model.waits(self.charges(entity_id, {"x": milli}), self.clock.now_ms()).values()
        longest = None if None in waits else max(wait for wait in waits if wait is not None)
        said = self.limiter.time_until_available(entity_id, "r", _tokens({"x": milli}))
        assert said == (None if longest is None else longest / 1000)

    @rule(entity_id=entities)
    def reset(self, entity_id: str) -> None:
        for place in list(self.model.buckets):
            if place[0] == entity_id:
                del self.model.buckets[place]
        self.limiter.reset(entity_id, "r")


def _tokens(milli: dict[str, int]) -> dict[str, Fraction]:
    return {name: Fraction(amount, 1000) for name, amount in milli.items()}


class HistoryConformance(Conformance):
    # How many histories to try, and how long each may get.
    histories = 40
    history_length = 40

    def test_every_history_equals_the_model(self, open_limiter: Callable[..., Any], clock: ManualClock) -> None:
        new_history: Any = partial(History, open_limiter, clock)
        run_state_machine_as_test(
            new_history,
            settings=settings(
                max_examples=self.histories,
                stateful_step_count=self.history_length,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=True,
            ),
        )
