"""What is taken of the shards of a bucket and given back is all there again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from dynamodb_helpers import START_MS, available, force, new_table, opened, place_of, request, split, spread, used
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.core.decide import FORCE, TAKE, Part, Request
from headgate.core.limit import Limit
from headgate.stores.dynamodb.url import read_url
from local_servers.dynamodb import Engine, Proxy

LIMIT = Limit.per_day("n", 6400)


@pytest.fixture(scope="module")
def engine(ministack: Engine, aws_credentials: str) -> Engine:
    return ministack


@pytest.fixture(scope="module")
def url(engine: Engine) -> str:
    return new_table(engine)


@pytest.fixture
def store(url: str) -> Iterator[Any]:
    with opened(url) as store:
        store.delete_buckets(["n/e#r"])
        yield store


def milli(amount_milli: int) -> Request:
    return Request(TAKE if amount_milli >= 0 else FORCE, ("n/e#r",), (Part(0, LIMIT, amount_milli),))


@pytest.mark.parametrize("taken", [[6400], [100] * 64, [3200, 1600, 1600], [5000]])
def test_a_rollback_over_64_shards_gives_back_everything(store: Any, taken: list[int]) -> None:
    spread(store, LIMIT, 64)
    for amount in taken:
        assert store.settle([request(LIMIT, amount)], START_MS)[0].allowed
    force(store, LIMIT, -sum(taken))
    assert available(store, LIMIT) == 6400_000


amounts = st.one_of(st.integers(1, 3000), st.integers(1, 3_000_000))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, 4),
    st.lists(amounts, min_size=1, max_size=12),
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=8),
)
def test_what_is_given_back_in_any_order_is_there_again(
    url: str, store: Any, splits: int, wanted: list[int], pieces: list[tuple[float, bool]]
) -> None:
    """In pieces of any size, by the process that took it or by another."""
    store.delete_buckets(["n/e#r"])
    spread(store, LIMIT, 1 << splits)
    full = available(store, LIMIT)
    taken = sum(amount for amount in wanted if store.settle([milli(amount)], START_MS)[0].allowed)
    assert available(store, LIMIT) == full - taken
    with opened(url) as another:
        given_back = 0
        for share, by_another in [*pieces, (1, False)]:
            amount = int((taken - given_back) * share)
            (another if by_another else store).settle([milli(-amount)], START_MS)
            given_back += amount
            assert available(store, LIMIT) == full - taken + given_back
        assert given_back == taken


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(amounts, min_size=1, max_size=8), st.integers(1, 3))
def test_a_batch_gives_back_as_much_as_one_after_the_other(store: Any, wanted: list[int], splits: int) -> None:
    store.delete_buckets(["n/e#r"])
    spread(store, LIMIT, 1 << splits)
    full = available(store, LIMIT)
    answers = store.settle([milli(amount) for amount in wanted], START_MS)
    taken = [amount for amount, answer in zip(wanted, answers) if answer.allowed]
    assert available(store, LIMIT) == full - sum(taken)
    store.settle([milli(-amount) for amount in taken], START_MS)
    assert available(store, LIMIT) == full


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(6401, 20_000), st.lists(st.integers(801, 9000), min_size=1, max_size=4))
def test_no_shard_has_tokens_to_give_away_while_another_is_in_debt(store: Any, charged: int, back: list[int]) -> None:
    """Amounts that concern all shards."""
    store.delete_buckets(["n/e#r"])
    spread(store, LIMIT, 8)
    force(store, LIMIT, charged)
    left = 6400 - charged
    for amount in back:
        force(store, LIMIT, -amount)
        left = min(6400, left + amount)
        assert available(store, LIMIT) == left * 1000
        if left <= 0:
            assert not any(store.settle([request(LIMIT, 1)], START_MS)[0].allowed for _ in range(4))
        (pool,) = store._run(store._plans._buckets._cross_shard.pools_plan([place_of(store)], START_MS))
        tokens = [bucket.tokens_milli for bucket in pool.buckets(milli(1).parts[0])]
        assert min(tokens) > -8 or max(tokens) < 8, "to a thousandth of a token for each shard"


def test_a_split_in_between_costs_at_most_a_thousandth_for_each_shard(store: Any) -> None:
    for amount_milli in (1, 3333, 777_777):
        store.delete_buckets(["n/e#r"])
        assert store.settle([milli(amount_milli)], START_MS)[0].allowed
        for _ in range(3):
            split(store)
        split(store, 1)
        store.settle([milli(-amount_milli)], START_MS)
        assert 6400_000 - 6 <= available(store, LIMIT) <= 6400_000


def test_more_than_is_missing_fills_the_bucket_and_is_counted_as_given_back(store: Any) -> None:
    store._plans.hours.kept_ms = 90 * 86_400_000
    spread(store, LIMIT, 8)
    before = sum(used(store).values())
    store.settle([milli(5_000_000)], START_MS)
    store.settle([milli(-6_000_000)], START_MS)
    assert available(store, LIMIT) == 6400_000
    assert sum(used(store).values()) - before == -1_000_000


def test_giving_back_what_one_shard_lacks_is_one_write_and_no_read(engine: Engine, url: str, store: Any) -> None:
    spread(store, LIMIT, 8)
    with Proxy(engine.endpoint_url) as proxy, opened(proxy.url(read_url(url).table)) as ours:
        available(ours, LIMIT)
        assert ours.settle([request(LIMIT, 10)], START_MS)[0].allowed
        proxy.forget()
        ours.settle([request(LIMIT, -10, FORCE)], START_MS)
        assert [one.operation for one in proxy.requests] == ["UpdateItem"]


def test_giving_back_to_full_shards_reads_them_five_times_a_second_at_most(
    engine: Engine, url: str, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a bucket that is hardly used would cost more with every release."""
    monkeypatch.setattr("headgate.stores.dynamodb.cache.monotonic", lambda: 1000.0)
    spread(store, LIMIT, 8)
    with Proxy(engine.endpoint_url) as proxy, opened(proxy.url(read_url(url).table)) as ours:
        available(ours, LIMIT)
        proxy.forget()
        for _ in range(20):
            ours.settle([request(LIMIT, -10, FORCE)], START_MS)
        assert proxy.count("UpdateItem") == 20
        assert 2 <= proxy.count("BatchGetItem") <= 10


def test_one_who_gives_back_meanwhile_takes_nothing_away(engine: Engine, url: str, store: Any) -> None:
    """Both believe that the same shard has room for what they give."""
    spread(store, LIMIT, 4)
    with Proxy(engine.endpoint_url) as proxy, opened(proxy.url(read_url(url).table)) as ours:
        for shard in range(2):  # of two shards, the same of each
            store._run(_take_of(store, shard, 50_000))
        available(ours, LIMIT)
        available(store, LIMIT)
        proxy.before(lambda _: store.settle([milli(-50_000)], START_MS), operation="UpdateItem")
        ours.settle([milli(-50_000)], START_MS)
        assert proxy.left == 0
    assert available(store, LIMIT) == 6400_000


def test_slots_given_back_beside_tokens_are_given_back_once(engine: Engine, url: str, store: Any) -> None:
    """The slots were given back when it turns out that the shard has no room for the tokens any more."""
    slots = Limit.concurrent("c", 5, ttl=60)
    mine = Request(TAKE, ("n/e#r",), (Part(0, slots, 3000), Part(0, LIMIT, 0)), lease_id="mine")
    spread(store, LIMIT, 4)
    with Proxy(engine.endpoint_url) as proxy, opened(proxy.url(read_url(url).table)) as ours:
        for shard in range(2):
            store._run(_take_of(store, shard, 50_000))
        available(ours, LIMIT)
        available(store, LIMIT)
        assert ours.settle([mine], START_MS)[0].allowed
        one_slot = Request(FORCE, ("n/e#r",), (Part(0, slots, -1000), Part(0, LIMIT, -50_000)), lease_id="mine")
        proxy.before(lambda _: store.settle([milli(-50_000)], START_MS), 2, operation="UpdateItem")
        (answer,) = ours.settle([one_slot], START_MS)
        assert [level[0] for level in answer.levels] == [3000, 6400_000]
    assert available(store, slots) == 3000
    assert available(store, LIMIT) == 6400_000


def _take_of(store: Any, shard: int, amount_milli: int) -> Any:
    """A take of one shard, chosen by the test."""
    (pool,) = yield from store._plans._buckets._cross_shard.pools_plan([place_of(store)], START_MS)
    ledger = pool.ledgers[shard]
    ledger.move(milli(1).parts[0], amount_milli, TAKE)
    yield from store._plans._settler._writer.write_plan({ledger: ledger.write()}, [])
