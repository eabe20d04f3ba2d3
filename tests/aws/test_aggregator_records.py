"""What a record says, in which window it lands, and what is done with one that says nothing."""

from __future__ import annotations

import copy
import json
from datetime import datetime, timezone
from typing import Any

import pytest
from aggregator_helpers import ARN, NOON, bucket_image, bucket_record, expiry_record, seconds
from hypothesis import given
from hypothesis import strategies as st

from headgate.aws.aggregator.records import BucketChange, ExpiredEvent, Unreadable, read_record
from headgate.aws.aggregator.usage_items import UsageWrite, usage_writes
from headgate.aws.aggregator.windows import (
    WINDOWS,
    check_retention_days,
    kept_until,
    next_start,
    start_text,
    window_start,
)
from headgate.core.errors import ValidationError
from headgate.stores.dynamodb import keys
from headgate.stores.dynamodb.items import values_of


def change(record: Any, label: str | None = None) -> BucketChange:
    found = read_record(record, label)
    assert isinstance(found, BucketChange)
    return found


def landed(at: float) -> dict[str, str]:
    """The start of the window of each length."""
    writes = usage_writes([change(bucket_record(1, bucket_image({"rpm": 1}), at=at))])
    return {write.key.window: start_text(write.key.start) for write in writes}


def key_of(write: UsageWrite) -> dict[str, str]:
    return values_of(write.send("rates", 90).parameters["Key"])


def test_an_insert_counts_whole_and_a_change_by_its_difference() -> None:
    first, second = bucket_image({"rpm": 700}), bucket_image({"rpm": 650, "tpm": 3})
    assert change(bucket_record(1, first)).deltas == {"rpm": 700}
    assert change(bucket_record(2, second, first)).deltas == {"rpm": -50, "tpm": 3}
    assert change(bucket_record(3, second, second)).deltas == {}
    assert read_record(bucket_record(4, None, second)) is None


def test_a_limit_that_leaves_the_item_gives_nothing_back() -> None:
    assert change(bucket_record(1, bucket_image({"rpm": 5}), bucket_image({"rpm": 4, "tpm": 9}))).deltas == {"rpm": 1}


def test_slots_are_no_usage() -> None:
    """They are beside the buckets, and come back."""
    record = bucket_record(1, bucket_image({"rpm": 5}))
    record["dynamodb"]["Keys"]["SK"] = {"S": keys.SLOTS}
    assert read_record(record) is None


@pytest.mark.parametrize("limit", ["a_b.c-d", "x_tc", "tc", "x_tc_", "b_"])
def test_limits_are_named_as_people_like(limit: str) -> None:
    assert change(bucket_record(1, bucket_image({limit: 5}))).deltas == {limit: 5}


def test_both_ways_to_get_a_record_mean_the_same() -> None:
    given_by_lambda = bucket_record(77, bucket_image({"rpm": 5}), at=NOON + 59.0)
    read = copy.deepcopy(given_by_lambda)
    del read["eventSourceARN"]
    read["dynamodb"]["ApproximateCreationDateTime"] = datetime.fromtimestamp(NOON + 59.4, timezone.utc)
    assert change(read, "2024-01-01T00:00:00.000") == change(given_by_lambda)
    in_ms = bucket_record(77, bucket_image({"rpm": 5}), at=(NOON + 59) * 1000 + 999)
    assert change(in_ms) == change(given_by_lambda)


def test_sequence_numbers_are_ordered_as_numbers_and_streams_by_their_age() -> None:
    def mark(sequence: int, label: str = "2024-01-01T00:00:00.000") -> str:
        record = bucket_record(sequence, bucket_image({"rpm": 1}))
        record["eventSourceARN"] = ARN.replace("2024-01-01T00:00:00.000", label)
        return change(record).position.mark

    numbers = [9, 10, 99, 100, 10**20, 10**21 - 1, 10**21, 10**39]
    marks = [mark(number) for number in numbers]
    assert marks == sorted(marks)
    assert (
        mark(10**39) < mark(1, "2024-01-01T00:00:00.001") < mark(1, "2024-10-01T00:00:00") < mark(1, "2025-01-01T00:00")
    )


@pytest.mark.parametrize(
    ("at", "hour", "day", "month"),
    [
        ("2024-02-29T23:59:59", "2024-02-29T23:00:00Z", "2024-02-29T00:00:00Z", "2024-02-01T00:00:00Z"),
        ("2024-03-01T00:00:00", "2024-03-01T00:00:00Z", "2024-03-01T00:00:00Z", "2024-03-01T00:00:00Z"),
        ("2024-12-31T23:59:59", "2024-12-31T23:00:00Z", "2024-12-31T00:00:00Z", "2024-12-01T00:00:00Z"),
        ("2025-01-01T00:00:00", "2025-01-01T00:00:00Z", "2025-01-01T00:00:00Z", "2025-01-01T00:00:00Z"),
    ],
)
def test_a_moment_at_the_edge_lands_in_the_window_that_begins(at: str, hour: str, day: str, month: str) -> None:
    for fraction in (0.0, 0.001, 0.999):
        assert landed(seconds(at) + fraction) == {"hour": hour, "day": day, "month": month}
        assert landed((seconds(at) + fraction) * 1000) == {"hour": hour, "day": day, "month": month}


def test_windows_that_start_together_have_keys_of_their_own() -> None:
    midnight = seconds("2024-03-01T00:00:00")
    writes = usage_writes([change(bucket_record(1, bucket_image({"rpm": 1}), at=midnight))])
    assert len({(key_of(write)["PK"], key_of(write)["SK"]) for write in writes}) == 3


@given(st.sampled_from(WINDOWS), st.integers(0, 253_370_764_799))
def test_a_moment_is_in_exactly_one_window(window: str, at: int) -> None:
    start = window_start(window, at)
    after = next_start(window, start)
    assert start <= at < after
    assert window_start(window, start) == start
    assert window_start(window, after) == after
    assert window_start(window, after - 1) == start


def test_usage_is_kept_at_least_until_nothing_can_come_again() -> None:
    for window in WINDOWS:
        assert kept_until(window, NOON, 2) >= next_start(window, NOON) + 2 * 86400
    assert kept_until("hour", NOON, 90) == NOON + 3600 + 90 * 86400
    for wrong in (0, 1, -1, 10**6, "90"):
        with pytest.raises(ValidationError, match="from 2 to 3660 days"):
            check_retention_days(wrong)  # type: ignore[arg-type]


def test_only_what_expired_is_an_expired_event() -> None:
    record = expiry_record(5, "alice", "2024-01-02T03:04:05.678Z", action="limits set")
    found = read_record(record)
    assert isinstance(found, ExpiredEvent)
    assert found.values["action"] == "limits set"
    # GetRecords has other capitals.
    who = {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}
    assert read_record({**record, "userIdentity": who}) == found
    # Deleted by a user, or not an audit event.
    assert read_record({**record, "userIdentity": {"principalId": "AIDA", "type": "User"}}) is None
    assert read_record({**record, "userIdentity": None}) is None
    assert read_record({**record, "eventName": "INSERT"}) is None


def _without(path: str) -> Any:
    record: Any = bucket_record(1, bucket_image({"rpm": 1}), bucket_image({"rpm": 0}))
    *folders, name = path.split("/")
    place = record
    for folder in folders:
        place = place[folder]
    del place[name]
    return record


def _with(path: str, value: Any) -> Any:
    record: Any = bucket_record(1, bucket_image({"rpm": 1}), bucket_image({"rpm": 0}))
    *folders, name = path.split("/")
    place = record
    for folder in folders:
        place = place[folder]
    place[name] = value
    return record


MALFORMED = [
    None,
    [],
    {},
    {"dynamodb": None},
    _without("eventName"),
    _without("eventSourceARN"),
    _without("dynamodb/Keys"),
    _without("dynamodb/Keys/PK"),
    _without("dynamodb/NewImage"),
    _without("dynamodb/OldImage"),
    _without("dynamodb/SequenceNumber"),
    _without("dynamodb/ApproximateCreationDateTime"),
    _with("eventName", "UPSERT"),
    _with("eventSourceARN", "arn:aws:sqs:eu-west-1:1:queue"),
    _with("dynamodb/Keys/PK", {"S": "ns/BUCKET#alice"}),
    _with("dynamodb/Keys/PK", {"S": "ns/BUCKET#alice#api#first"}),
    _with("dynamodb/Keys/PK", {"S": "ns/BUCKET#alice#api#64"}),
    _with("dynamodb/Keys/PK", {"S": "ns/BUCKET#alice#api#-1"}),
    _with("dynamodb/Keys/PK", {"N": "1"}),
    _with("dynamodb/SequenceNumber", "12a"),
    _with("dynamodb/SequenceNumber", ""),
    _with("dynamodb/SequenceNumber", "1" * 41),
    _with("dynamodb/SequenceNumber", 12),
    _with("dynamodb/ApproximateCreationDateTime", "yesterday"),
    _with("dynamodb/ApproximateCreationDateTime", -1),
    _with("dynamodb/ApproximateCreationDateTime", 1e30),
    _with("dynamodb/ApproximateCreationDateTime", 253_402_300_799_000),
    _with("dynamodb/ApproximateCreationDateTime", float("nan")),
    _with("dynamodb/ApproximateCreationDateTime", True),
    _with("dynamodb/NewImage/b_rpm_tc", {"S": "12"}),
    _with("dynamodb/NewImage/b_rpm_tc", {"N": "1.5"}),
    _with("dynamodb/NewImage/b_rpm_tc", {"N": "NaN"}),
    _with("dynamodb/NewImage/b_rpm_tc", {"N": "Infinity"}),
    _with("dynamodb/NewImage/b_rpm_tc", 12),
    _with("dynamodb/OldImage/wcu", {"N": "many"}),
    {
        **expiry_record(1, "alice", "2024-01-01T00:00:00Z"),
        "dynamodb": {"Keys": {"PK": {"S": "n/AUDIT#a"}, "SK": {"S": ""}}},
    },
    _with("dynamodb/Keys", expiry_record(1, "a", "b")["dynamodb"]["Keys"])
    | {"eventName": "REMOVE", "userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"}}
    | {"dynamodb": expiry_record(1, "a", "b")["dynamodb"] | {"OldImage": {"a": {}}}},
]


@pytest.mark.parametrize("record", MALFORMED, ids=range(len(MALFORMED)))
def test_a_record_that_nobody_can_read_is_unreadable(record: Any) -> None:
    with pytest.raises(Unreadable) as caught:
        read_record(record)
    assert "alice" not in str(caught.value)


_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
_json = st.recursive(_scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))


@given(st.data())
def test_no_damage_does_more_than_that(data: st.DataObject) -> None:
    record: Any = json.loads(json.dumps(bucket_record(1, bucket_image({"rpm": 1}), bucket_image({"rpm": 0}))))
    place, name = record, data.draw(st.sampled_from(sorted(record)))
    while isinstance(place[name], dict) and place[name] and data.draw(st.booleans()):
        place = place[name]
        name = data.draw(st.sampled_from(sorted(place)))
    place[name] = data.draw(_json)
    try:
        read_record(record)
    except Unreadable:
        pass
