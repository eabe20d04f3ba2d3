"""Properties of the exact bucket, over its full range."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import assume, given
from hypothesis import strategies as st

from headgate import Limit
from headgate.core.bucket import Bucket
from headgate.core.decide import Mode, Part, Request, decide
from headgate.testing.conformance.changing_limits import check_no_window_exceeds
from headgate.testing.model import ModelBucket

tokens = st.one_of(st.integers(1, 5_000), st.integers(1, 10**15))
periods = st.one_of(st.integers(1, 100_000), st.integers(1, 366 * 86_400_000))
limits = st.builds(Limit.from_stored, st.just("x"), tokens, tokens, periods)
times = st.lists(st.integers(0, 10**12), min_size=1, max_size=8).map(sorted)
START = 1_700_000_000_000


def state(bucket: Bucket) -> tuple[int, int, int, int]:
    return bucket.tokens_milli, bucket.settled_at_ms, bucket.remainder, bucket.blocked_until_ms


@st.composite
def buckets(draw: st.DrawFn) -> Bucket:
    """A bucket somewhere between deep debt and full."""
    limit = draw(limits)
    held = draw(st.integers(-3 * 10**15, limit.capacity_milli))
    full = held == limit.capacity_milli
    return Bucket(limit, held, START, 0 if full else draw(st.integers(0, limit.period_ms - 1)))


def copy_of(bucket: Bucket) -> Bucket:
    return Bucket(bucket.limit, *state(bucket))


@given(buckets(), times)
def test_settling_in_pieces_is_settling_at_once(bucket: Bucket, at: list[int]) -> None:
    pieces, once = bucket, copy_of(bucket)
    for ms in at:
        pieces.settle(START + ms)
    once.settle(START + at[-1])
    assert state(pieces) == state(once)


@given(buckets(), st.integers(0, 10**12))
def test_settling_is_the_formula(bucket: Bucket, ms: int) -> None:
    held = Fraction(bucket.tokens_milli, 1000) + Fraction(bucket.remainder, 1000 * bucket.limit.period_ms)
    model = ModelBucket(bucket.limit, held, START).at(START + ms)
    bucket.settle(START + ms)
    assert (
        Fraction(bucket.tokens_milli, 1000) + Fraction(bucket.remainder, 1000 * bucket.limit.period_ms) == model.tokens
    )
    assert 0 <= bucket.remainder < bucket.limit.period_ms


@given(buckets(), st.integers(1, 10**15))
def test_the_wait_is_exact(bucket: Bucket, amount: int) -> None:
    wait = bucket.wait_ms(amount)
    if wait is None:
        assert amount > bucket.limit.capacity_milli
        return
    at_the_wait, before = copy_of(bucket), copy_of(bucket)
    at_the_wait.settle(START + wait)
    assert at_the_wait.tokens_milli >= amount
    if wait:
        before.settle(START + wait - 1)
        assert before.tokens_milli < amount


@given(buckets())
def test_a_bucket_is_full_exactly_when_it_says(bucket: Bucket) -> None:
    full_at, before = copy_of(bucket), copy_of(bucket)
    at_ms = bucket.full_at_ms()
    full_at.settle(at_ms)
    assert (full_at.tokens_milli, full_at.remainder) == (bucket.limit.capacity_milli, 0)
    if at_ms > START:
        before.settle(at_ms - 1)
        assert before.tokens_milli < bucket.limit.capacity_milli


@given(buckets(), st.integers(-(10**12), -1))
def test_time_never_runs_backwards(bucket: Bucket, ms: int) -> None:
    before = state(bucket)
    bucket.settle(START + ms)
    assert state(bucket) == before


@given(limits, st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**15)), min_size=1, max_size=30))
def test_never_more_than_capacity_and_rate_times_time(limit: Limit, attempts: list[tuple[int, int]]) -> None:
    bucket, now, admitted = Bucket.full(limit, START), START, 0
    for pause, amount in attempts:
        now += pause
        request = Request(Mode.TAKE, ("k",), (Part(0, limit, amount),))
        if decide(request, [bucket], now).allowed:
            admitted += amount
    assert admitted <= limit.capacity_milli + Fraction(limit.refill_milli, limit.period_ms) * (now - START)


@given(buckets(), buckets(), st.integers(1, 10**15), st.integers(1, 10**15), st.integers(0, 10**9))
def test_refused_request_changes_no_bucket(one: Bucket, other: Bucket, amount: int, more: int, ms: int) -> None:
    request = Request(Mode.TAKE, ("a", "b"), (Part(0, one.limit, amount), Part(1, other.limit, more)))
    untouched = [copy_of(one), copy_of(other)]
    answer = decide(request, [one, other], START + ms)
    assume(not answer.allowed)
    for bucket in untouched:
        bucket.settle(START + ms)
    assert [state(one), state(other)] == [state(bucket) for bucket in untouched]
    assert not one.changed
    assert not other.changed


@given(buckets(), st.integers(1, 50), st.integers(1, 10**13))
def test_n_singles_are_one_of_n(bucket: Bucket, count: int, amount: int) -> None:
    singles, once = bucket, copy_of(bucket)
    limit = bucket.limit
    one = Request(Mode.TAKE, ("k",), (Part(0, limit, amount),))
    each = [decide(one, [singles], START).allowed for _ in range(count)]
    whole = decide(Request(Mode.TAKE, ("k",), (Part(0, limit, amount * count),)), [once], START).allowed
    assert all(each) == whole
    if whole:
        assert state(singles) == state(once)


@given(buckets(), st.integers(1, 1000))
def test_reserving_and_waiting_is_waiting_and_taking(bucket: Bucket, thousandths: int) -> None:
    reserved, patient = bucket, copy_of(bucket)
    amount = max(1, bucket.limit.capacity_milli * thousandths // 1000)
    answer = decide(Request(Mode.TAKE, ("k",), (Part(0, bucket.limit, amount),), 10**40), [reserved], START)
    assert answer.wait_ms is not None
    reserved.settle(START + answer.wait_ms)
    patient.settle(START + answer.wait_ms)
    overflowed = patient.tokens_milli == patient.limit.capacity_milli
    patient.take(amount)
    if overflowed:
        assert reserved.tokens_milli >= patient.tokens_milli
    else:
        assert state(reserved) == state(patient)


@given(buckets(), st.integers(0, 10**15))
def test_force_there_and_back_is_nothing(bucket: Bucket, amount: int) -> None:
    before = state(bucket)
    bucket.force(amount)
    bucket.force(-amount)
    assert state(bucket) == before


@given(buckets(), limits)
def test_a_changed_limit_keeps_what_was_used(bucket: Bucket, limit: Limit) -> None:
    used, remainder, period_ms = (
        bucket.limit.capacity_milli - bucket.tokens_milli,
        bucket.remainder,
        bucket.limit.period_ms,
    )
    bucket.reshape(limit)
    assert limit.capacity_milli - bucket.tokens_milli == used
    assert 0 <= bucket.remainder < limit.period_ms
    lost = Fraction(remainder, period_ms) - Fraction(bucket.remainder, limit.period_ms)
    assert 0 <= lost < Fraction(1, limit.period_ms), "the part of a millitoken is kept, in the grain of the new limit"


@given(limits)
def test_a_full_bucket_is_full_under_every_limit(limit: Limit) -> None:
    bucket = Bucket.full(Limit.per_minute("x", 100), START)
    bucket.reshape(limit)
    assert (bucket.tokens_milli, bucket.remainder) == (limit.capacity_milli, 0)


# Few tokens, slowly refilled, so that what a turn of the limits gives is more than what time gives.
small_limits = st.builds(
    Limit.from_stored, st.just("x"), st.integers(1, 20), st.integers(1, 5), st.sampled_from([7, 1000, 86_400_000])
)


@given(st.one_of(st.lists(small_limits, min_size=2, max_size=4), st.lists(limits, min_size=2, max_size=4)), st.data())
def test_limits_that_alternate_admit_no_more_than_the_most_generous(pool: list[Limit], data: st.DataObject) -> None:
    bucket, now, admitted = Bucket.full(pool[0], START), START, []
    revision = 0
    for _ in range(data.draw(st.integers(1, 30))):
        now += data.draw(st.sampled_from([0, 0, 0, 1, 400, 10**6]))
        limit = data.draw(st.sampled_from(pool))
        amount = max(1, limit.capacity_milli // data.draw(st.sampled_from([1, 2, 7])))
        revision = max(0, revision + data.draw(st.integers(-1, 1)))
        request = Request(Mode.TAKE, ("k",), (Part(0, limit, amount, data.draw(st.sampled_from([0, revision]))),))
        if decide(request, [bucket], now).allowed:
            admitted.append((now, amount))
    check_no_window_exceeds(pool, admitted)


def test_ten_a_day_and_twenty_a_day_in_turn_admit_twenty() -> None:
    pair = [Limit.per_day("x", 10), Limit.per_day("x", 20)]
    bucket = Bucket.full(pair[0], START)
    requests = [Request(Mode.TAKE, ("k",), (Part(0, limit, 1000),)) for limit in pair]
    assert sum(decide(request, [bucket], START).allowed for _ in range(500) for request in requests) == 20


def test_debt_has_a_floor_that_fits_63_bits() -> None:
    bucket = Bucket.full(Limit.per_minute("x", 1), START)
    for _ in range(300):
        bucket.force(9 * 10**15)
    assert bucket.tokens_milli == -(10**18)
    bucket.reshape(Limit.per_minute("x", 0.5))
    assert bucket.tokens_milli == -(10**18)
    bucket.reshape(Limit.per_minute("x", 10**12))
    assert bucket.tokens_milli == -(10**18) + 10**15 - 500
