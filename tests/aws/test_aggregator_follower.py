"""The process that reads the stream: in which order, from where, until when. Streams that split are played."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from aggregator_helpers import NOON, Play, bucket_image, bucket_record, total

from headgate.aws.aggregator import Aggregator, BatchResult, Counts, Follower, follow
from headgate.aws.aggregator.stream import Shard, TableStream
from headgate.core.errors import RateLimiterUnavailable, ValidationError

PAGE = 2


class PlayedStream(TableStream):
    """Shards as a test wants them: their records, their parents, and whether they are closed."""

    def __init__(self, **shards: tuple[str | None, bool, list[int]]) -> None:
        self.arn = ""
        self.enabled = True
        self.now = NOON
        self.played = shards
        self.empty_pages: dict[str, int] = {}
        self.at = NOON - 60

    def shards(self) -> list[Shard]:
        return [Shard(name, parent, closed=closed) for name, (parent, closed, _) in self.played.items()]

    def read(self, shard: Shard) -> Sequence[Any]:
        _, closed, sequences = self.played[shard.id]
        if self.empty_pages.get(shard.id, 0):
            self.empty_pages[shard.id] -= 1
            shard.following = "more"
            return ()
        left = [n for n in sequences if shard.position is None or n > int(shard.position)]
        shard.following = None if closed and len(left) <= PAGE else "more"
        return [bucket_record(n, bucket_image({"rpm": n}), at=self.at) for n in left[:PAGE]]

    def close(self) -> None:
        pass


class Noting(Aggregator):
    """It counts nothing, and notes what it is given."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.fails = 0

    def process(self, records: Sequence[Any], label: str | None = None, has_time: Any = None) -> BatchResult:
        numbers = [int(record["dynamodb"]["SequenceNumber"]) for record in records]
        if self.fails:
            self.fails -= 1
            return BatchResult(Counts(), str(numbers[0]))
        self.seen += numbers
        return BatchResult(Counts(records=len(numbers), counted=len(numbers)))


def followed(
    play: Play, stream: PlayedStream, aggregator: Noting | None = None, **settings: Any
) -> tuple[Noting, Follower]:
    aggregator = aggregator or Noting()
    return aggregator, Follower(aggregator, stream, play.host.deliverer, play.host.perform, **settings)


def test_shards_of_a_stream_are_read_parents_first(play: Play) -> None:
    stream = PlayedStream(
        grandchild=("child", False, [8, 9]),
        other=("parent", False, [5, 6, 10]),
        child=("parent", True, [4, 7]),
        parent=("gone long ago", True, [1, 2, 3]),
    )
    aggregator, follower = followed(play, stream)
    assert follower.run(once=True).counted == 10
    assert aggregator.seen[:3] == [1, 2, 3]
    for lineage in ([1, 2, 3, 4, 7, 8, 9], [1, 2, 3, 5, 6, 10]):
        assert [n for n in aggregator.seen if n in lineage] == lineage


def test_the_next_one_goes_on_where_the_last_one_was(play: Play) -> None:
    stream = PlayedStream(parent=(None, True, [1, 2, 3]), child=("parent", False, [4, 5]))
    followed(play, stream)[1].run(once=True)
    stream.played["child"][2].append(6)
    aggregator, follower = followed(play, stream)
    follower.run(once=True)
    assert aggregator.seen == [6]


def test_a_shard_that_has_nothing_for_a_while_is_not_at_its_end(play: Play) -> None:
    stream = PlayedStream(closed=(None, True, [1, 2, 3]), open=("closed", False, [4]))
    stream.empty_pages = {"closed": 50, "open": 5}
    aggregator, follower = followed(play, stream)
    follower.run(once=True)
    assert aggregator.seen == [1, 2, 3, 4]


def test_once_ends_though_others_go_on_writing(play: Play) -> None:
    class Endless(PlayedStream):
        def read(self, shard: Shard) -> Sequence[Any]:
            found = super().read(shard)
            self.played["open"][2].append(self.played["open"][2][-1] + 1)
            self.at += 20
            return found

    aggregator, follower = followed(play, Endless(open=(None, False, [1])))
    follower.run(once=True)
    assert 3 <= len(aggregator.seen) <= 12


def test_what_was_not_counted_is_read_again(play: Play) -> None:
    stream = PlayedStream(bad=(None, False, [1, 2, 3]), good=(None, False, [7]))
    aggregator = Noting()
    aggregator.fails = 1
    with pytest.raises(RateLimiterUnavailable, match="does not accept usage"):
        followed(play, stream, aggregator)[1].run(once=True)
    assert aggregator.seen == [7]  # the other shard did not wait
    _, follower = followed(play, stream, aggregator)
    follower.run(once=True)
    assert aggregator.seen == [7, 1, 2, 3]


def test_new_shards_are_found(play: Play) -> None:
    aggregator = Noting()
    stream = PlayedStream(parent=(None, False, [1]))
    done = threading.Event()

    def report(progress: Any) -> None:
        if progress.counts.counted == 1 and "child" not in stream.played:
            stream.played["child"] = ("parent", False, [3, 4])
            stream.played["parent"] = (None, True, [1, 2])
        if progress.counts.counted == 4:
            done.set()

    _, follower = followed(play, stream, aggregator, poll_seconds=0.01, report=report)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(follower.run)
        try:
            assert done.wait(20)
        finally:
            follower.stop()
        running.result(20)
    assert aggregator.seen == [1, 2, 3, 4]


def test_a_table_without_a_stream(play: Play) -> None:
    name = f"{play.table}-plain"
    key = [{"AttributeName": "PK", "KeyType": "HASH"}]
    kinds = [{"AttributeName": "PK", "AttributeType": "S"}]
    play.client.create_table(TableName=name, KeySchema=key, AttributeDefinitions=kinds, BillingMode="PAY_PER_REQUEST")
    with pytest.raises(ValidationError, match="needs a stream of NEW_AND_OLD_IMAGES, but has none: call "):
        follow(play.engine.url(name), once=True)
    play.client.update_table(TableName=name, StreamSpecification={"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"})
    with pytest.raises(ValidationError, match="KEYS_ONLY: disable it"):
        follow(play.engine.url(name), once=True)
    play.client.delete_table(TableName=name)
    with pytest.raises(ValidationError, match="does not exist"):
        follow(play.engine.url(name), once=True)


def test_the_stream_may_be_replaced(play: Play) -> None:
    """Off and on again: the table has a new stream, with numbers of its own."""
    bucket = play.bucket()
    bucket.consume(rpm=5)
    again = threading.Event()

    def report(progress: Any) -> None:
        if progress.counts.counted == 2:
            again.set()

    with play.follower(poll_seconds=0.02, report=report) as follower, ThreadPoolExecutor(1) as threads:
        follower._look()
        play.client.update_table(TableName=play.table, StreamSpecification={"StreamEnabled": False})
        play.client.update_table(
            TableName=play.table,
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )
        bucket.consume(rpm=6)
        follower._looked = float("-inf")
        running = threads.submit(follower.run)
        try:
            assert again.wait(60)
        finally:
            follower.stop()
        running.result(20)
    assert play.used("hour") == total([bucket])


PROGRAM = """
import sys
from headgate.aws.aggregator import follow
counts = follow(sys.argv[1], poll_seconds=0.05, report=lambda progress: print(progress.counts.counted, flush=True))
print("stopped after", counts.counted, flush=True)
"""


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_when_it_is_done(play: Play, kind: signal.Signals) -> None:
    bucket = play.bucket()
    bucket.consume(rpm=5)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, play.url], stdout=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        try:
            assert process.stdout is not None
            while process.stdout.readline().strip() != "1":
                assert process.poll() is None
            process.send_signal(kind)
            rest = process.stdout.read()
            assert process.wait(20) == 0
        finally:
            process.kill()
    assert "stopped after 1" in rest
    assert play.follow_once().counted == 0  # it has noted where it was
    assert play.used("day") == total([bucket])
