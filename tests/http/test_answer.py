"""What a caller is told, in the header fields of draft-ietf-httpapi-ratelimit-headers and in problem details."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limit, LimitStatus, RateLimitExceeded, SyncRateLimiter, ValidationError
from headgate.http.answer import Headers, by_policy, problem, seconds_until_reset, too_many
from headgate.testing import ManualClock

CLOCK = ManualClock(1_700_000_000_000)
ALL = ("ratelimit", "x-ratelimit", "retry-after")
ITEM = re.compile(r'"[A-Za-z0-9_.:/-]+"(;[a-z]+=(\d+|"[a-z-]+"))+')
specs = st.sampled_from(
    ["10/minute", "5/second burst 20", "100/hour burst 7", "0.5/day", "3 concurrent ttl 5s", "7/90s"]
)


def decided(*limits: Limit, amount: int = 1, times: int = 1) -> list[LimitStatus]:
    with SyncRateLimiter("memory://", clock=CLOCK) as limiter:
        for _ in range(times):
            decision = limiter.try_acquire("e", "r", {limit.name: amount for limit in limits}, limits)
        return decision.statuses


def status(spec: str, available: int, *, name: str = "minute", resource: str = "r", wait_ms: int = 0) -> LimitStatus:
    limit = Limit.parse(name, spec)
    return LimitStatus("e", resource, name, limit, available, 1, bool(wait_ms), wait_ms)


def test_headers_of_a_passed_request_show_every_limit() -> None:
    statuses = decided(Limit.parse("minute", "10/minute burst 20"), Limit.parse("day", "1000/day"))
    assert Headers(ALL).of(statuses, CLOCK) == [
        ("RateLimit-Policy", '"minute";q=20;w=120, "day";q=1000;w=86400'),
        ("RateLimit", '"minute";r=19;t=6, "day";r=999;t=87'),
        ("X-RateLimit-Limit", "20"),
        ("X-RateLimit-Remaining", "19"),
        ("X-RateLimit-Reset", "1700000006"),
    ]


def test_headers_of_a_refusal_say_when_to_retry() -> None:
    refused = RateLimitExceeded(decided(Limit.parse("minute", "2/minute"), times=3))
    headers = dict(Headers(ALL).of_refusal(refused, CLOCK))
    assert headers["RateLimit"] == '"minute";r=0;t=30'
    assert headers["Retry-After"] == "30"
    answer = too_many(refused, [])
    assert answer.status == 429
    assert dict(answer.headers)["Content-Type"] == "application/problem+json"
    assert json.loads(answer.body) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota exceeded",
        "status": 429,
        "detail": "minute allows 2/minute; retry in 30 s",
        "violated-policies": ["minute"],
        "retry_after_seconds": 30.0,
    }


def test_refusal_that_can_never_pass_has_no_retry_after() -> None:
    refused = RateLimitExceeded(decided(Limit.parse("minute", "2/minute"), amount=3))
    assert "Retry-After" not in dict(Headers(ALL).of_refusal(refused, CLOCK))
    body = json.loads(too_many(refused, []).body)
    assert body["retry_after_seconds"] is None
    assert "ask for less" in body["detail"]


def test_slots_have_no_window() -> None:
    headers = dict(Headers().of(decided(Limit.concurrent("parallel", 5)), CLOCK))
    assert headers == {"RateLimit-Policy": '"parallel";q=5;qu="concurrent-requests"', "RateLimit": '"parallel";r=4'}


@given(st.lists(st.tuples(specs, st.integers(-5, 30), st.integers(0, 9999)), min_size=1, max_size=5))
def test_every_field_can_be_parsed(rows: list[tuple[str, int, int]]) -> None:
    statuses = [status(spec, left, name=f"n{at}", wait_ms=wait) for at, (spec, left, wait) in enumerate(rows)]
    headers = dict(Headers(ALL).of(statuses, CLOCK))
    for field in ("RateLimit", "RateLimit-Policy"):
        items = headers[field].split(", ")
        assert len(items) == len(rows)
        assert all(ITEM.fullmatch(item) for item in items)
    assert all(int(headers[f"X-RateLimit-{what}"]) >= 0 for what in ("Limit", "Remaining", "Reset"))


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 5000))
def test_at_its_reset_the_quota_is_whole_and_a_second_before_it_is_not(capacity: int, used: int, period: int) -> None:
    limit = Limit("n", capacity, 7, period)
    clock = ManualClock(1_700_000_000_000)
    with SyncRateLimiter("memory://", clock=clock) as limiter:
        decision = limiter.try_acquire("e", "r", {"n": min(used, capacity)}, [limit])
        seconds = seconds_until_reset(decision.statuses[0])
        clock.advance(max(0, seconds - 1))
        assert limiter.available("e", "r", [limit])["n"] < capacity
        clock.advance(min(1, seconds))
        assert limiter.available("e", "r", [limit])["n"] == capacity


@given(st.integers(0, 999), st.integers(1, 20), st.integers(1, 500))
def test_x_ratelimit_reset_is_never_early_and_less_than_a_second_late(late_ms: int, capacity: int, period: int) -> None:
    limit = Limit("n", capacity, 7, period)
    clock = ManualClock(1_700_000_000_000 + late_ms)
    with SyncRateLimiter("memory://", clock=clock) as limiter:
        decision = limiter.try_acquire("e", "r", {"n": 1}, [limit])
        reset_ms = int(dict(Headers(["x-ratelimit"]).of(decision.statuses, clock))["X-RateLimit-Reset"]) * 1000
        clock.set(max(clock.now_ms(), reset_ms - 1000))
        assert limiter.available("e", "r", [limit])["n"] < capacity
        clock.set(reset_ms)
        assert limiter.available("e", "r", [limit])["n"] == capacity


def test_x_ratelimit_reset_of_a_refusal_is_not_before_the_request_passes() -> None:
    clock = ManualClock(1_700_000_000_900)
    limit = Limit.per_second("n", 1)
    with SyncRateLimiter("memory://", clock=clock) as limiter:
        for _ in range(2):
            decision = limiter.try_acquire("e", "r", {"n": 1}, [limit])
        reset = int(dict(Headers(["x-ratelimit"]).of(decision.statuses, clock))["X-RateLimit-Reset"])
        clock.set(reset * 1000)
        assert limiter.try_acquire("e", "r", {"n": 1}, [limit])


@given(
    st.integers(1, 10**12),
    st.integers(1, 10**12),
    st.integers(1, 366 * 86400),
    st.integers(-(10**12), 10**12),
    st.one_of(st.none(), st.integers(0, 10**18)),
)
def test_every_number_is_an_integer_of_a_structured_field(
    capacity: int, refill: int, period: int, left: int, wait_ms: int | None
) -> None:
    limit = Limit("n", capacity, refill / 1000 if refill < 10**9 else refill, period)
    found = LimitStatus("e", "r", "n", limit, min(left, capacity), 1, wait_ms != 0, wait_ms)
    headers = dict(Headers().of([found], CLOCK))
    numbers = re.findall(r"=(-?\d+)", headers["RateLimit"] + headers["RateLimit-Policy"])
    assert all(len(number) <= 15 for number in numbers)
    assert all(ITEM.fullmatch(headers[field]) for field in headers)


def test_window_that_cannot_be_written_is_left_out() -> None:
    slow = Limit("n", 10**12, 0.001, 366 * 86400)
    headers = dict(Headers().of([status_of(slow, 5)], CLOCK))
    assert headers == {"RateLimit-Policy": '"n";q=1000000000000', "RateLimit": '"n";r=5'}


def status_of(limit: Limit, available: int) -> LimitStatus:
    return LimitStatus("e", "r", limit.name, limit, available, 1, False, 0)


def test_where_two_rules_count_their_names_are_told_apart() -> None:
    statuses = [status("10/minute", 5, resource="search"), status("100/minute", 9, resource="all")]
    assert list(by_policy(statuses)) == ["search:minute", "all:minute"]
    ancestors = [status("10/minute", 5), status("20/minute", 1), status("100/minute", 90)]
    assert by_policy(ancestors) == {"minute": ancestors[1]}, "one of the chain, the tightest, and not whose it is"


@pytest.mark.parametrize(
    ("kinds", "names"),
    [
        (["ratelimit"], {"RateLimit-Policy", "RateLimit"}),
        (["retry-after"], {"Retry-After"}),
        (["x-ratelimit"], {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}),
        ([], set()),
    ],
)
def test_kinds_of_headers_can_be_chosen_and_others_are_refused(kinds: list[str], names: set[str]) -> None:
    refused = RateLimitExceeded(decided(Limit.parse("minute", "2/minute"), times=3))
    assert set(dict(Headers(kinds).of_refusal(refused, CLOCK))) == names  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="'x-rate'"):
        Headers(["x-rate"])  # type: ignore[list-item]


def test_a_problem_of_no_registered_kind() -> None:
    assert json.loads(problem(400, "", "Bad Request", "why", []).body)["type"] == "about:blank"
