"""Whatever is delivered twice, by whomever, and wherever one dies: usage is what was consumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import pytest
from aggregator_helpers import NOON, Play, bucket_image, bucket_record
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.aws.aggregator import Aggregator, Host
from headgate.aws.aggregator.windows import WINDOWS, start_text, window_start
from headgate.plan import Call, Sleep
from headgate.stores.dynamodb.exchange import Exchange, Lost, Reply

_namespaces = count()


class Died(Exception):
    pass


class Wire:
    """Between an aggregator and the table. `faults`: what happens to each of the next operations."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.faults: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def perform(self, call: Call[Any]) -> Any:
        if isinstance(call, Sleep):
            return None
        assert isinstance(call, Exchange)
        replies: list[Reply] = []
        for send in call.sends:
            fault = self.faults.pop(0) if self.faults else ""
            if fault == "die":
                raise Died
            if fault == "another is faster":
                self.meanwhile()
            if fault == "lost before":
                replies.append(Lost("was cut off", sent=True))
                continue
            replies += self._host.perform(Exchange([send]))
            if fault == "die after":
                raise Died
            if fault == "lost after":
                replies[-1] = Lost("was cut off", sent=True)
        return replies


class Event(NamedTuple):
    shard: int
    amount: int  # 0: the item is deleted
    wait: int


class Step(NamedTuple):
    """A reader takes the next `size` records, and `back` that it has had before."""

    reader: int
    back: int
    size: int
    faults: list[str]


class Reader:
    """It knows how far all is counted, and goes on from there, or from before that."""

    def __init__(self, host: Host, records: list[Any]) -> None:
        self.wire = Wire(host)
        self._aggregator = Aggregator(host.deliverer, self.wire.perform)
        self._records = records
        self.position = 0

    def read(self, back: int, size: int, faults: list[str]) -> None:
        self.wire.faults = list(faults)
        after = min(self.position + size, len(self._records))
        batch = self._records[max(0, self.position - back) : after]
        try:
            outcome = self._aggregator.process(batch)
        except Died:
            return
        finally:
            self.wire.faults = []
        if outcome.failed is None:
            self.position = after


def history(ns: str, events: list[Event]) -> tuple[list[Any], Counter[tuple[str, str, str]]]:
    """The records, and what they come to: of each window the tokens, and how many."""
    records: list[Any] = []
    images: dict[int, Any] = {}
    consumed: Counter[int] = Counter()
    expected: Counter[tuple[str, str, str]] = Counter()
    at = NOON - 3
    # From 94 on, so that the numbers become longer.
    for sequence, event in enumerate(events, 94):
        at += event.wait
        old = images.pop(event.shard, None)
        if event.amount == 0 and old is None:
            continue
        new = None
        if event.amount:
            consumed[event.shard] += event.amount
            new = images[event.shard] = bucket_image({"rpm": consumed[event.shard]})
            for window in WINDOWS:
                start = start_text(window_start(window, at))
                expected[window, start, "rpm"] += event.amount
                expected[window, start, "events"] += 1
        else:
            consumed[event.shard] = 0
        records.append(bucket_record(sequence, new, old, at=at, ns=ns, shard=event.shard))
    return records, expected


def found(play: Play, ns: str) -> Counter[tuple[str, str, str]]:
    counted: Counter[tuple[str, str, str]] = Counter()
    for item in play.usage_items(ns):
        place = item["window"], item["window_start"]
        counted[(*place, "rpm")] += item["u_rpm"]
        counted[(*place, "events")] += item["total_events"]
    return counted


# Half an hour, or a day, now and then: the records of a batch are of several windows.
events = st.builds(Event, st.integers(0, 2), st.integers(-3, 9), st.sampled_from([0, 0, 0, 0, 1, 1, 1800, 86400]))
faults = st.lists(
    st.sampled_from(["", "", "", "die", "die after", "lost before", "lost after", "another is faster"]), max_size=12
)
steps = st.builds(Step, st.integers(0, 1), st.integers(0, 6), st.integers(0, 8), faults)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(events, min_size=1, max_size=25), st.lists(steps, max_size=8))
def test_any_delivery_counts_each_record_once(play: Play, events: list[Event], steps: list[Step]) -> None:
    ns = f"n{next(_namespaces)}"
    records, expected = history(ns, events)
    readers = [Reader(play.host, records), Reader(play.host, records)]
    for reader, other in zip(readers, reversed(readers)):
        reader.wire.meanwhile = lambda other=other: other.read(2, 3, [])
    for step in steps:
        readers[step.reader].read(step.back, step.size, step.faults)
    # The end: whoever is the furthest goes on, and the other one begins at the beginning.
    behind, ahead = sorted(readers, key=lambda reader: reader.position)
    ahead.read(1, len(records), [])
    behind.position = 0
    behind.read(0, len(records), [])
    assert _nonzero(found(play, ns)) == _nonzero(expected)


def _nonzero(counted: Counter[tuple[str, str, str]]) -> dict[tuple[str, str, str], int]:
    return {place: amount for place, amount in counted.items() if amount}


def test_an_update_done_twice_adds_once(play: Play) -> None:
    """The reply is lost on the wire, after the table has done it."""
    play.proxy.lose_replies(3, operation="UpdateItem")
    outcome = play.troubled.aggregator.process([bucket_record(5, bucket_image({"rpm": 1000}))])
    assert (outcome.failed, outcome.counts.counted, play.proxy.left) == (None, 1, 0)
    for window in WINDOWS:
        assert play.used(window) == {"rpm": 1000, "events": 1}


def test_a_later_stream_goes_on_though_its_numbers_begin_anew(play: Play) -> None:
    """A table that was restored from a backup has the old usage, and a new stream."""
    play.host.aggregator.process([bucket_record(10**30, bucket_image({"rpm": 5}))])
    record = bucket_record(7, bucket_image({"rpm": 6}), bucket_image({"rpm": 5}))
    record["eventSourceARN"] = record["eventSourceARN"].replace("/2024-01-01T", "/2024-05-31T")
    play.host.aggregator.process([record])
    play.host.aggregator.process([record])
    assert play.used("month") == {"rpm": 6, "events": 2}


def test_all_shards_of_a_bucket_at_once(each_play: Play) -> None:
    records = [bucket_record(n, bucket_image({"rpm": n}), shard=n % 64) for n in range(1, 129)]
    # An item is inserted once only: the later half are changes.
    for record, before in zip(records[64:], records):
        record["eventName"] = "MODIFY"
        record["dynamodb"]["OldImage"] = before["dynamodb"]["NewImage"]
    outcome = each_play.host.aggregator.process(records)
    assert (outcome.failed, outcome.counts.writes) == (None, 6)
    assert each_play.host.aggregator.process(records[50:]).counts.writes == 0
    expected = {"rpm": sum(range(65, 129)), "events": 128}
    assert all(each_play.used(window) == expected for window in WINDOWS)


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_death_between_the_windows(play: Play, cut: int) -> None:
    records = [bucket_record(1, bucket_image({"rpm": 5}))]
    reader = Reader(play.host, records)
    reader.read(0, 1, [""] * cut + ["die"])
    assert reader.position == 0
    reader.read(0, 1, [])
    assert all(play.used(window) == {"rpm": 5, "events": 1} for window in WINDOWS)


def test_another_gets_on_between_two_tries(play: Play) -> None:
    images = [bucket_image({"rpm": n}) for n in (1, 3, 7)]
    records = [
        bucket_record(1, images[0]),
        bucket_record(2, images[1], images[0]),
        bucket_record(3, images[2], images[1]),
    ]
    reader, other = Reader(play.host, records), Reader(play.host, records)
    other.read(0, 1, [])
    reader.wire.meanwhile = lambda: other.read(0, 1, [])
    # The first try fails in all three windows. Just before the second one, the other counts one more.
    reader.read(0, 3, ["", "", "", "another is faster"])
    assert (reader.position, other.position) == (3, 2)
    assert all(play.used(window) == {"rpm": 7, "events": 3} for window in WINDOWS)


def test_what_the_table_can_never_take_does_not_come_again(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    play.proxy.fail(3, "ValidationException", "Item size to update has exceeded the maximum", operation="UpdateItem")
    outcome = play.troubled.aggregator.process([bucket_record(1, bucket_image({"rpm": 5}))])
    assert (outcome.failed, outcome.counts.skipped, outcome.counts.counted) == (None, 1, 0)
    assert "alice" not in caplog.text
    play.troubled.aggregator.process([bucket_record(2, bucket_image({"rpm": 6}), bucket_image({"rpm": 5}))])
    assert play.used("hour") == {"rpm": 1, "events": 1}
