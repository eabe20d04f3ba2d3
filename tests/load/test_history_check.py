"""The checker of histories: it finds one token too much in any window, and none in what a bucket did."""

from __future__ import annotations

from fractions import Fraction

from history_check import EVER_NS, NS_PER_MS, Move, worst_window
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit
from headgate.core.bucket import Bucket

LIMIT = Limit.custom("rate", 10, 7, 3)  # no millisecond earns a whole number of anything
moments = st.integers(0, 20_000).map(lambda ms: ms * NS_PER_MS)
spans = st.tuples(moments, moments).map(lambda pair: (min(pair), max(pair)))
moves = st.builds(lambda amount, span: Move(amount * 1000, *span), st.integers(-5, 12).filter(bool), spans)


def excess(history: list[Move]) -> Fraction:
    found = worst_window(history, LIMIT)
    return max(found.tokens, Fraction(0)) if found else Fraction(0)


def slowly(history: list[Move]) -> Fraction:
    """The most too much in any window, tried one by one."""
    rate = Fraction(LIMIT.refill_milli, LIMIT.period_ms * NS_PER_MS)
    worst = Fraction(0)
    for begin in {move.from_ns for move in history}:
        for end in {move.to_ns for move in history}:
            net = sum(
                move.amount_milli
                for move in history
                if (begin <= move.from_ns and move.to_ns <= end and move.amount_milli > 0)
                or (move.from_ns <= end and begin <= move.to_ns and move.amount_milli < 0)
            )
            if end >= begin:
                worst = max(worst, net - LIMIT.capacity_milli - rate * (end - begin + NS_PER_MS))
    return worst / 1000


@given(st.lists(moves, max_size=12))
def test_sweep_finds_what_trying_every_window_finds(history: list[Move]) -> None:
    assert excess(history) == slowly([move for move in history if move.amount_milli > 0] and history)


asks = st.lists(st.tuples(st.integers(0, 900), st.integers(1, 4), st.integers(0, 50), st.integers(0, 50)), max_size=60)


@given(asks, st.data())
def test_history_of_a_bucket_passes(wishes: list[tuple[int, int, int, int]], data: st.DataObject) -> None:
    """Each grant is known only within some milliseconds, and some give-backs not at all."""
    bucket, now_ms, history = Bucket(LIMIT, LIMIT.capacity_milli, 0), 0, []
    for pause_ms, tokens, before_ms, after_ms in wishes:
        now_ms += pause_ms
        bucket.settle(now_ms)
        if bucket.tokens_milli >= tokens * 1000:
            bucket.tokens_milli -= tokens * 1000
            history.append(Move(tokens * 1000, (now_ms - before_ms) * NS_PER_MS, (now_ms + after_ms) * NS_PER_MS))
        if history and data.draw(st.booleans()):
            back = -history[-1].amount_milli
            bucket.tokens_milli = min(LIMIT.capacity_milli, bucket.tokens_milli - back)
            history.append(Move(back, now_ms * NS_PER_MS, data.draw(st.sampled_from([now_ms * NS_PER_MS, EVER_NS]))))
    assert excess(history) == 0


def test_one_token_too_much_is_found_among_thousands() -> None:
    """A bucket that is drained as it fills, for minutes; in the middle somebody gets one token more."""
    tokens = [(number * LIMIT.period_ms * 1000 // LIMIT.refill_milli + 1) * NS_PER_MS for number in range(5000)]
    history = [Move(LIMIT.capacity_milli, 0, 0), *(Move(1000, at, at) for at in tokens[1:])]
    assert excess(history) == 0
    found = worst_window([*history, Move(1000, tokens[2500], tokens[2500])], LIMIT)
    assert found is not None
    assert 0 < found.tokens <= 1
    assert found.from_ns <= tokens[2500] <= found.to_ns


def test_what_may_have_been_given_back_is_not_held_against_anybody() -> None:
    full = Move(LIMIT.capacity_milli, 0, 0)
    assert excess([full, Move(-10_000, 1, EVER_NS), Move(10_000, 2, 3)]) == 0
    assert excess([full, Move(-9_000, 1, EVER_NS), Move(10_000, 2, 3)]) > 0
