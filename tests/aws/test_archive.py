"""Audit events that expire are in the archive, each once for whoever reads it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from aggregator_helpers import Play, bucket_image, bucket_record, expiry_record
from hypothesis import given
from hypothesis import strategies as st

from headgate.aws import handlers
from headgate.aws.aggregator import BatchResult, Host
from headgate.aws.aggregator.archive import Archive, archived, objects
from headgate.aws.aggregator.records import ExpiredEvent, read_record


def event(sequence: int, entity: str = "alice", happened: str = "2024-01-02T03:04:05.678Z", **values: str) -> Any:
    return expiry_record(sequence, entity, happened, ttl="1", GSI4PK="ns", **values)


def expired(*records: Any) -> list[ExpiredEvent]:
    return [read_record(record) for record in records]  # type: ignore[misc]


@pytest.fixture
def bucket(s3: Any, play: Play) -> Iterator[str]:
    name = f"archive-{play.table}"
    s3.create_bucket(Bucket=name)
    yield name
    for found in s3.list_objects_v2(Bucket=name).get("Contents", ()):
        s3.delete_object(Bucket=name, Key=found["Key"])
    s3.delete_bucket(Bucket=name)


@pytest.fixture
def host(play: Play, bucket: str) -> Iterator[Host]:
    with Host(play.url, archive_bucket=bucket) as made:
        yield made


def process(host: Host, *records: Any) -> BatchResult:
    return host.aggregator.process(list(records))


def day(s3: Any, bucket: str, on: date = date(2024, 1, 2), ns: str = "ns") -> list[dict[str, Any]]:
    return list(archived(s3, bucket, ns, on))


def names(s3: Any, bucket: str) -> list[str]:
    return [found["Key"] for found in s3.list_objects_v2(Bucket=bucket).get("Contents", ())]


def test_archived_events_are_read_back_as_they_were_by_their_day(s3: Any, bucket: str, host: Host) -> None:
    record = event(7, action="limits set", after='{"rpm": "ünï\u2028code"}')
    outcome = process(host, record, event(8, "bob", "2024-02-29T23:59:59Z", action="reset"))
    assert (outcome.failed, outcome.counts.archived) == (None, 2)
    (found,) = day(s3, bucket)
    assert found == {
        "event_id": "ns/AUDIT#alice#AUDIT#2024-01-02T03:04:05.678Z",
        "expired_at": "2024-06-01T12:00:00Z",
        "action": "limits set",
        "after": '{"rpm": "ünï\u2028code"}',
    }
    assert [one["action"] for one in day(s3, bucket, date(2024, 2, 29))] == ["reset"]
    assert day(s3, bucket, date(2024, 1, 3)) == []
    assert day(s3, bucket, ns="other") == []
    assert sorted(names(s3, bucket))[0].startswith("audit/ns/year=2024/month=01/day=02/")
    assert all(name.endswith(".jsonl.gz") for name in names(s3, bucket))


def test_an_event_of_a_limiter(s3: Any, bucket: str, host: Host) -> None:
    """Its record is read out, and the copy by which an entity finds it is none of its own."""
    told = {"at_ms": 1_704_164_645_678, "actor": "ann", "action": "limits.set", "before": None, "after": {"rpm": 5}}
    kept = {"value": json.dumps(told), "version": "1", "expires_at_ms": "2"}
    copy = event(8, "alice", "x", **kept)
    for place in ("Keys", "OldImage"):
        copy["dynamodb"][place]["SK"] = {"S": "#AUDITED#98295835"}
    outcome = process(host, event(7, "", "98295835", **kept), copy)
    assert (outcome.failed, outcome.counts.archived) == (None, 1)
    told_when = {"event_id": "ns/AUDIT##AUDIT#98295835", "expired_at": "2024-06-01T12:00:00Z"}
    assert day(s3, bucket) == [told_when | told]
    process(host, event(9, "", "y", value="{"), event(10, "", "z", value='{"at_ms": 1e300}'))
    assert len(day(s3, bucket, date(2024, 6, 1))) == 2


def test_the_same_batch_again_is_the_same_object(s3: Any, bucket: str, host: Host) -> None:
    records = [event(n, f"e{n}") for n in range(1, 6)]
    for _ in range(3):
        process(host, *records)
    (name,) = names(s3, bucket)
    with s3.get_object(Bucket=bucket, Key=name)["Body"] as body:
        lines = gzip.decompress(body.read()).decode().splitlines()
    assert [json.loads(line)["event_id"].split("#")[1] for line in lines] == ["e1", "e2", "e3", "e4", "e5"]


def test_batches_with_other_neighbours_are_read_once(s3: Any, bucket: str, host: Host) -> None:
    records = [event(n, f"e{n}") for n in range(1, 9)]
    process(host, *records[:5])
    process(host, *records[2:7])
    process(host, *records)
    assert sorted(one["event_id"].split("#")[1] for one in day(s3, bucket)) == [f"e{n}" for n in range(1, 9)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 10)), min_size=1, max_size=5))
def test_objects_depend_on_the_batch_alone(batches: list[tuple[int, int]]) -> None:
    events = expired(*(event(n, f"e{n}", f"2024-01-0{1 + n % 2}T00:00:00Z") for n in range(1, 21)))
    stored: dict[str, bytes] = {}
    for start, size in batches:
        batch = events[start : start + size]
        assert objects(batch) == objects(list(reversed(batch)) + batch)
        for name, content in objects(batch).items():
            assert stored.setdefault(name, content) == content


def test_without_a_bucket_they_are_gone(play: Play) -> None:
    outcome = play.host.aggregator.process([event(1)])
    assert (outcome.failed, outcome.counts.archived) == (None, 0)


def test_deleted_by_hand_is_not_archived(s3: Any, bucket: str, host: Host) -> None:
    record = event(1)
    del record["userIdentity"]
    assert process(host, record).counts.archived == 0
    assert names(s3, bucket) == []


def test_what_cannot_be_archived_comes_again(s3: Any, play: Play, caplog: pytest.LogCaptureFixture) -> None:
    with Host(play.url, archive_bucket="no-such-bucket") as host:
        first, second = bucket_image({"rpm": 3}), bucket_image({"rpm": 5})
        outcome = process(host, bucket_record(1, first), event(2), event(3), bucket_record(4, second, first))
    assert (outcome.failed, outcome.counts.archived) == ("2", 0)
    assert play.used("hour") == {"rpm": 5, "events": 2}  # counted all the same, and once
    assert "not archived" in caplog.text
    assert "alice" not in caplog.text


def test_what_comes_again_anyway_is_archived_then(s3: Any, bucket: str, play: Play) -> None:
    with Host(play.proxy.url(play.table)) as host:
        host.aggregator._archive = Archive(s3, bucket)
        play.proxy.fail(1000, "ProvisionedThroughputExceededException", operation="UpdateItem")
        records = [event(1, "e1"), bucket_record(2, bucket_image({"rpm": 1})), event(3, "e3")]
        outcome = process(host, *records)
        assert (outcome.failed, outcome.counts.archived) == ("2", 1)
        play.proxy.forget()
        assert process(host, *records[1:]).failed is None
    assert len(names(s3, bucket)) == 2
    assert sorted(one["event_id"].split("#")[1] for one in day(s3, bucket)) == ["e1", "e3"]


def test_an_event_without_a_date_is_kept_under_the_day_it_expired(s3: Any, bucket: str, host: Host) -> None:
    process(host, event(1, happened="long ago"), event(2, happened="2024-13-45T00:00:00Z"))
    assert len(day(s3, bucket, date(2024, 6, 1))) == 2


def test_a_restored_table_overwrites_nothing(s3: Any, bucket: str, host: Host) -> None:
    """The numbers of its stream may be those of the old one."""
    again = event(1, "e2")
    again["eventSourceARN"] = again["eventSourceARN"].replace("/2024-01-01T", "/2024-05-31T")
    process(host, event(1, "e1"))
    process(host, again)
    assert len(day(s3, bucket)) == 2


def test_handler_archives_expired_events(s3: Any, bucket: str, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_URL", play.url)
    monkeypatch.setenv("HEADGATE_ARCHIVE_BUCKET", bucket)
    try:
        assert handlers.aggregate({"Records": [event(1)]}, None) == {"batchItemFailures": []}
    finally:
        handlers.close()
    assert len(day(s3, bucket)) == 1
