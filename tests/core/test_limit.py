"""How limits are spelled, and what is refused."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit, LimitStatus, RateLimitExceeded, ValidationError
from headgate.core.units import amount_to_milli, wait_to_ms


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("100/minute", Limit.per_minute("x", 100)),
        ("100/minute burst 150", Limit.per_minute("x", 100, burst=150)),
        ("10 / second", Limit.per_second("x", 10)),
        ("5 per 10 seconds", Limit.custom("x", 5, 5, 10)),
        ("5/10s", Limit.custom("x", 5, 5, 10)),
        ("1_000_000/day", Limit.per_day("x", 1_000_000)),
        ("0.5/hour", Limit.per_hour("x", 0.5)),
        ("2/500ms", Limit.custom("x", 2, 2, 0.5)),
        ("1/1.5h", Limit.custom("x", 1, 1, 5400)),
        ("  7/WEEK Burst 9 ", Limit.custom("x", 9, 7, 604_800)),
        ("3/min", Limit.per_minute("x", 3)),
        ("3/m", Limit.per_minute("x", 3)),
        ("3/2days", Limit.custom("x", 3, 3, 172_800)),
        ("10 concurrent", Limit.concurrent("x", 10)),
        ("10 concurrent ttl 90s", Limit.concurrent("x", 10, ttl=90)),
        (" 1_000  Concurrent  TTL 1.5 hours ", Limit.concurrent("x", 1000, ttl=5400)),
        ("1 concurrent ttl 250ms", Limit.concurrent("x", 1, ttl=0.25)),
    ],
)
def test_parse_reads_every_spelling_of_a_limit(spec: str, expected: Limit) -> None:
    assert Limit.parse("x", spec) == expected


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "10",
        "/minute",
        "10/",
        "ten/minute",
        "10/fortnight",
        "-1/minute",
        "10/minute burst",
        "1e3/day",
        None,
        5,
        "concurrent",
        "1.5 concurrent",
        "-1 concurrent",
        "10 concurrent ttl",
        "10 concurrent ttl 5",
        "10 concurrents",
        "10 concurrent ttl 5 fortnights",
        "10 concurrent 5s",
        "10/minute concurrent",
    ],
)
def test_a_bad_spelling_is_refused_with_an_example(spec: Any) -> None:
    with pytest.raises(ValidationError, match="100/minute") as caught:
        Limit.parse("x", spec)
    assert repr(spec) in str(caught.value)


periods_ms = st.one_of(
    st.integers(1, 366 * 86_400_000), st.sampled_from([1, 1000, 60_000, 3_600_000, 86_400_000, 604_800_000])
)
limits = st.one_of(
    st.builds(Limit.from_stored, st.just("x"), st.integers(1, 10**15), st.integers(1, 10**15), periods_ms),
    st.builds(Limit.concurrent, st.just("x"), st.integers(1, 10**12), periods_ms.map(lambda ms: Decimal(ms) / 1000)),
)


@given(limits)
def test_every_limit_survives_its_spelling_its_dict_and_pickle(limit: Limit) -> None:
    assert Limit.parse("x", str(limit)) == limit
    assert Limit.from_dict(limit.as_dict()) == limit
    assert pickle.loads(pickle.dumps(limit)) == limit
    assert hash(limit) == hash(Limit.parse("x", str(limit)))
    assert eval(repr(limit)) == limit


@pytest.mark.parametrize(
    "value", [0, -1, float("nan"), float("inf"), 10**12 + 1, 0.0001, "5", None, True, Decimal("0.0005")]
)
@pytest.mark.parametrize("field", ["capacity", "refill_amount"])
def test_amounts_out_of_range_are_refused_by_field(field: str, value: Any) -> None:
    arguments: dict[str, Any] = {"capacity": 1, "refill_amount": 1, "refill_period_seconds": 1, field: value}
    with pytest.raises(ValidationError, match=field) as caught:
        Limit("x", **arguments)
    assert (str(value) if isinstance(value, Decimal) else repr(value)) in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, float("nan"), 0.0005, 366 * 86_400 + 1, "1", None])
def test_periods_out_of_range_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match="refill_period_seconds"):
        Limit("x", 1, 1, value)


@pytest.mark.parametrize("slots", [0, -1, 1.5, 0.001, float("nan"), 10**12 + 1, "5", None, True])
def test_slots_out_of_range_are_refused(slots: Any) -> None:
    with pytest.raises(ValidationError, match="slots of limit 'x'") as caught:
        Limit.concurrent("x", slots)
    assert repr(slots) in str(caught.value)


@pytest.mark.parametrize("ttl", [0, -1, float("inf"), 0.0005, 366 * 86_400 + 1, "1", None])
def test_times_to_live_out_of_range(ttl: Any) -> None:
    with pytest.raises(ValidationError, match="ttl of limit 'x'"):
        Limit.concurrent("x", 1, ttl)


def test_a_concurrent_limit_is_of_another_kind() -> None:
    limit = Limit.concurrent("x", 10)
    assert (limit.is_concurrent, limit.capacity, limit.refill_period_seconds) == (True, 10, 60)
    assert not Limit.per_minute("x", 10).is_concurrent
    assert limit.as_dict() == {"name": "x", "slots": 10, "ttl_seconds": 60}
    assert len({limit, Limit.concurrent("x", 10, ttl=59), Limit.concurrent("y", 10), Limit.per_minute("x", 10)}) == 4
    with pytest.raises(ValidationError, match="refill_amount"):
        Limit("x", 10, 0, 60)


def test_the_ends_of_the_range_are_in() -> None:
    assert Limit.concurrent("x", 10**12, 366 * 86_400).capacity == 10**12
    assert Limit.concurrent("x", 1, 0.001).refill_period_seconds == 0.001
    assert Limit("x", 0.001, 0.001, 0.001).capacity == 0.001
    assert Limit("x", 10**12, 10**12, 366 * 86_400).refill_period_seconds == 366 * 86_400


@pytest.mark.parametrize("name", ["", "1x", "a" * 65, "a b", "a#b", "a/b", "ä", "a\n", "_lease", None])
def test_a_bad_limit_name_is_refused(name: Any) -> None:
    for make in (Limit.per_minute, Limit.concurrent):
        with pytest.raises(ValidationError, match="limit name"):
            make(name, 1)


def test_a_limit_lacking_a_field() -> None:
    with pytest.raises(ValidationError, match="refill_amount"):
        Limit.from_dict({"name": "x", "capacity": 1})
    with pytest.raises(ValidationError, match="ttl_seconds"):
        Limit.from_dict({"name": "x", "slots": 1})


def test_a_refusal_survives_pickle() -> None:
    status = LimitStatus("e", "r", "rpm", Limit.per_minute("rpm", 1), 0, 1, True, 1500)
    error = RateLimitExceeded([status])
    copy = pickle.loads(pickle.dumps(error))
    assert copy.as_dict() == error.as_dict()
    assert (copy.retry_after_seconds, copy.retry_after_header) == (1.5, "2")


HUGE = (10**5000, Decimal("1e999999999"), Decimal("1e-999999999"), Decimal("sNaN"), Fraction(1, 10**5000), 10**400)


@pytest.mark.parametrize("value", [*HUGE, *(-value for value in HUGE if value.__class__ is int)], ids=lambda value: "")
def test_numbers_beyond_all_measure_are_refused_at_once(value: Any) -> None:
    """Written out they would take all memory, and a message cannot show them."""
    for make in (lambda: amount_to_milli(value, "x"), lambda: Limit("x", value, 1, 1), lambda: Limit("x", 1, 1, value)):
        with pytest.raises(ValidationError):
            make()
    with (
        nullcontext() if any(value is fine for fine in (HUGE[2], HUGE[4])) else pytest.raises(ValidationError)
    ):  # so short a wait is none
        wait_to_ms(value, "max_wait")
