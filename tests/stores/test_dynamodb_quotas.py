"""Quotas on DynamoDB: what they cost, what writers do to each other, and how they are spread over shards."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from dynamodb_helpers import (
    START_MS,
    USAGE_MS,
    available,
    force,
    new_table,
    opened,
    place_of,
    request,
    split,
    split_halfway,
    take_all,
    used,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headgate.core.decide import FORCE, PENALIZE, TAKE, Part, Request
from headgate.core.errors import CorruptState
from headgate.core.limit import Limit
from headgate.core.usage import HOUR_MS
from headgate.stores.dynamodb import blocking, shards
from headgate.stores.dynamodb.exchange import Failed, Send
from headgate.stores.dynamodb.ledger import BucketLedger
from headgate.stores.dynamodb.places import ItemPlace
from headgate.stores.dynamodb.rows import Row, RowState, read_limit, written_limit
from headgate.stores.dynamodb.unite import united
from local_servers.dynamodb import Engine

HOURLY = Limit.quota("q", 60, "hour")
DAILY = Limit.quota("q", 60, "day", tz="Europe/Berlin", at="06:30")
SMALLER = Limit.quota("q", 33.336, "hour", at="00:20")
FIRST_USE = Limit.quota("q", 60, 600, from_first_use=True)
RPM = Limit.per_minute("rpm", 60)
EDGE_MS = START_MS - START_MS % HOUR_MS + HOUR_MS
WINDOW_MS = 600_000
both_windows = pytest.mark.parametrize("limit", [HOURLY, FIRST_USE], ids=["calendar", "first use"])


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


@pytest.fixture
def other(url: str) -> Iterator[Any]:
    with opened(url) as store:
        yield store


class Sent(Counter[str]):
    """What went over the wire since the last time; with a - what DynamoDB did not do."""

    def costs(self, **expected: int) -> None:
        assert dict(self) == expected
        self.clear()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    count = Sent()
    really = blocking._Talk._send

    def counted(self: Any, client: Any, send: Send) -> Any:
        reply = really(self, client, send)
        count[send.operation + "-" * isinstance(reply, Failed)] += 1
        return reply

    monkeypatch.setattr(blocking._Talk, "_send", counted)
    return count


def take(store: Any, limit: Limit, amount: int = 1, now_ms: int = START_MS) -> tuple[bool, int | None]:
    (answer,) = store.settle([request(limit, amount)], now_ms)
    return answer.allowed, answer.wait_ms


def edge_of(limit: Limit, now_ms: int = START_MS) -> int:
    return limit.calendar.window(now_ms).ends_ms if limit.calendar else now_ms + limit.period_ms


def shards_of(store: Any) -> dict[int, int]:
    rows = store._run(store._plans._buckets._cross_shard.rows_plan([place_of(store, shard) for shard in range(8)]))
    return {place.shard: row.shard_count for place, row in rows.items()}


# The costs


@both_windows
def test_one_that_passes_is_one_write_in_every_window(store: Any, sent: Sent, limit: Limit) -> None:
    store.settle([request(RPM, 1)], START_MS)
    take(store, limit)
    sent.clear()
    both = Request(TAKE, ("n/e#r",), (Part(0, limit, 1000), Part(0, RPM, 1000)))
    for now_ms in (START_MS, START_MS + 1000, edge_of(limit), edge_of(limit) + 1, edge_of(limit) + 40 * HOUR_MS):
        assert store.settle([both], now_ms)[0].allowed
        sent.costs(UpdateItem=1)


@both_windows
def test_all_who_wait_for_one_quota_are_one_write(store: Any, sent: Sent, limit: Limit) -> None:
    take(store, limit)
    sent.clear()
    answers = store.settle([request(limit, 1)] * 80, START_MS)
    sent.costs(UpdateItem=1)
    assert [answer.allowed for answer in answers] == [True] * 59 + [False] * 21
    assert answers[58].levels == [(0, 0)]
    assert answers[59].wait_ms == edge_of(limit) - START_MS
    answers = store.settle([request(limit, 1)] * 80, edge_of(limit))
    sent.costs(UpdateItem=1)
    assert sum(answer.allowed for answer in answers) == 60


@both_windows
def test_giving_back_is_one_write(store: Any, sent: Sent, limit: Limit) -> None:
    take(store, limit, 10)
    sent.clear()
    for amount, left in ((3, 53), (7, 60), (5, 60)):
        force(store, limit, -amount)
        sent.costs(UpdateItem=1)
        assert take(store, limit, 0)[0]
        sent.clear()
        assert available(store, limit) == left * 1000
        sent.clear()


def test_many_quotas_are_few_requests_at_the_edge_too(store: Any, sent: Sent) -> None:
    limit = HOURLY
    keys = [f"n/e{number}#r" for number in range(50)]
    store.settle([request(limit, 1, TAKE, key) for key in keys], START_MS)
    sent.clear()
    for now_ms, left in ((START_MS, 58_000), (EDGE_MS, 59_000), (EDGE_MS, 58_000)):
        answers = store.settle([request(limit, 1, TAKE, key) for key in keys], now_ms)
        sent.costs(BatchExecuteStatement=2)
        assert [answer.levels for answer in answers] == [[(left, 0)]] * 50


@both_windows
def test_a_refusal_writes_nothing(store: Any, sent: Sent, limit: Limit) -> None:
    take(store, limit, 60)
    sent.clear()
    for _ in range(100):
        assert take(store, limit) == (False, edge_of(limit) - START_MS)
    assert set(sent) == {"GetItem"}
    assert sent["GetItem"] < 50
    assert take(store, limit, now_ms=edge_of(limit) - 1) == (False, 1)
    assert take(store, limit, 60, edge_of(limit)) == (True, 0)


@pytest.mark.parametrize("limit", [HOURLY, FIRST_USE, RPM], ids=["calendar", "first use", "bucket"])
def test_alerts_are_no_part_of_what_is_stored(store: Any, sent: Sent, limit: Limit) -> None:
    """Callers that want to hear of different shares have one limit."""
    limits = [limit, limit.changed(alerts_milli=(800,)), limit.changed(alerts_milli=(500, 1000))]
    take(store, limit)
    sent.clear()
    answers = store.settle([request(one, 1) for one in limits * 5], START_MS)
    sent.costs(UpdateItem=1)
    assert [answer.levels[0][0] for answer in answers] == [(58 - turn) * 1000 for turn in range(15)]
    assert not take(store, limits[1], 50)[0]
    sent.costs(GetItem=1)


# Writers who do not know of each other


@both_windows
def test_a_window_that_another_began_is_not_begun_again(store: Any, other: Any, sent: Sent, limit: Limit) -> None:
    take(store, limit, 60)
    take(other, limit, 0)
    edge_ms = edge_of(limit)
    assert take(other, limit, 50, edge_ms) == (True, 0)
    assert take(store, limit, 11, edge_ms) == (False, edge_of(limit, edge_ms) - edge_ms)
    assert take(store, limit, 10, edge_ms) == (True, 0)
    assert not take(other, limit, 1, edge_ms)[0]


@both_windows
def test_one_whose_clock_is_before_the_edge_goes_on_in_the_next_window(store: Any, other: Any, limit: Limit) -> None:
    take(store, limit, 20)
    take(other, limit, 20)
    edge_ms = edge_of(limit)
    assert take(other, limit, 50, edge_ms + 5) == (True, 0)
    assert take(store, limit, 20, edge_ms - 1)[0] is False
    assert take(store, limit, 10, edge_ms - 1) == (True, 0)
    assert take(store, limit, 1, edge_ms - 2) == (False, edge_of(limit, edge_ms + 5) - edge_ms - 5)
    assert available(other, limit, edge_ms + 5) == 0


@both_windows
def test_a_clock_that_steps_back_over_an_edge_does_not_come_into_the_old_window(store: Any, limit: Limit) -> None:
    take(store, limit, 60)
    edge_ms = edge_of(limit)
    assert take(store, limit, 59, edge_ms) == (True, 0)
    for _ in range(2):
        assert take(store, limit, 2, edge_ms - 1000) == (False, edge_of(limit, edge_ms) - edge_ms)
        assert take(store, limit, 2, edge_ms) == (False, edge_of(limit, edge_ms) - edge_ms)
    assert take(store, limit, 1, edge_ms - 1000) == (True, 0)
    assert not take(store, limit, 1, edge_ms)[0]


def test_a_window_given_back_to_full_and_begun_again_by_another_is_the_new_one(store: Any, other: Any) -> None:
    take(store, FIRST_USE, 5)
    take(other, FIRST_USE, 1)
    force(other, FIRST_USE, -6)
    assert take(other, FIRST_USE, 20, START_MS + 1000) == (True, 0)
    assert take(store, FIRST_USE, 41, START_MS + 2000) == (False, WINDOW_MS - 1000)
    force(store, FIRST_USE, -20, START_MS + 2000)
    assert take(store, FIRST_USE, 60, START_MS + 3000) == (True, 0)
    assert take(other, FIRST_USE, 1, START_MS + 3000) == (False, WINDOW_MS)


def test_a_stale_view_of_a_window_that_is_full_again_takes_nothing_of_it(store: Any, other: Any) -> None:
    """One millisecond sees a window begin, end and begin."""
    take(store, FIRST_USE, 5)
    force(store, FIRST_USE, -5)
    take(other, FIRST_USE, 60)
    assert not take(store, FIRST_USE, 1)[0]


@both_windows
@pytest.mark.parametrize(("taken_milli", "passes"), [(0, True), (1, False)])
def test_a_thousandth_too_much_is_refused_whatever_was_seen(
    store: Any, other: Any, limit: Limit, taken_milli: int, passes: bool
) -> None:
    take(store, limit)
    other.settle([Request(TAKE, ("n/e#r",), (Part(0, limit, taken_milli),))], START_MS)
    assert take(store, limit, 59)[0] is passes
    assert available(other, limit) == (0 if passes else 59_000 - taken_milli)


@both_windows
def test_a_penalty_or_another_limit_is_seen_by_all(store: Any, other: Any, limit: Limit) -> None:
    take(store, limit, 1)
    take(other, limit, 1)
    store.settle([Request(PENALIZE, ("n/e#r",), (Part(0, limit, 0),), block_ms=5000)], START_MS)
    assert take(other, limit) == (False, 5000)
    larger = Limit.from_stored("q", 70_000, -1, limit.period_ms, limit.calendar)
    assert take(store, larger, 10, START_MS + 5000)[0]
    assert take(other, larger, 58, START_MS + 5000)[0]
    assert not take(other, larger, 1, START_MS + 5000)[0]


def test_a_client_that_knows_nothing_answers_the_same(url: str, store: Any) -> None:
    for limit in (HOURLY, Limit.quota("p", 60, 600, from_first_use=True)):
        take(store, limit, 30)
        for amount, answer in ((31, (False, edge_of(limit) - START_MS)), (30, (True, 0))):
            with opened(url) as another:
                assert take(another, limit, amount) == answer


# How it is written


@pytest.mark.parametrize(
    "spec",
    [
        "60/hour resets 00:30 UTC", "60/day resets Europe/Berlin", "60/week resets sunday 09:00 America/New_York",
        "60/month resets 31 UTC", "60/year resets 04-06 Europe/London", "60/5h from first use",
        "60/cron */5 6 * * 1-5 resets Europe/Berlin",
    ],
)  # fmt: skip
def test_a_quota_is_read_back_as_it_was_written(spec: str) -> None:
    limit = Limit.parse("q", spec)
    assert read_limit("q", written_limit(limit, 0, 77)) == (limit, 0, 77)
    assert read_limit("q", written_limit(limit, 88, 0)) == (limit, 88, 0)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("lm", {"S": "60000/quota/1700002800000"}),
        ("lm", {"S": "60000/quota/1700002800000/"}),
        ("lm", {"S": "60000/quota/x/hour resets UTC"}),
        ("lm", {"S": "60000/quota/-1/hour resets UTC"}),
        ("lm", {"S": "60000/quota/1700002800000/hour resets Mars/Base"}),
        ("lm", {"S": "60000/quota/1700002800000/aeon resets UTC"}),
        ("lm", {"S": "60000/quota/1700002800000/0"}),
        ("lm", {"S": "60000/quota/1700002800000/minute"}),
        ("lm", {"S": "60000/-1/5"}),
        ("lm", {"S": "60000/-1/0"}),
        ("lm", {"S": "60000/1/1700002800000/hour resets UTC"}),
        ("lm", {"S": "0/quota/1700002800000/hour resets UTC"}),
        ("vt", {"N": str(10**20)}),
        ("vt", {"S": "x"}),
        ("at", {"N": str(10**16)}),
    ],
)
def test_a_corrupt_quota_is_found_and_never_passes(url: str, store: Any, attribute: str, value: Any) -> None:
    take(store, HOURLY, 30)
    store._wire.client().update_item(
        TableName=store._plans.shards._deliver.table,
        Key=place_of(store).key,
        UpdateExpression="SET #a = :v",
        ExpressionAttributeNames={"#a": f"b_q_{attribute}"},
        ExpressionAttributeValues={":v": value},
    )
    with opened(url) as another:
        for _ in range(2):
            with pytest.raises(Exception) as raised:
                take(another, HOURLY)
            found = getattr(raised.value, "results", [raised.value])
            assert isinstance(found[0], CorruptState)
        another.delete_buckets(["n/e#r"])
        assert take(another, HOURLY, 60) == (True, 0)


@pytest.mark.parametrize("limit", [HOURLY, DAILY, FIRST_USE], ids=["hour", "day", "first use"])
def test_an_item_is_not_deleted_before_the_edge(store: Any, limit: Limit) -> None:
    """It would be full again."""

    def left_seconds() -> float:
        found = store._wire.client().get_item(TableName=store._plans.shards._deliver.table, Key=place_of(store).key)
        return int(found["Item"]["ttl"]["N"]) - time.time()

    for now_ms in (START_MS, START_MS + 1000, edge_of(limit), edge_of(limit) + 40 * HOUR_MS):
        take(store, limit, 1, now_ms)
        needed_seconds = (edge_of(limit, now_ms) - now_ms) / 1000 - (limit is FIRST_USE)
        assert needed_seconds < left_seconds() < needed_seconds + 25 * 3600
    now_ms += 1000
    store.settle([Request(PENALIZE, ("n/e#r",), (Part(0, limit, 0),), block_ms=30 * HOUR_MS)], now_ms)
    assert left_seconds() > 30 * 3600 - 2


# Shards


def exactly_available(store: Any, limit: Limit, now_ms: int = START_MS) -> Fraction:
    """In millitokens, with what is below one on each shard."""
    (pool,) = store._run(store._plans._buckets._cross_shard.pools_plan([place_of(store)], now_ms))
    return sum((Fraction(one.bucket(Part(0, limit, 0)).tokens_milli, one.shards) for one in pool.ledgers), Fraction(0))


def test_a_split_changes_no_sum_and_the_edge_fills_all_shards(store: Any) -> None:
    take(store, HOURLY, 11)
    for expected in ({0: 2, 1: 2}, {0: 4, 1: 2, 2: 4}):
        split(store)
        assert shards_of(store) == expected
        assert available(store, HOURLY) == 49_000
    assert take_all(store, HOURLY) == 49
    assert take_all(store, HOURLY, 7, EDGE_MS - 1) == 0
    assert available(store, HOURLY, EDGE_MS) == 60_000
    assert take_all(store, HOURLY, 7, EDGE_MS) == 8
    assert take_all(store, HOURLY, 1, EDGE_MS) == 4
    assert take(store, HOURLY, 60, EDGE_MS + 1000) == (False, HOUR_MS - 1000)
    assert take(store, HOURLY, 61, EDGE_MS + 1000) == (False, None)


def test_nothing_of_the_next_window_is_reserved_on_shards(store: Any) -> None:
    take(store, HOURLY, 60)
    split(store)
    for amount in (1, 40):
        (answer,) = store.settle([request(HOURLY, amount, max_wait_ms=2 * HOUR_MS)], START_MS)
        assert (answer.allowed, answer.wait_ms) == (False, EDGE_MS - START_MS)
    assert available(store, HOURLY) == 0


def test_another_calendar_is_on_all_shards_at_once(store: Any) -> None:
    """The shard that was not met would be full again at the old edge."""
    take(store, HOURLY, 60)
    split(store)
    assert not take(store, DAILY, 1)[0]
    assert available(store, DAILY, EDGE_MS) == 0
    assert not take(store, DAILY, 1, EDGE_MS)[0]
    assert take(store, DAILY, 60, edge_of(DAILY)) == (True, 0)


def test_one_that_was_a_bucket_starts_anew_on_all_shards(store: Any) -> None:
    bucket = Limit.per_day("q", 60)
    take(store, bucket, 60)
    split(store)
    for _ in range(3):
        assert take_all(store, HOURLY) == 60
        assert take(store, bucket)[0]
    assert take_all(store, bucket) == 59


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@example(steps=[(0, HOURLY, 45, TAKE), *[(0, SMALLER, 1, TAKE)] * 3], splits=1)  # one shard of the two is in debt
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([0, 0, 1000, HOUR_MS // 2, HOUR_MS]),
            st.sampled_from([HOURLY, HOURLY, HOURLY, DAILY, SMALLER]),
            st.sampled_from([1, 2, 3, 7, 20, 45]),
            st.sampled_from([TAKE, TAKE, TAKE, FORCE, -1]),
        ),
        min_size=3,
        max_size=12,
    ),
    splits=st.integers(1, 3),
)
def test_quotas_that_take_turns_on_shards_keep_what_was_used(store: Any, steps: list[Any], splits: int) -> None:
    """As one item, exactly, and of a shard not more than its last fraction of a millitoken is out of reach."""
    store.delete_buckets(["n/e#r"])
    store.delete_buckets(["n/one#r"])
    now_ms = START_MS
    for key in ("n/e#r", "n/one#r"):
        store.settle([request(steps[0][1], 0, FORCE, key)], now_ms)
    for _ in range(splits):
        split(store)
    for step_ms, limit, amount, mode in steps:
        now_ms += step_ms
        if mode == -1:
            mode, amount = FORCE, -amount
        (answer,) = store.settle([request(limit, amount, mode)], now_ms)
        moved = amount if answer.allowed else 0
        (alone,) = store.settle([request(limit, moved, FORCE, "n/one#r")], now_ms)
        left = alone.levels[0][0]
        assert left >= 0 or mode is FORCE or not answer.allowed
        if not answer.allowed:
            assert left < amount * 1000 + len(shards_of(store))
        assert exactly_available(store, limit, now_ms) == left
        assert left - len(shards_of(store)) < available(store, limit, now_ms) <= left


@pytest.mark.parametrize(
    "limit", [Limit.quota("q", 200, "hour"), Limit.quota("q", 200, 600, from_first_use=True)], ids=["calendar", "use"]
)
def test_never_more_than_there_is_in_a_window_while_it_is_being_split(url: str, limit: Limit) -> None:
    """One from first use is not split, however often."""
    windows, workers = 3, 3
    taken: list[list[int]] = [[0] * windows for _ in range(workers)]
    errors: list[BaseException] = []
    together = threading.Barrier(workers)

    def work(number: int) -> None:
        chance = random.Random(number)
        try:
            with opened(url) as store:
                for window in range(windows):
                    together.wait(60)
                    now_ms = START_MS + window * HOUR_MS
                    for turn in range(25):
                        amount = chance.choice([1, 1, 2, 5, 40])
                        if store.settle([request(limit, amount)], now_ms)[0].allowed:
                            taken[number][window] += amount
                            if chance.random() < 0.2:
                                force(store, limit, -amount, now_ms)
                                taken[number][window] -= amount
                        if number == 0 and turn % 12 == 5:
                            split(store, chance.choice([0, 0, 1]))
        except BaseException as error:
            together.abort()
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=[number]) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    sums = [sum(one) for one in zip(*taken)]
    assert all(0 < each <= 200 for each in sums)
    with opened(url) as store:
        left = available(store, limit, START_MS + (windows - 1) * HOUR_MS)
        assert 0 <= 200_000 - sums[-1] * 1000 - left <= 64


def test_one_from_first_use_is_not_split(store: Any) -> None:
    take(store, FIRST_USE, 1)
    assert split(store) == 1
    take(store, RPM, 1, START_MS + 2 * WINDOW_MS + 1)
    assert split(store) == 2, "it is not used any more"


def test_shards_are_united_for_one_from_first_use(store: Any, other: Any) -> None:
    """What was taken from the buckets stays taken, and what is below a thousandth of a token is not given away."""
    daily = Limit.per_day("rpd", 100)
    store.usage_ms = USAGE_MS
    store.settle([request(daily, 1)], START_MS)
    for shard in (0, 0, 1):
        split(store, shard)
    assert take_all(store, daily) == 99
    force(store, daily, -50)
    before = available(store, daily)
    assert available(other, FIRST_USE) == 60_000
    assert shards_of(store) == {0: 4, 1: 4, 2: 4, 3: 4}
    other.usage_ms = USAGE_MS
    assert take(other, FIRST_USE, 40) == (True, 0)
    assert shards_of(store) == {0: 1}
    assert {limit: milli for (_, _, limit, _), milli in used(store).items()} == {"rpd": 50_000, "q": 40_000}
    assert before <= available(store, daily) <= 50_000
    assert take(store, FIRST_USE, 21, START_MS + 1000) == (False, WINDOW_MS - 1000)
    assert take(store, FIRST_USE, 20, START_MS + 1000) == (True, 0)
    assert take_all(store, daily) == 50 - (before < 50_000)
    assert not store.sweep("n", START_MS).buckets


def test_shards_that_were_split_halfway_are_united_with_all_they_have(store: Any) -> None:
    daily = Limit.per_day("rpd", 100)
    store.settle([request(daily, 40)], START_MS)
    split_halfway(store)
    assert take(store, FIRST_USE, 60) == (True, 0)
    assert shards_of(store) == {0: 1}
    assert available(store, daily) == 60_000
    found = store._wire.client().get_item(TableName=store._plans.shards._deliver.table, Key=place_of(store).key)
    assert int(found["Item"]["ttl"]["N"]) > time.time() + 0.4 * 86_400


def test_a_part_of_the_smallest_unit_is_lost_when_shards_are_united() -> None:
    daily = Limit.per_day("rpd", 100)
    full = START_MS * daily.refill_milli
    rows = [Row({"rpd": RowState(daily, full + v, START_MS, 0, written_limit(daily), 0, 0)}, 2, 0, 1) for v in (3, -5)]
    ledgers = [BucketLedger(ItemPlace("n", "e", "r", shard), row, START_MS) for shard, row in enumerate(rows)]
    assert united(ledgers).states["rpd"].v == full + 2
    assert united(ledgers[:1]).states["rpd"].v == full + 2 + daily.capacity_milli * daily.period_ms // 2


def test_what_others_take_while_shards_are_united_is_taken(
    store: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    daily = Limit.per_day("rpd", 100)
    store.settle([request(daily, 50)], START_MS)
    split(store)
    assert available(other, daily) == 50_000
    really, meddled = blocking._Talk._send, []

    def send_late(self: Any, client: Any, send: Send) -> Any:
        if send.operation == "TransactWriteItems" and not meddled:
            meddled.append(send)
            assert other.settle([request(daily, 20)], START_MS)[0].allowed
        return really(self, client, send)

    monkeypatch.setattr(blocking._Talk, "_send", send_late)
    assert take(store, FIRST_USE) == (True, 0)
    assert meddled
    assert shards_of(store) == {0: 1}
    assert available(store, daily) == 30_000


def test_a_calendar_quota_on_shards_that_is_from_first_use_now_keeps_what_was_used(store: Any) -> None:
    take(store, HOURLY, 1)
    split(store)
    split(store)
    for _ in range(24):
        assert take(store, HOURLY)[0]
    assert available(store, FIRST_USE) == 35_000
    assert len(shards_of(store)) > 1, "a look writes nothing"
    assert take(store, FIRST_USE, 36)[0] is False
    assert take(store, FIRST_USE, 35) == (True, 0)
    assert take(store, FIRST_USE, 1, START_MS + 1) == (False, WINDOW_MS - 1)


def test_one_from_first_use_that_was_split_meanwhile_is_one_again(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It came after the one who split had looked."""
    take(store, FIRST_USE, 10)
    with monkeypatch.context() as patch:
        patch.setattr(shards, "_is_one", lambda row: False)
        assert split(store) == 2
    assert take(store, FIRST_USE, 20, START_MS + 1000) == (True, 0)
    assert shards_of(store) == {0: 1}
    assert take(store, FIRST_USE, 31, START_MS + 1000) == (False, WINDOW_MS - 1000)
    assert take(store, FIRST_USE, 60, START_MS + WINDOW_MS) == (True, 0)
