"""Buckets that are written too often are split before DynamoDB throttles them."""

from __future__ import annotations

from typing import Any

import pytest
from aggregator_helpers import NOON, Play, bucket_image, bucket_record

from headgate.aws.aggregator import Aggregator, Split
from headgate.aws.aggregator.hot_buckets import HotBuckets, wanted_splits
from headgate.aws.aggregator.records import BucketChange, read_record
from headgate.core.errors import RateLimiterUnavailable
from headgate.stores.dynamodb import keys
from headgate.stores.dynamodb.items import attribute


def written(
    count: int, *, at: int = NOON, before: int = 0, over_ms: int = 900, shard: int = 0, shards: int = 1, size: int = 600
) -> list[BucketChange]:
    """As many writes to an item in one second of the stream, spread over `over_ms` of the writers' time."""
    changes = []
    for n in range(count):
        new, old = (
            bucket_image({"rpm": 0}, writes=before + n + 1 - late, at_ms=(n - late) * over_ms // count, shards=shards)
            for late in (0, 1)
        )
        record = bucket_record(before + n + 1, new, old, at=at, shard=shard)
        record["dynamodb"]["SizeBytes"] = size
        changes.append(read_record(record))
    return changes  # type: ignore[return-value]


def split(shard: int, shards: int) -> Split:
    return Split(keys.pk_bucket("ns", "alice", "api", shard), shards)


@pytest.mark.parametrize(("count", "hot"), [(799, False), (800, True), (1000, True)])
def test_eight_hundred_writes_in_a_second_are_too_many(count: int, hot: bool) -> None:
    assert wanted_splits(written(count), HotBuckets()) == ([split(0, 1)] if hot else [])


def test_a_second_may_be_spread_over_batches() -> None:
    changes, pressure = written(900), HotBuckets()
    assert wanted_splits(changes[:500], pressure) == []
    assert wanted_splits(changes[500:], pressure) == [split(0, 1)]


def test_what_comes_twice_is_no_pressure() -> None:
    changes, pressure = written(500), HotBuckets()
    for _ in range(4):
        assert wanted_splits(changes, pressure) == []


def test_load_of_two_seconds_is_not_added_up() -> None:
    assert wanted_splits(written(600) + written(600, at=NOON + 1, before=600), HotBuckets()) == []


def test_a_stream_whose_time_is_coarse_is_not_taken_for_pressure() -> None:
    assert wanted_splits(written(2000, over_ms=60_000), HotBuckets()) == []
    assert wanted_splits(written(2000, over_ms=2_000), HotBuckets()) == [split(0, 1)]


def test_large_items_cost_more() -> None:
    assert wanted_splits(written(400, size=2048), HotBuckets()) == []
    assert wanted_splits(written(400, size=2049), HotBuckets()) == [split(0, 1)]


def test_an_item_that_was_made_anew_is_not_hot() -> None:
    pressure = HotBuckets()
    assert wanted_splits(written(700), pressure) == []
    assert wanted_splits(written(700), pressure) == []


def test_shard_0_is_split_first() -> None:
    assert wanted_splits(written(800, shard=1, shards=2), HotBuckets()) == [split(0, 2), split(1, 2)]


def grown(before: int, after: int, shard: int = 0) -> list[BucketChange]:
    images = [bucket_image({"rpm": 0}, shards=shards) for shards in (after, before)]
    return [read_record(bucket_record(1, *images, shard=shard))]  # type: ignore[list-item]


def test_the_others_follow_shard_0() -> None:
    assert wanted_splits(grown(1, 2), HotBuckets()) == []
    assert wanted_splits(grown(4, 8), HotBuckets()) == [split(1, 4), split(2, 4), split(3, 4)]
    assert wanted_splits(grown(2, 8), HotBuckets()) == [split(1, 2), split(1, 4), split(2, 4), split(3, 4)]
    assert wanted_splits(grown(4, 8, shard=1), HotBuckets()) == []
    assert wanted_splits(grown(8, 1), HotBuckets()) == []


def test_a_split_that_fails_holds_up_nothing(play: Play) -> None:
    def fail(wanted: Split) -> bool:
        raise RateLimiterUnavailable("not now")

    aggregator = Aggregator(play.host.deliverer, play.host.perform, split=fail)
    records = [bucket_record(1, bucket_image({"rpm": 5}, shards=4), bucket_image({"rpm": 4}, shards=2))]
    outcome = aggregator.process(records)
    assert (outcome.failed, outcome.counts.splits) == (None, 0)
    assert play.used("hour") == {"rpm": 1, "events": 1}


def stored(play: Play, shard: int) -> dict[str, Any] | None:
    key = {"PK": attribute(keys.pk_bucket("ns", "alice", "api", shard)), "SK": attribute(keys.STATE)}
    item: dict[str, Any] | None = play.client.get_item(TableName=play.table, Key=key, ConsistentRead=True).get("Item")
    return item


def test_the_table_has_more_shards_then_but_not_too_many(play: Play) -> None:
    """All these records are of the time before the first split: they ask for one, however often they come."""
    item = bucket_image({"rpm": 4000}, writes=900)
    key = {"PK": attribute(keys.pk_bucket("ns", "alice", "api", 0)), "SK": attribute(keys.STATE)}
    play.client.put_item(TableName=play.table, Item={**item, **key})
    hot = []
    for second in range(3):
        hot += [
            bucket_record(
                second * 900 + n + 1,
                bucket_image({"rpm": 1}, writes=second * 900 + n + 1, at_ms=second * 1000 + n),
                bucket_image({"rpm": 1}, writes=second * 900 + n, at_ms=second * 1000 + n),
                at=NOON + second,
            )
            for n in range(900)
        ]
    assert play.host.aggregator.process(hot[:900]).counts.splits == 1
    assert play.host.aggregator.process(hot[900:]).counts.splits == 0
    assert play.host.aggregator.process(hot).counts.splits == 0
    first, second = stored(play, 0), stored(play, 1)
    assert first is not None
    assert second is not None
    assert first["shard_count"] == second["shard_count"] == attribute(2)
    assert second["b_rpm_tc"] == attribute(0)  # made of the first, it has consumed nothing itself
    # The stream tells of the split itself too, and of the sibling: they consume nothing.
    play.follow_once()
    assert play.used("hour")["rpm"] == 4000
