"""Requests on two buckets of 64 shards, more items than a transaction holds: all of it is done once or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dynamodb_helpers import START_MS, available, new_table, opened, request, spread, used
from dynamodb_limiters import at_once, patiently

from headgate.core.decide import FORCE, LOWER, PENALIZE, TAKE, Answer, Mode, Part, Request
from headgate.core.errors import RateLimiterUnavailable
from headgate.core.limit import Limit
from headgate.stores.dynamodb.url import read_url
from local_servers.dynamodb import Engine, Proxy

LIMIT = Limit.per_day("n", 64_000)
SHARDS = 64
KEYS = ("n/child#r", "n/parent#r")


@pytest.fixture(scope="module")
def url(ministack: Engine, aws_credentials: str) -> str:
    """Of a table with both buckets, which every test leaves as full as it found them."""
    return new_spread_table(ministack)


@pytest.fixture
def proxy(ministack: Engine) -> Iterator[Proxy]:
    with Proxy(ministack.endpoint_url) as proxy:
        yield proxy


def new_spread_table(engine: Engine) -> str:
    url = new_table(engine)
    with opened(url) as store:
        for entity in ("child", "parent"):
            spread(store, LIMIT, SHARDS, entity)
    return url


@pytest.fixture
def direct(url: str) -> Iterator[Any]:
    with opened(url) as store:
        fill(store)
        yield store


def fill(store: Any) -> None:
    both(store, FORCE, -200_000)
    assert left(store) == [64_000, 64_000]


def both(store: Any, mode: Mode, amount: int, limit: Limit = LIMIT) -> Answer:
    (answer,) = store.settle([request(limit, amount, mode, *KEYS)], START_MS)
    return answer


def left(store: Any, limit: Limit = LIMIT) -> list[float]:
    return [available(store, limit, key=key) / 1000 for key in KEYS]


@pytest.mark.parametrize("amount", [5000, 60_000, 64_000, 64_001])
def test_a_take_is_of_both_levels_or_of_none(direct: Any, amount: int) -> None:
    allowed = amount <= 64_000
    assert both(direct, TAKE, amount).allowed is allowed
    assert left(direct) == [64_000 - amount * allowed] * 2


def test_a_take_that_the_second_level_refuses_leaves_the_first_as_it_was(direct: Any) -> None:
    direct.settle([request(LIMIT, 10_000, FORCE, "n/parent#r")], START_MS)
    answer = both(direct, TAKE, 60_000)
    assert not answer.allowed
    assert [level[0] for level in answer.levels] == [64_000_000, 54_000_000]
    assert left(direct) == [64_000, 54_000]


def test_a_take_of_few_shards_is_one_transaction_of_few_items(url: str, direct: Any, proxy: Proxy) -> None:
    with opened(proxy.url(read_url(url).table)) as store:
        assert both(store, TAKE, 5000).allowed
        (transaction,) = [one for one in proxy.requests if one.operation == "TransactWriteItems"]
        assert len(transaction.body["TransactItems"]) == 10


def test_a_debt_is_the_same_on_every_level(direct: Any) -> None:
    both(direct, FORCE, 100_000)
    assert left(direct) == [-36_000, -36_000]
    both(direct, FORCE, -40_000)
    assert left(direct) == [4000, 4000]
    assert both(direct, TAKE, 4000).allowed
    assert not both(direct, TAKE, 1).allowed


def test_lowering_leaves_the_amount_on_every_level(direct: Any) -> None:
    both(direct, LOWER, 1000)
    assert left(direct) == [1000, 1000]


def test_a_penalty_is_on_all_shards_of_every_level_once(direct: Any) -> None:
    parts = tuple(Part(level, LIMIT, 0) for level in range(2))
    direct.settle([Request(PENALIZE, KEYS, parts, keep_milli=500)], START_MS)
    assert left(direct) == [32_000, 32_000]


@pytest.mark.parametrize("amount", [1, 5000, 60_000, 90_000])
def test_a_changed_limit_is_on_all_shards_of_every_level(direct: Any, amount: int) -> None:
    """And it holds even if the request is refused."""
    larger = Limit.per_day("n", 80_000)
    allowed = amount <= 80_000
    assert both(direct, TAKE, amount, larger).allowed is allowed
    assert left(direct, larger) == [80_000 - amount * allowed] * 2
    both(direct, FORCE, 0)  # as it was, for the others
    fill(direct)


# What goes wrong at each request of one, the first, the second, ...


def throttle_all(proxy: Proxy) -> None:
    proxy.fail(MANY, "ThrottlingException")


def lose_the_reply(proxy: Proxy) -> None:
    proxy.lose_replies(1)


def be_silent(proxy: Proxy) -> None:
    proxy.lose_replies(1, silently=True)


def fail_inside(proxy: Proxy) -> None:
    proxy.fail(1, "InternalServerError")


MANY = 10_000
Fault = Callable[[Proxy], None]


def at_every_request(
    url: str, direct: Any, proxy: Proxy, fault: Fault, mode: Mode, amount: int, timeout_seconds: float = 20.0
) -> list[bool]:
    """Let it happen at the first request, then at the second, ... Whether each was answered nevertheless."""
    before = 62_000 if amount > 0 else 2000
    answered: list[bool] = []
    while True:
        too_many = [int(one) - before for one in left(direct)]
        direct.settle([request(LIMIT, surplus, FORCE, key) for surplus, key in zip(too_many, KEYS)], START_MS)
        with opened(proxy.url(read_url(url).table), timeout_seconds) as store:
            patiently(lambda: left(store))  # a store that knows all shards
            proxy.forget()
            proxy.before(lambda request: None, len(answered))
            fault(proxy)
            try:
                answer = both(store, mode, amount)
            except RateLimiterUnavailable:
                answer = None
            happened = proxy.left < (MANY if fault is throttle_all else 1)
            proxy.forget()
        now = left(direct)
        if answer is None:
            least, most = sorted((before, before - amount))
            assert all(least <= one <= most for one in now), f"request {len(answered)}"
        else:
            assert answer.allowed
            assert now == [before - amount] * 2, f"request {len(answered)}"
        if not happened:
            return answered
        answered.append(answer is not None)


@pytest.mark.parametrize(
    ("fault", "mode", "amount"),
    [
        (lose_the_reply, TAKE, 60_000),
        (fail_inside, FORCE, 70_000),
        (lose_the_reply, FORCE, -5000),
    ],
)
def test_what_fails_once_is_done_once(
    url: str, direct: Any, proxy: Proxy, fault: Fault, mode: Mode, amount: int
) -> None:
    """All are reads and transactions that may be sent again, so each is done in the end."""
    answered = at_every_request(url, direct, proxy, fault, mode, amount)
    assert len(answered) > 2
    assert all(answered)


@pytest.mark.parametrize(("fault", "mode", "amount"), [(be_silent, TAKE, 60_000), (throttle_all, FORCE, 60_000)])
def test_what_fails_for_good_is_never_done_twice(
    url: str, direct: Any, proxy: Proxy, fault: Fault, mode: Mode, amount: int
) -> None:
    assert not all(at_every_request(url, direct, proxy, fault, mode, amount, 1.0))


def test_a_take_is_given_back_to_the_first_level_if_another_was_faster_on_the_second(
    url: str, direct: Any, proxy: Proxy
) -> None:
    theirs = request(LIMIT, 10_000, FORCE, "n/parent#r")
    with opened(proxy.url(read_url(url).table)) as store:
        left(store)
        proxy.forget()
        proxy.before(lambda request: None, operation="TransactWriteItems")
        proxy.before(lambda request: direct.settle([theirs], START_MS), operation="TransactWriteItems")
        assert not both(store, TAKE, 60_000).allowed
        assert proxy.left == 0
    assert left(direct) == [64_000, 54_000]


def test_a_take_is_given_back_to_the_first_level_if_the_second_is_silent_for_too_long(
    url: str, direct: Any, proxy: Proxy
) -> None:
    with opened(proxy.url(read_url(url).table), 5.0) as store:
        patiently(lambda: left(store))
        proxy.forget()
        proxy.before(lambda request: None, operation="TransactWriteItems")
        proxy.refuse(operation="TransactWriteItems", silently=True)
        with pytest.raises(RateLimiterUnavailable):
            both(store, TAKE, 60_000)
        assert proxy.left == 0
    assert left(direct) == [64_000, 64_000]


@pytest.mark.parametrize(("name", "amount"), [("ministack", 1000), ("ministack", 7000), ("dynamodb_local", 7000)])
def test_contending_limiters_are_charged_what_they_were_granted(
    request: pytest.FixtureRequest, aws_credentials: str, name: str, amount: int
) -> None:
    """Some of it goes back again. Usage is counted as well."""
    url = new_spread_table(request.getfixturevalue(name))
    granted = [0] * 4
    start = threading.Barrier(4)

    def work(number: int) -> None:
        with opened(url, 60) as store:
            store._plans.hours.kept_ms = 90 * 86_400_000
            left(store)
            start.wait()
            for turn in range(4):
                if both(store, TAKE, amount).allowed:
                    granted[number] += amount
                    if turn % 2:
                        both(store, FORCE, -amount)
                        granted[number] -= amount

    at_once([lambda number=number: work(number) for number in range(4)])  # type: ignore[misc]
    with opened(url) as store:
        assert left(store) == [64_000 - sum(granted)] * 2
        counted = [sum(used(store, entity, "r").values()) for entity in ("child", "parent")]
        assert counted == [sum(granted) * 1000] * 2
