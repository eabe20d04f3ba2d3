"""Buckets over several items: never more than before, and hardly ever less."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from dynamodb_helpers import (
    START_MS,
    available,
    force,
    new_table,
    opened,
    place_of,
    request,
    split,
    split_halfway,
    take_all,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headgate.core.decide import FORCE, PENALIZE, TAKE, Part, Request
from headgate.core.limit import Limit
from headgate.stores.dynamodb import cache, cross_shard
from local_servers.dynamodb import Engine

LIMIT = Limit.per_minute("rpm", 60)
TAKING_TURNS = [Limit.parse("rpm", spec) for spec in ("60/minute", "10/day", "200/hour burst 21", "7/19s burst 33.336")]
SECOND = 1000


@pytest.fixture(scope="module")
def engine(ministack: Engine, aws_credentials: str) -> Engine:
    return ministack


@pytest.fixture
def url(engine: Engine) -> str:
    return new_table(engine)


@pytest.fixture
def store(url: str) -> Iterator[Any]:
    with opened(url) as store:
        yield store


def shards_of(store: Any) -> dict[int, int]:
    """The shards there are, and of how many each believes to be one."""
    rows = store._run(store._plans._buckets._cross_shard.rows_plan([place_of(store, shard) for shard in range(64)]))
    return {place.shard: row.shard_count for place, row in rows.items()}


def exactly_available(store: Any, limit: Limit) -> Fraction:
    """In millitokens, with what is below one on each shard."""
    (pool,) = store._run(store._plans._buckets._cross_shard.pools_plan([place_of(store)], START_MS))
    total = Fraction(0)
    for ledger in pool.ledgers:
        bucket = ledger.bucket(Part(0, limit, 0))
        total += (bucket.tokens_milli + Fraction(bucket.remainder, limit.period_ms)) / ledger.shards
    return total


def test_a_split_changes_no_sum(store: Any) -> None:
    store.settle([request(LIMIT, 11)], START_MS)
    for expected in ({0: 2, 1: 2}, {0: 4, 1: 2, 2: 4}, {0: 8, 1: 2, 2: 4, 4: 8}):
        split(store)
        assert shards_of(store) == expected
        assert available(store, LIMIT) == 49_000
    split(store, 1)
    split(store, 1)
    assert shards_of(store) == {0: 8, 1: 8, 2: 4, 3: 4, 4: 8, 5: 8}
    assert available(store, LIMIT) == 49_000
    assert take_all(store, LIMIT) == 49


def test_no_shard_gets_ahead_of_the_first(store: Any) -> None:
    store.settle([request(LIMIT, 1)], START_MS)
    split(store)
    for _ in range(3):
        assert split(store, 1) == 2
    assert shards_of(store) == {0: 2, 1: 2}


def test_there_are_no_more_than_the_url_says(engine: Engine) -> None:
    with opened(f"{new_table(engine)}&shards=2") as store:
        store.settle([request(LIMIT, 1)], START_MS)
        for _ in range(3):
            split(store)
        assert shards_of(store) == {0: 2, 1: 2}


@pytest.mark.parametrize("amount", [1, 7, 20, 60])
def test_everything_can_be_taken(store: Any, amount: int) -> None:
    """What does not fit into one shard is taken of several, in one transaction."""
    store.settle([request(LIMIT, 0, PENALIZE)], START_MS - 1)
    for _ in range(3):
        split(store)
    assert take_all(store, LIMIT, amount) == 60 // amount
    assert available(store, LIMIT) == 60_000 - 60 // amount * amount * 1000


def test_a_refusal_says_when(store: Any) -> None:
    store.settle([request(LIMIT, 60)], START_MS)
    for _ in range(2):
        split(store)
    (answer,) = store.settle([request(LIMIT, 30)], START_MS)
    assert (answer.allowed, answer.wait_ms) == (False, 30 * SECOND)
    assert not store.settle([request(LIMIT, 30)], START_MS + 30 * SECOND - 1)[0].allowed
    assert store.settle([request(LIMIT, 30)], START_MS + 30 * SECOND)[0].allowed
    (answer,) = store.settle([request(LIMIT, 61)], START_MS)
    assert (answer.allowed, answer.wait_ms) == (False, None)


def test_reservation_over_shards_waits_as_on_one_item(store: Any) -> None:
    store.settle([request(LIMIT, 60)], START_MS)
    split(store)
    (answer,) = store.settle([request(LIMIT, 40, max_wait_ms=40 * SECOND)], START_MS)
    assert (answer.allowed, answer.wait_ms) == (True, 40 * SECOND)
    assert not store.settle([request(LIMIT, 21, max_wait_ms=60 * SECOND)], START_MS)[0].allowed


def test_debt_over_shards_is_repaid_before_anything_passes(store: Any) -> None:
    store.settle([request(LIMIT, 1)], START_MS)
    split(store)
    split(store)
    force(store, LIMIT, 100)
    assert available(store, LIMIT) == -41_000
    assert take_all(store, LIMIT) == 0
    force(store, LIMIT, -41)
    assert available(store, LIMIT) == 0
    force(store, LIMIT, -500)
    assert available(store, LIMIT) == 60_000


def test_what_was_taken_can_be_given_back(store: Any) -> None:
    """It is given to the shards that lack the most."""
    store.settle([request(LIMIT, 1)], START_MS)
    for _ in range(3):
        split(store)
    for _ in range(20):
        assert store.settle([request(LIMIT, 4)], START_MS)[0].allowed
        force(store, LIMIT, -4)
    assert available(store, LIMIT) == 59_000


def test_a_penalty_is_on_all(store: Any) -> None:
    store.settle([request(LIMIT, 1)], START_MS)
    split(store)
    part = Part(0, LIMIT, 0)
    store.settle([Request(PENALIZE, ("n/e#r",), (part,), block_ms=5 * SECOND)], START_MS)
    assert take_all(store, LIMIT, now_ms=START_MS + 5 * SECOND - 1) == 0
    assert take_all(store, LIMIT, now_ms=START_MS + 5 * SECOND) == 60


def test_a_changed_limit_is_on_all(store: Any) -> None:
    store.settle([request(LIMIT, 60)], START_MS)
    split(store)
    split(store)
    assert take_all(store, Limit.per_minute("rpm", 100)) == 40
    assert available(store, LIMIT) == -40_000
    assert available(store, Limit.per_minute("rpm", 101)) == 1000


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@example(
    [TAKING_TURNS[turn] for turn in (2, 0, 1, 0, 3, 0)], [7, 2, 7, 1, 20, 1, 1, 1, 1, 1, 1, 1], 3
)  # splits an odd number
@given(
    st.lists(st.sampled_from(TAKING_TURNS), min_size=5, max_size=12),
    st.lists(st.sampled_from([1, 1, 2, 3, 7, 20]), min_size=12, max_size=12),
    st.integers(1, 3),
)
def test_limits_that_take_turns_on_shards_keep_what_was_used(
    store: Any, limits: list[Limit], amounts: list[int], splits: int
) -> None:
    """Exactly, whichever shards a request met: each has its share of every difference.

    A busy shard is split meanwhile. Half of an odd number of millitokens cannot be taken alone, so what is available
    is below what there is by less than a millitoken a shard.
    """
    store.delete_buckets(["n/e#r"])
    used = 0
    store.settle([request(limits[0], 0, FORCE)], START_MS)
    for _ in range(splits):
        split(store)
    for limit, amount in zip(limits, amounts):
        if store.settle([request(limit, amount)], START_MS)[0].allowed:
            used += amount * 1000
        else:  # by all shards together
            assert used + amount * 1000 > limit.capacity_milli - len(shards_of(store))
    for other in TAKING_TURNS:
        there = other.capacity_milli - used
        assert exactly_available(store, other) == there
        assert there - len(shards_of(store)) < available(store, other) <= there
    assert used <= max(limit.capacity_milli for limit in limits)


def test_one_split_halfway_has_lost_nothing_for_good(url: str, store: Any) -> None:
    """Half is missing until someone makes the sibling."""
    store.settle([request(LIMIT, 20)], START_MS)
    split_halfway(store)
    assert shards_of(store) == {0: 2}
    with opened(url) as another:
        assert available(another, LIMIT) == 20_000
        taken = 0
        while len(shards_of(another)) == 1:
            taken += another.settle([request(LIMIT, 1)], START_MS)[0].allowed
        assert shards_of(another) == {0: 2, 1: 2}
        assert available(another, LIMIT) == 40_000 - taken * 1000


@pytest.mark.parametrize("changed", ["6000/minute burst 60", "60/hour", "7/19s burst 60"])
def test_a_sibling_made_after_the_limit_changed_has_what_was_left_at_the_split(
    url: str, store: Any, changed: str
) -> None:
    limit = Limit.parse("rpm", changed)
    store.settle([request(LIMIT, 60)], START_MS)
    split_halfway(store)
    assert shards_of(store) == {0: 2}
    with opened(url) as another:
        assert not another.settle([request(limit, 1)], START_MS)[0].allowed
        another._run(another._plans.shards.split_plan(place_of(store), following=True))
        assert shards_of(another) == {0: 2, 1: 2}
        assert available(another, limit) == 0
        assert take_all(another, limit) == 0
        refilled = 10 * SECOND * limit.refill_milli // limit.period_ms // 1000
        assert take_all(another, limit, now_ms=START_MS + 10 * SECOND) == min(60, refilled)


def test_nothing_passes_on_shards_unless_they_are_in_debt(store: Any) -> None:
    store.settle([request(LIMIT, 60)], START_MS)
    split(store)
    split(store)
    for _ in range(8):
        assert store.settle([request(LIMIT, 0)], START_MS)[0].allowed
    force(store, LIMIT, 100)
    for _ in range(8):
        (answer,) = store.settle([request(LIMIT, 0)], START_MS)
        assert (answer.allowed, answer.wait_ms) == (False, 100 * SECOND)


def test_nothing_of_empty_shards_is_taken_beside_what_others_have(store: Any) -> None:
    """Decided on all of them, and once more because somebody else was faster."""
    other = Limit.per_minute("tpm", 60)
    both = (Part(0, LIMIT, 0), Part(0, other, 40_000))
    store.settle([request(LIMIT, 60), request(other, 1)], START_MS)
    split(store)
    (pool,) = store._run(store._plans._buckets._cross_shard.pools_plan([place_of(store)], START_MS))
    assert cross_shard._decide(Request(TAKE, ("n/e#r",), both), [pool], again=True).allowed
    assert store.settle([Request(TAKE, ("n/e#r",), both)], START_MS)[0].allowed
    assert (available(store, LIMIT), available(store, other)) == (0, 19_000)


@pytest.mark.parametrize(("writes", "shards"), [(700, {0: 1}), (900, {0: 2, 1: 2})])
def test_one_that_is_written_often_is_split(
    store: Any, monkeypatch: pytest.MonkeyPatch, writes: int, shards: dict[int, int]
) -> None:
    """The item counts its writes, whoever makes them: here others, in the second between two of ours."""
    seconds = 1000.0
    monkeypatch.setattr(cache, "monotonic", lambda: seconds)
    store.settle([request(LIMIT, 1)], START_MS)
    store._wire.client().update_item(
        TableName=store._plans.shards._deliver.table,
        Key=place_of(store).key,
        UpdateExpression="ADD wcu :n",
        ExpressionAttributeValues={":n": {"N": str(writes)}},
    )
    seconds += 1
    store.settle([request(LIMIT, 1)], START_MS)
    assert shards_of(store) == shards
    assert available(store, LIMIT) == 58_000


def test_reset_makes_it_one_again(store: Any) -> None:
    store.settle([request(LIMIT, 60)], START_MS)
    split(store)
    split(store)
    store.delete_buckets(["n/e#r"])
    assert shards_of(store) == {0: 1}
    assert take_all(store, LIMIT) == 60
    assert shards_of(store) == {0: 1}


def test_sweeping_takes_back_what_is_full(store: Any) -> None:
    store.settle([request(LIMIT, 10)], START_MS)
    split(store)
    split(store)
    split(store, 1)
    assert store.sweep("n", START_MS + 9 * SECOND).buckets == 0
    assert store.sweep("n", START_MS + 100 * SECOND).buckets == 1
    assert shards_of(store) == {0: 1}
    assert store.sweep("n", START_MS + 100 * SECOND).buckets == 0
    assert not store.list_buckets("n", "e", "r", None, START_MS + 100 * SECOND)
    for expected in ({0: 2, 1: 2}, {0: 4, 1: 2, 2: 4}):  # they are made anew of what is left of them
        split(store)
        assert shards_of(store) == expected
    assert take_all(store, LIMIT, now_ms=START_MS + 100 * SECOND) == 60


def test_never_more_than_there_is_while_it_is_being_split(url: str) -> None:
    """Threads with stores of their own take as fast as they can, give some back, and others split."""
    limit = Limit.per_day("rpd", 400)
    taken, errors = [0] * 3, []

    def work(number: int) -> None:
        chance = random.Random(number)
        try:
            with opened(url) as store:
                for turn in range(60):
                    amount = chance.choice([1, 1, 2, 5, 40])
                    if store.settle([request(limit, amount)], START_MS)[0].allowed:
                        taken[number] += amount
                        if chance.random() < 0.2:
                            force(store, limit, -amount)
                            taken[number] -= amount
                    if number == 0 and turn % 15 == 5:
                        split(store, chance.choice([0, 0, 1]))
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=[number]) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    with opened(url) as store:
        assert sum(taken) <= 400
        left = available(store, limit)
        assert 400_000 - sum(taken) * 1000 - left <= 64
        assert left <= 400_000 - sum(taken) * 1000
