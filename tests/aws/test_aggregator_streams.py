"""Usage of what really happens in a table, by its real stream."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from aggregator_helpers import Bucket, Play, total

from headgate.aws.aggregator import AggregatorProgress
from headgate.aws.aggregator.windows import WINDOWS


def check(play: Play, buckets: list[Bucket]) -> None:
    expected = total(buckets)
    for window in WINDOWS:
        assert play.used(window) == expected, window


def test_the_first_write_counts_and_so_do_the_others(each_play: Play) -> None:
    bucket = each_play.bucket()
    bucket.consume(rpm=1000, tpm=70)
    assert each_play.follow_once().counted == 1
    check(each_play, [bucket])
    bucket.consume(rpm=1000)
    bucket.consume(tpm=-50)
    assert each_play.follow_once().counted == 2
    check(each_play, [bucket])


def test_a_bucket_that_was_deleted_starts_anew(each_play: Play) -> None:
    bucket = each_play.bucket()
    for _ in range(3):
        bucket.consume(rpm=5)
        bucket.consume(rpm=2)
        bucket.reset()
    each_play.follow_once()
    assert each_play.used("hour") == {"rpm": 21, "events": 6}


def test_many_writers_refunds_and_readers_at_once(each_play: Play) -> None:
    shards = [each_play.bucket(shard=shard, shards=4) for shard in range(4)]

    def write(shard: Bucket) -> None:
        dice = random.Random(shard.shard)
        for _ in range(20):
            shard.consume(rpm=1000, **{"tokens.per_day-x": dice.randint(-500, 1500)})
            if dice.random() < 0.1:
                shard.reset()

    def read(_: int) -> None:
        for _ in range(4):
            each_play.follow_once()

    with ThreadPoolExecutor(7) as threads:
        list(
            threads.map(lambda job: job[0](job[1]), [*((write, one) for one in shards), *((read, n) for n in range(3))])
        )
    each_play.follow_once()
    check(each_play, shards)


def test_entities_and_resources_are_kept_apart(play: Play) -> None:
    for entity in ("alice", "bob"):
        for resource in ("api", "web/v1"):
            play.bucket(entity, resource=resource).consume(rpm=len(entity) * len(resource))
    play.follow_once()
    for entity in ("alice", "bob"):
        for resource in ("api", "web/v1"):
            found = play.used("day", entity=entity, resource=resource)
            assert found == {"rpm": len(entity) * len(resource), "events": 1}


def test_what_was_read_is_not_read_again(play: Play) -> None:
    bucket = play.bucket()
    bucket.consume(rpm=1)
    first = play.follow_once()
    assert (first.counted, first.skipped) == (1, 0)
    bucket.consume(rpm=1)
    second = play.follow_once()
    assert second.counted == 1
    # Nothing happens any more: checkpoints do not make work for the next one.
    play.follow_once()
    before = len(play.records())
    assert play.follow_once().records <= 1
    assert len(play.records()) == before
    check(play, [bucket])


def test_it_follows_until_it_is_stopped(play: Play) -> None:
    heard: list[AggregatorProgress] = []
    enough = threading.Event()

    def report(progress: AggregatorProgress) -> None:
        heard.append(progress)
        if progress.counts.counted == 3:
            enough.set()

    bucket = play.bucket()
    with play.follower(poll_seconds=0.02, report=report) as follower, ThreadPoolExecutor(1) as threads:
        running = threads.submit(follower.run)
        try:
            for _ in range(3):
                bucket.consume(rpm=1)
            assert enough.wait(30)
        finally:
            follower.stop()
        assert running.result(30).counted == 3
    check(play, [bucket])
    assert heard[-1].shards == 1
    assert play.follow_once().counted == 0


@pytest.mark.parametrize("operation", ["GetRecords", "GetShardIterator"])
def test_an_expired_iterator_is_replaced_and_nothing_is_counted_twice(play: Play, operation: str) -> None:
    bucket = play.bucket()
    bucket.consume(rpm=1)
    play.proxy.fail(1, "ExpiredIteratorException", operation=operation)
    assert play.follow_once(play.troubled).counted == 1
    assert play.proxy.left == 0
    check(play, [bucket])


def test_a_position_that_is_trimmed(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    bucket = play.bucket()
    bucket.consume(rpm=1)
    play.follow_once()
    bucket.consume(rpm=1)
    play.proxy.fail(1, "TrimmedDataAccessException", operation="GetShardIterator")
    assert play.follow_once(play.troubled).counted == 2  # from the beginning again
    check(play, [bucket])
    assert "read too late" in caplog.text


def test_a_table_that_takes_nothing_is_waited_for(play: Play) -> None:
    """The position does not move before all is counted."""
    bucket = play.bucket()
    bucket.consume(rpm=1)
    play.proxy.fail(40, "ProvisionedThroughputExceededException", operation="UpdateItem")
    counted = threading.Event()

    def report(progress: AggregatorProgress) -> None:
        if progress.counts.counted:
            counted.set()

    with play.follower(play.troubled, poll_seconds=0.02, report=report) as follower, ThreadPoolExecutor(1) as threads:
        running = threads.submit(follower.run)
        try:
            assert counted.wait(60)
        finally:
            follower.stop()
        running.result(30)
    assert play.proxy.left == 0
    check(play, [bucket])
