"""Limits that change under a live bucket: what was used stays used, whatever the order in which they come."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ...core.limit import Limit
from ..clock import ManualClock
from .fixtures import Conformance

FREE = [Limit.per_day("calls", 10)]
PRO = [Limit.per_day("calls", 20)]

# Few tokens, slowly refilled: what a turn of the limits would give is more than what time gives.
limits = st.builds(
    Limit.from_stored,
    st.just("calls"),
    st.one_of(st.integers(1, 20).map(lambda tokens: tokens * 1000), st.integers(1, 20_000)),
    st.integers(1, 5000),
    st.sampled_from([7, 1000, 60_000, 86_400_000, 366 * 86_400_000]),
)


class Step(NamedTuple):
    """`change`: store the limit before, so that it has a later revision. `own`: bring it with the call, so that it has
    none. Neither: as stored, by a client that may not have heard of the last change."""

    pause_ms: int
    limit: Limit
    amount_milli: int
    change: bool
    own: bool
    client: int


@st.composite
def sequences(draw: st.DrawFn) -> tuple[list[Limit], list[Step]]:
    pool = draw(st.lists(limits, min_size=2, max_size=4, unique=True))
    steps = []
    for _ in range(draw(st.integers(5, 30))):
        limit = draw(st.sampled_from(pool))
        pause_ms = draw(st.sampled_from([0, 0, 0, 0, 1, 13, 1000, 3_600_000]))
        amount_milli = max(1, limit.capacity_milli // draw(st.sampled_from([1, 1, 2, 5])))
        how = draw(st.sampled_from(["own", "own", "change", "as stored"]))
        steps.append(Step(pause_ms, limit, amount_milli, how == "change", how == "own", draw(st.integers(0, 1))))
    return pool, steps


def check_no_window_exceeds(pool: Iterable[Limit], admitted: list[tuple[int, int]]) -> None:
    """Of what was admitted when, in millitokens: in no time more than the most generous capacity and rate allow."""
    capacity = max(limit.capacity_milli for limit in pool)
    rate = max(Fraction(limit.refill_milli, limit.period_ms) for limit in pool)
    for first, (start_ms, _) in enumerate(admitted):
        total = 0
        for at_ms, amount_milli in admitted[first:]:
            total += amount_milli
            assert total <= capacity + rate * (at_ms - start_ms)


class ChangingLimitConformance(Conformance):
    sequences = 40  # of limits, how many are tried
    turns = 500

    def test_two_limits_in_turn_admit_what_the_larger_allows(self, limiter: Any) -> None:
        passed = [
            bool(limiter.try_acquire("e", "r", {"calls": 1}, limits))
            for _ in range(self.turns)
            for limits in (FREE, PRO)
        ]
        assert sum(passed) == 20

    def test_two_versions_of_a_program_admit_what_the_larger_allows(self, open_limiter: Callable[..., Any]) -> None:
        older, newer = open_limiter(), open_limiter()
        admitted = 0
        for _ in range(40):
            admitted += bool(older.try_acquire("e", "r", {"calls": 1}, FREE))
            admitted += bool(newer.try_acquire("e", "r", {"calls": 1}, PRO))
        assert admitted == 20

    def test_free_then_pro_then_free_again_remembers_what_was_used(self, limiter: Any, clock: ManualClock) -> None:
        limiter.set_limits("ann", FREE)
        assert limiter.try_acquire("ann", "r", {"calls": 10})
        limiter.set_limits("ann", PRO)
        assert limiter.try_acquire("ann", "r", {"calls": 10})
        for plan in (FREE, PRO, FREE, PRO, FREE):
            limiter.set_limits("ann", plan)
            assert not limiter.try_acquire("ann", "r", {"calls": 1})
        refused = limiter.try_acquire("ann", "r", {"calls": 1})
        assert refused.statuses[0].available == -10
        assert refused.retry_after_seconds == 11 * 8640, "ten are owed"
        clock.advance(11 * 8640)
        assert limiter.try_acquire("ann", "r", {"calls": 1})

    def test_what_one_limit_leaves_another_finds(self, limiter: Any, clock: ManualClock) -> None:
        fast, slow = [Limit.custom("calls", 1, 1, 0.003)], [Limit.custom("calls", 5, 0.001, 0.007)]
        assert limiter.try_acquire("e", "r", {"calls": 1}, fast)
        clock.advance(0.001)
        assert limiter.try_acquire("e", "r", {"calls": 4.333}, slow)
        wait = limiter.time_until_available("e", "r", {"calls": 0.001}, slow)
        assert wait == 0.005, "two sevenths are left of the third of a millitoken that there was"

    def test_no_sequence_of_limits_admits_more_than_the_most_generous(
        self, open_limiter: Callable[..., Any], clock: ManualClock
    ) -> None:
        clients = [open_limiter() for _ in range(2)]
        numbers = itertools.count()

        @settings(max_examples=self.sequences, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
        @given(sequences())
        def check(sequence: tuple[list[Limit], list[Step]]) -> None:
            pool, steps = sequence
            entity_id = f"e{next(numbers)}"
            clients[0].set_limits(entity_id, [pool[0]])
            admitted = []
            for step in steps:
                clock.set(clock.now_ms() + step.pause_ms)
                if step.change:
                    clients[0].set_limits(entity_id, [step.limit])
                own = [step.limit] if step.own else None
                consume = {"calls": Fraction(step.amount_milli, 1000)}
                if clients[step.client].try_acquire(entity_id, "r", consume, own):
                    admitted.append((clock.now_ms(), step.amount_milli))
            check_no_window_exceeds(pool, admitted)

        check()
