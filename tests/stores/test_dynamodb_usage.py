"""Usage on DynamoDB: to the thousandth of a token, whatever happens to the items it is counted in."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dynamodb_helpers import START_MS, USAGE_MS, hold, new_table, opened, place_of, request, split, used
from dynamodb_tables import Driven
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.core.decide import FORCE, TAKE, Part, Request
from headgate.core.limit import Limit
from headgate.core.usage import DAY_MS, HOUR_MS, hour_of
from headgate.stores.dynamodb import places
from headgate.stores.dynamodb.exchange import Send
from headgate.stores.dynamodb.namespaces import Namespaces
from headgate.stores.dynamodb.url import read_url
from headgate.stores.dynamodb.usage import HourlyUsage, UsageCounters
from local_servers.dynamodb import Engine

RPM, TPM = Limit.per_minute("rpm", 60), Limit.custom("t_2.x", 1000, 7, 13)
SLOTS = Limit.concurrent("rpm", 3)
FEW = 19  # hours of one limit that are over, and stay where they were counted

_numbers = itertools.count()


@pytest.fixture(scope="module")
def engine(ministack: Engine, aws_credentials: str) -> Engine:
    return ministack


@pytest.fixture(scope="module")
def url(engine: Engine) -> str:
    return new_table(engine)


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[Any]:
    client = engine.client()
    yield client
    client.close()


@pytest.fixture
def stores(url: str) -> Iterator[list[Any]]:
    with opened(url) as one, opened(url) as other:
        for store in (one, other):
            store.usage_ms = USAGE_MS
        yield [one, other]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no room for hours that are over."""
    monkeypatch.setattr("headgate.stores.dynamodb.usage._MOST", 0)
    monkeypatch.setattr("headgate.stores.dynamodb.usage._LEAST", 0)


@pytest.fixture
def namespace() -> str:
    return f"n{next(_numbers)}"


def items(client: Any, url: str, store: Any, namespace: str) -> dict[tuple[str, str], Any]:
    """All of a namespace, by their keys without its id."""
    ns = store._plans.namespaces.known(namespace)
    pages = client.get_paginator("scan").paginate(TableName=read_url(url).table, ConsistentRead=True)
    found = [item for page in pages for item in page["Items"]]
    return {
        (item["PK"]["S"].partition("/")[2], item["SK"]["S"]): item
        for item in found
        if item["PK"]["S"].startswith(f"{ns}/")
    }


def counts(item: Any) -> list[int]:
    """The hours that an item counts."""
    return sorted(int(name.rpartition("_")[2]) for name in item if name.startswith("u_"))


# Any history

keys = ["e#r", "e#q", "f#r"]
takes = st.tuples(
    st.just("take"), st.integers(0, 1), st.lists(st.sampled_from(keys), min_size=1), st.integers(1, 50_000)
)
forces = st.tuples(
    st.just("force"), st.integers(0, 1), st.lists(st.sampled_from(keys), min_size=1), st.integers(-40_000, 40_000)
)
others = st.tuples(
    st.sampled_from(["split", "split", "reset", "sweep", "turn"]), st.integers(0, 1), st.sampled_from(keys), st.just(0)
)
waits = st.tuples(
    st.just("wait"), st.just(0), st.just(""), st.sampled_from([1, 60_000, HOUR_MS, HOUR_MS, 7 * HOUR_MS, 3 * DAY_MS])
)
steps = st.lists(st.one_of(takes, takes, forces, others, waits, waits), min_size=10, max_size=40)


@pytest.mark.usefixtures("eager")
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=steps)
def test_usage_of_any_history_of_shards_and_sweeps_is_exact(stores: list[Any], history: Any) -> None:
    """Two clients take and give back; items are split, emptied, swept, and have their hours put away."""
    now_ms, namespace = START_MS, f"n{next(_numbers)}"
    expected: Counter[Any] = Counter()
    for kind, who, where, amount in history:
        store = stores[who]
        if kind == "wait":
            now_ms += amount
        elif kind in ("take", "force"):
            names = [f"{namespace}/{key}" for key in where]
            mode = TAKE if kind == "take" else FORCE
            batch = [Request(mode, (key,), (Part(0, RPM, amount), Part(0, TPM, amount // 7))) for key in names]
            for key, answer in zip(where, store.settle(batch, now_ms)):
                if answer.allowed:
                    expected[(*key.split("#"), "rpm", hour_of(now_ms))] += amount
                    expected[(*key.split("#"), "t_2.x", hour_of(now_ms))] += amount // 7
        elif kind == "split" and store._plans.namespaces.known(namespace):
            entity_id, resource = where.split("#")
            place = place_of(store, 0, namespace)._replace(entity_id=entity_id, resource=resource)
            store._run(store._plans.shards.split_plan(place))
        elif kind == "reset":
            store.delete_buckets([f"{namespace}/{where}"])
        elif kind == "sweep":
            store.sweep(namespace, now_ms)
        elif kind == "turn":
            store.settle([hold(SLOTS, f"{namespace}/{where}", "lease", 1)], now_ms)
    kept = {place: milli for place, milli in expected.items() if milli and place[3] >= hour_of(now_ms - USAGE_MS)}
    for entity_id, resource in ((None, None), ("e", None), (None, "r"), ("e", "q")):
        wanted = {
            place: milli
            for place, milli in kept.items()
            if entity_id in (None, place[0]) and resource in (None, place[1])
        }
        found = used(stores[0], entity_id, resource, now_ms=now_ms, namespace=namespace)
        assert found == wanted


@pytest.mark.usefixtures("eager")
def test_usage_under_load_is_exact_with_clocks_hours_apart(url: str, namespace: str) -> None:
    """Each with a clock of its own, an hour or more apart; one splits, resets and sweeps meanwhile."""
    limit, taken, errors = Limit.per_second("n", 10**6), [0] * 3, []

    def work(number: int) -> None:
        chance, now_ms = random.Random(number), START_MS + number * HOUR_MS
        try:
            with opened(url) as store:
                store.usage_ms = USAGE_MS
                for turn in range(50):
                    now_ms += chance.choice([0, HOUR_MS])
                    amount = chance.randint(1, 100)
                    key = f"{namespace}/{chance.choice('ef')}#r"
                    if store.settle([request(limit, amount, TAKE, key)], now_ms)[0].allowed:
                        taken[number] += amount
                    if number == 0 and turn in (10, 20, 40):
                        split(store, namespace=namespace)
                    if number == 0 and turn in (30, 45):
                        store.delete_buckets([key])
                        store.sweep(namespace, now_ms)
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
        found = used(store, None, None, namespace=namespace)
    assert sum(found.values()) == sum(taken) * 1000


def test_shards_that_there_are_no_longer(stores: list[Any], namespace: str) -> None:
    """More of them, then fewer, then more again, made of what is left of them."""
    store, other = stores
    key, taken = f"{namespace}/e#r", 0
    for turn, splits in enumerate((2, 1, 3, 1)):
        store.settle([request(RPM, 1, TAKE, key)], START_MS)
        for _ in range(splits):
            split(store, namespace=namespace)
        store.settle([request(RPM, 120, FORCE, key)], START_MS)  # of every shard its share
        taken += 121_000
        if turn % 2:
            assert store.sweep(namespace, START_MS + DAY_MS).buckets == 1
        else:
            other.delete_buckets([key])
        assert sum(used(other, namespace=namespace).values()) == taken


# Putting away


def count_hours(store: Any, namespace: str, hours: int, limit: Limit = RPM) -> int:
    """Take one in each of so many hours; when the last of them is."""
    for hour in range(hours):
        assert store.settle([request(limit, 1, TAKE, f"{namespace}/e#r")], START_MS + hour * HOUR_MS)[0].allowed
    return START_MS + (hours - 1) * HOUR_MS


def test_an_item_stays_small(stores: list[Any], client: Any, url: str, namespace: str) -> None:
    store, _ = stores
    now_ms = count_hours(store, namespace, FEW + 1)
    found = items(client, url, store, namespace)
    assert found.keys() == {("BUCKET#e#r#0", "#STATE")}, "nothing to put away yet"
    assert len(counts(found["BUCKET#e#r#0", "#STATE"])) == FEW + 1
    now_ms = count_hours(store, namespace, FEW + 2)
    found = items(client, url, store, namespace)
    assert counts(found["BUCKET#e#r#0", "#STATE"]) == [hour_of(now_ms)]
    days = {sk: counts(item) for (pk, sk), item in found.items() if pk == "BUCKET#e"}
    assert days.keys() == {"#HOURS#r#2023-11-14", "#HOURS#r#2023-11-15"}
    assert [hour for _, hours in sorted(days.items()) for hour in hours] == list(
        range(hour_of(START_MS), hour_of(now_ms))
    )
    # The hour that goes on was taken from twice.
    assert sum(used(store, now_ms=now_ms, namespace=namespace).values()) == (2 * FEW + 3) * 1000


def test_how_long_items_live(stores: list[Any], client: Any, url: str, namespace: str) -> None:
    """As long as what they have counted is wanted, by DynamoDB's clock."""
    store, _ = stores
    count_hours(store, namespace, FEW + 2)
    for _ in range(2):
        now, found = time.time(), items(client, url, store, namespace)
        ttls = {sk: (int(item["ttl"]["N"]) - now) * 1000 - USAGE_MS for (_, sk), item in found.items()}
        assert 0 <= ttls["#STATE"] <= 2 * HOUR_MS
        store.delete_buckets([f"{namespace}/e#r"])
    today = (START_MS // DAY_MS + 1) * DAY_MS - (START_MS + (FEW + 1) * HOUR_MS)
    for day, sk in enumerate(("#HOURS#r#2023-11-14", "#HOURS#r#2023-11-15")):
        assert abs(ttls[sk] - day * DAY_MS - today) < 60_000
    (answer,) = store.settle([request(RPM, 1, TAKE, f"{namespace}/e#r")], START_MS + USAGE_MS + 2 * DAY_MS)
    assert answer.levels == [(59_000, 0)], "reset, and nobody has noticed that its item was there all the time"


def test_what_is_too_old_is_forgotten(stores: list[Any], client: Any, url: str, namespace: str) -> None:
    store, _ = stores
    late_ms = START_MS + USAGE_MS + 3 * HOUR_MS
    store.settle([request(RPM, 5, TAKE, f"{namespace}/e#r")], START_MS)
    assert sum(used(store, now_ms=late_ms - 3 * HOUR_MS, namespace=namespace).values()) == 5000
    assert used(store, now_ms=late_ms, namespace=namespace) == {}
    for hour in range(FEW + 1):
        store.settle([request(RPM, 1, TAKE, f"{namespace}/e#r")], late_ms + hour * HOUR_MS)
    found = items(client, url, store, namespace)
    assert {sk for _, sk in found} == {"#STATE", "#HOURS#r#2024-02-13"}, "no day was made for what nobody wants"


def test_nothing_is_counted_if_it_is_not_wanted(url: str, client: Any, namespace: str) -> None:
    with opened(url) as store:
        store.settle([request(RPM, 5, TAKE, f"{namespace}/e#r")], START_MS)
        ((_, item),) = items(client, url, store, namespace).items()
        assert not counts(item)
        assert int(item["ttl"]["N"]) < time.time() + 2 * HOUR_MS / 1000


def test_who_may_not_put_away_decides_all_the_same(
    stores: list[Any], namespace: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = stores
    really, tried = store._wire.client().transact_write_items, []

    def denied(**parameters: Any) -> Any:
        if "moves" not in str(parameters):
            return really(**parameters)
        tried.append(parameters)
        raise store._wire.client().exceptions.ClientError(
            {"Error": {"Code": "AccessDeniedException", "Message": "not authorized"}}, "TransactWriteItems"
        )

    monkeypatch.setattr(store._wire.client(), "transact_write_items", denied)
    now_ms = count_hours(store, namespace, FEW + 2)
    for _ in range(3):
        assert store.settle([request(RPM, 1, TAKE, f"{namespace}/e#r")], now_ms)[0].allowed
    assert len(tried) == 1, "once an hour"
    assert "could not be moved" in caplog.text
    assert sum(used(store, now_ms=now_ms, namespace=namespace).values()) == (FEW + 5) * 1000


@pytest.mark.usefixtures("eager")
def test_moved_while_it_is_read(
    url: str, stores: list[Any], namespace: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two operations of the one who reads, it is neither missed nor seen twice."""
    store, _ = stores
    count_hours(store, namespace, 3)  # something has been put away before
    driven, place, now_ms = Driven(client, read_url(url).table), place_of(store, 0, namespace), START_MS + DAY_MS
    expected = used(store, now_ms=now_ms, namespace=namespace)
    for after in itertools.count():
        for _ in range(2):
            now_ms += HOUR_MS
            monkeypatch.setattr(store._plans.hours, "_tried", {place: hour_of(now_ms)})
            store.settle([request(RPM, 1, TAKE, f"{namespace}/e#r")], now_ms)
            expected["e", "r", "rpm", hour_of(now_ms)] = 1000
        (before,) = store._run(store._plans._buckets._cross_shard.rows_plan([place])).values()
        mover = counting(driven)
        mover.notice(place, before, now_ms + HOUR_MS)
        driven.meddle = at(after, lambda driven=driven, mover=mover: driven.run(mover.put_away_plan()))
        usage = HourlyUsage(driven.deliver, Namespaces(driven.deliver), counting(driven))
        (row,) = driven.run(usage.list_plan(namespace, "e", "r", (0, hour_of(now_ms) + 1), None, now_ms))
        assert {("e", "r", "rpm", hour): milli for hour, milli in row.used["rpm"].items()} == expected
        if "TransactWriteItems" not in driven.operations():
            assert after == 4, "the namespace, the buckets, the days, the buckets again"
            return


def at(turn: int, work: Callable[[], Any]) -> Callable[[Send], None]:
    """Do something before the operation of that number."""
    turns = itertools.count()

    def meddle(send: Send) -> None:
        if next(turns) == turn:
            work()

    return meddle


def counting(driven: Driven) -> UsageCounters:
    found = UsageCounters(driven.deliver)
    found.kept_ms = USAGE_MS
    return found


# As statements


@pytest.mark.usefixtures("eager")
def test_many_at_once_are_counted(
    dynamodb_local: Engine, aws_credentials: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement cannot add to what is not there. If another one, whose clock is ahead, has put it away, it fails, and
    is done in another way."""
    url = new_table(dynamodb_local)
    batch = [request(RPM, 1, TAKE, f"{namespace}/e{number}#r") for number in range(6)]
    with opened(url) as store, opened(url) as ahead:
        store.usage_ms = ahead.usage_ms = USAGE_MS
        sent: Counter[str] = Counter()
        really = store._wire.client()._make_api_call

        def counted(operation: str, parameters: Any) -> Any:
            sent[operation] += 1
            return really(operation, parameters)

        monkeypatch.setattr(store._wire.client(), "_make_api_call", counted)
        for hour in range(2):
            store.settle(batch, START_MS + hour * HOUR_MS)
            sent.clear()
            store.settle(batch, START_MS + hour * HOUR_MS)
            assert sent == {"BatchExecuteStatement": 1}, "but for the first of an hour"
        first = place_of(store, 0, namespace)
        put_away(ahead, [first._replace(entity_id=f"e{number}") for number in range(3)], START_MS + 3 * HOUR_MS)
        sent.clear()
        assert all(answer.allowed for answer in store.settle(batch, START_MS + HOUR_MS))
        assert sent == {"BatchExecuteStatement": 1, "UpdateItem": 3}
        found = used(store, None, "r", now_ms=START_MS + DAY_MS, namespace=namespace)
        taken: Counter[str] = Counter()
        for (entity_id, *_), milli in found.items():
            taken[entity_id] += milli // 1000
        assert taken == {f"e{number}": 5 for number in range(6)}


def put_away(store: Any, places: list[Any], now_ms: int) -> None:
    for place, row in store._run(store._plans._buckets._cross_shard.rows_plan(places)).items():
        store._plans.hours.notice(place, row, now_ms)
    store._run(store._plans.hours.put_away_plan())


# What it costs


def size(item: Any) -> int:
    """Of an item in bytes, as DynamoDB counts."""

    def of(value: Any) -> int:
        ((kind, content),) = value.items()
        return len(content.encode()) if kind == "S" else len(content.strip("-").rstrip("0")) // 2 + 2

    return sum(len(name.encode()) + of(value) for name, value in item.items())


def test_a_write_is_one_unit(stores: list[Any], client: Any, url: str, namespace: str) -> None:
    """A unit is a kilobyte. Five limits with names of a usual length are within it, however long they are used."""
    store, _ = stores
    limits = [Limit.per_minute(name, 10**6) for name in ("rpm", "tpm", "rpd", "images", "usd")]
    parts = tuple(Part(0, limit, 12_345_678) for limit in limits)
    key = f"{namespace}/customer-1234567#gpt-4o-mini"
    for hour in range(12):
        store.settle([Request(TAKE, (key,), parts)], START_MS + hour * HOUR_MS)
        item = items(client, url, store, namespace)["BUCKET#customer-1234567#gpt-4o-mini#0", "#STATE"]
        assert size(item) + len(counts(item)) * 17 <= 1024, "as large as it was before it was put away"


def test_usage_of_a_place_is_on_one_page_only(
    stores: list[Any], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buckets and slots of one place may be on different pages; what was used is on one of them."""
    store, _ = stores
    monkeypatch.setattr(places, "_PAGE", 1)
    for entity_id in "abc":
        key = f"{namespace}/{entity_id}#r"
        store.settle([request(RPM, 2, TAKE, key), hold(Limit.concurrent("s", 3), key, "lease")], START_MS)
    for asked in ((None, None), (None, "r"), ("b", None)):
        found = used(store, *asked, namespace=namespace)
        assert list(found.values()) == [2000] * (1 if asked[0] else 3)
