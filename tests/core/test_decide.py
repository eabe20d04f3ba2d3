"""A take from several buckets, against what its definition says, bucket by bucket."""

from __future__ import annotations

from copy import copy

from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit
from headgate.core.bucket import Bucket
from headgate.core.decide import Mode, Part, Request, decide

START = 1_700_000_000_000
small = st.integers(1, 20).map(lambda tokens: 1000 * tokens)
limits = st.builds(Limit.from_stored, st.just("x"), small, small, st.integers(1, 5_000))


@st.composite
def places(draw: st.DrawFn) -> tuple[Part, Bucket]:
    """A bucket, and what is taken of it: mostly under its own limit, sometimes under an equal or another one."""
    limit = draw(limits)
    held = draw(st.integers(-5_000, limit.capacity_milli))
    bucket = Bucket(limit, held, START + draw(st.integers(-3_000, 3_000)), blocked_until_ms=draw(_blocked))
    taken_under = draw(st.one_of(st.just(limit), st.just(_equal(limit)), limits))
    return Part(0, taken_under, draw(st.integers(0, 20_000))), bucket


_blocked = st.one_of(st.just(0), st.just(0), st.just(0), st.integers(START - 3_000, START + 6_000))


def _equal(limit: Limit) -> Limit:
    return Limit.from_stored(limit.name, limit.capacity_milli, limit.refill_milli, limit.period_ms)


def state(bucket: Bucket) -> tuple[object, ...]:
    return (
        bucket.limit, bucket.tokens_milli, bucket.settled_at_ms, bucket.remainder, bucket.blocked_until_ms,
        bucket.used_milli, bucket.changed,
    )  # fmt: skip


@given(st.lists(places(), min_size=1, max_size=5), st.sampled_from([0, 0, 1_000]))
def test_a_take_of_several_passes_on_all_buckets_or_changes_none(
    chosen: list[tuple[Part, Bucket]], max_wait_ms: int
) -> None:
    parts = tuple(part for part, _ in chosen)
    expected = [copy(bucket) for _, bucket in chosen]
    waits = []
    for part, bucket in zip(parts, expected):
        bucket.settle(START)
        if bucket.limit != part.limit:
            bucket.reshape(part.limit)
        waits.append(bucket.wait_ms(part.amount_milli))
    allowed = all(wait is not None and wait <= max_wait_ms for wait in waits)
    for part, bucket in zip(parts, expected):
        if allowed:
            bucket.take(part.amount_milli)
    request = Request(Mode.TAKE, ("k",), parts, max_wait_ms)
    answer = decide(request, [bucket for _, bucket in chosen], START)
    assert answer.allowed is allowed
    assert answer.wait_ms == (None if None in waits else max(wait or 0 for wait in waits))
    assert list(answer.levels) == [(bucket.available_milli(), wait) for bucket, wait in zip(expected, waits)]
    assert [state(bucket) for _, bucket in chosen] == [state(bucket) for bucket in expected]
