"""Random histories against the model in exact rationals: every answer of every step must be equal."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, TypeAlias

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from ...core.calendar import Calendar
from ...core.limit import AT_ONCE, Limit
from ..clock import ManualClock
from ..model import ModelCharge, ModelLimiter, Place
from .fixtures import START_MS, Conformance

_namespaces = itertools.count()
Shape: TypeAlias = "tuple[Any, ...]"

amounts = st.one_of(
    st.integers(0, 50_000),
    st.integers(1, 10**15),
    st.sampled_from([0, 0, 1, 1000, 999_999_937, 10**15, 10**15 + 1000]),
)
slot_amounts = st.integers(0, 5).map(lambda slots: slots * 1000)
shapes = st.one_of(
    st.tuples(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 120_000)),
    st.tuples(st.integers(1, 10**15), st.integers(1, 10**15), st.integers(1, 366 * 86_400_000)),
)
# Long against the time a history takes: what is renewed is renewed by the history, not in the background.
slot_shapes = st.tuples(st.integers(1, 4).map(lambda slots: slots * 1000), st.just(0), st.integers(600_000, 3_600_000))
quota_shapes = st.one_of(
    st.tuples(
        st.integers(1, 20_000),
        st.just(AT_ONCE),
        st.just(0),
        st.sampled_from(
            [
                Calendar.every("hour", at="00:17"),
                Calendar.every("day", tz="Europe/Berlin", at="02:30"),
                Calendar.every("month", tz="America/New_York", on=31),
            ]
        ),
    ),
    st.tuples(st.integers(1, 20_000), st.just(AT_ONCE), st.integers(1, 30 * 86_400_000)),
)
entities = st.sampled_from(["org", "ann", "bob", "solo"])
parents = {"ann": "org", "bob": "org"}
names = st.sampled_from([["x"], ["y"], ["x", "y"], ["q"], ["q", "x"], ["slots"], ["slots", "x"], ["q", "slots"]])
steps_ms = st.one_of(
    st.integers(0, 20),
    st.integers(0, 200_000),
    st.integers(0, 3_600_000),
    st.integers(-5_000, 0),
    st.integers(0, 400 * 86_400_000),
)


class HistoryMachine(RuleBasedStateMachine):
    """Entities under stored limits, two of them below a parent. The model is told what the store is told."""

    def __init__(self, open_limiter: Callable[..., Any], clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.clock.set(START_MS)
        self.limiter = open_limiter(namespace=f"history-{next(_namespaces)}")
        self.model = ModelLimiter()
        self.leases: list[tuple[Any, str, int, str]] = []
        self.lease_ids = itertools.count()
        self.revision = 1

    @initialize(first=shapes, second=shapes, slots=slot_shapes, quota=quota_shapes)
    def begin(self, first: Shape, second: Shape, slots: Shape, quota: Shape) -> None:
        named = {"x": first, "y": second, "slots": slots, "q": quota}
        self.limits = {name: Limit.from_stored(name, *shape) for name, shape in named.items()}
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

    @rule(
        change=st.one_of(
            st.tuples(st.sampled_from(["x", "y"]), shapes),
            st.tuples(st.just("slots"), slot_shapes),
            st.tuples(st.just("q"), quota_shapes),
        )
    )
    def a_limit_changes(self, change: tuple[str, Shape]) -> None:
        name, shape = change
        self.limits[name] = Limit.from_stored(name, *shape)
        self.revision += 1
        self.limiter.set_system_defaults(list(self.limits.values()))

    @rule(entity_id=entities, named=names, data=st.data())
    def try_acquire(self, entity_id: str, named: list[str], data: st.DataObject) -> None:
        milli = {name: data.draw(slot_amounts if name == "slots" else amounts) for name in named}
        lease_id = f"lease-{next(self.lease_ids)}"
        allowed, wait_ms = self.model.take(self.charges(entity_id, milli), self.clock.now_ms(), lease=lease_id)
        decision = self.limiter.try_acquire(entity_id, "r", _tokens(milli))
        assert decision.allowed is allowed
        if allowed:
            assert decision.retry_after_seconds == 0.0
            self.leases.append((decision.lease, entity_id, self.revision, lease_id))
        else:
            assert decision.retry_after_seconds == (None if wait_ms is None else wait_ms / 1000)

    @rule(entity_id=entities, name=st.sampled_from(["x", "y", "q"]), milli=st.integers(-(10**15), 3 * 10**15))
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
        lease, entity_id, revision, lease_id = self.leases.pop(index % len(self.leases))
        back = {
            place: charge
            for place, charge in self.taken(lease, entity_id, revision, -1).items()
            if how == "rollback" or charge.limit.is_concurrent
        }
        getattr(lease, how)()
        if back:
            self.model.force(back, self.clock.now_ms(), lease_id)

    @rule(index=st.integers(0, 20))
    def renew_a_lease(self, index: int) -> None:
        if not self.leases:
            return
        lease, entity_id, revision, lease_id = self.leases[index % len(self.leases)]
        held = {
            place: charge
            for place, charge in self.taken(lease, entity_id, revision, 0).items()
            if charge.limit.is_concurrent
        }
        if not lease.lost:
            assert lease.renew() is (self.model.renew(held, self.clock.now_ms(), lease_id) if held else True)

    def taken(self, lease: Any, entity_id: str, revision: int, times: int) -> dict[Place, ModelCharge]:
        """What a lease has taken, under the limits of then."""
        limits_then = lease._chain.shape.levels[0]
        consumed = {name: round(amount * 1000) for name, amount in lease.consumed.items() if amount > 0}
        return {
            place: ModelCharge(limits_then[place[2]], amount * times, revision)
            for place, (_, amount, _) in self.charges(entity_id, consumed).items()
        }

    @rule(entity_id=entities)
    def look(self, entity_id: str) -> None:
        charges = self.charges(entity_id, dict.fromkeys(self.limits, 0))
        seen = self.model.look(charges, self.clock.now_ms())
        lowest = {
            name: min(bucket.available() for place, bucket in seen.items() if place[2] == name) for name in self.limits
        }
        assert self.limiter.available(entity_id, "r") == lowest

    @rule(entity_id=entities, name=st.sampled_from(["x", "q"]), milli=amounts, slots=st.one_of(st.none(), slot_amounts))
    def ask_for_the_wait(self, entity_id: str, name: str, milli: int, slots: int | None) -> None:
        needed = {name: milli} if slots is None else {name: milli, "slots": slots}
        waits = self.model.waits(self.charges(entity_id, needed), self.clock.now_ms()).values()
        longest = None if None in waits else max(wait for wait in waits if wait is not None)
        said = self.limiter.time_until_available(entity_id, "r", _tokens(needed))
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
        new_history: Any = partial(HistoryMachine, open_limiter, clock)
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
