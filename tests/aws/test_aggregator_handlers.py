"""The functions as Lambda calls them, and one that Lambda really runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aggregator_helpers import NOON, Play, bucket_image, bucket_record, total

from headgate import SyncRateLimiter
from headgate.aws import handlers
from headgate.aws.aggregator.windows import WINDOWS
from headgate.aws.stack.package import build_package
from headgate.core.errors import HeadgateError, RateLimiterUnavailable, ValidationError
from headgate.limiter.leases.reconcile import Reconciled
from headgate.stores.dynamodb.namespaces import Namespaces
from local_servers.dynamodb import Engine


class Context:
    def __init__(self, *remaining_ms: int) -> None:
        self._remaining_ms = list(remaining_ms)

    def get_remaining_time_in_millis(self) -> int:
        return self._remaining_ms.pop(0) if len(self._remaining_ms) > 1 else self._remaining_ms[0]


PLENTY = Context(60_000)


@pytest.fixture
def environment(play: Play, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setenv("HEADGATE_URL", play.url)
    for name in ("HEADGATE_ARCHIVE_BUCKET", "HEADGATE_USAGE_RETENTION_DAYS", "HEADGATE_MAX_SHARDS"):
        monkeypatch.delenv(name, raising=False)
    yield monkeypatch
    handlers.close()


def failures(*sequences: int) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": str(sequence)} for sequence in sequences]}


def aggregate(*records: Any, context: Any = PLENTY) -> dict[str, Any]:
    """With an event that went through JSON, as all do."""
    return handlers.aggregate(json.loads(json.dumps({"Records": records})), context)


def test_handler_counts_each_record_of_a_batch_once(play: Play, environment: pytest.MonkeyPatch) -> None:
    first, second = bucket_image({"rpm": 700}), bucket_image({"rpm": 900})
    assert aggregate(bucket_record(1, first), bucket_record(2, second, first)) == failures()
    assert aggregate(bucket_record(2, second, first)) == failures()
    for window in WINDOWS:
        assert play.used(window) == {"rpm": 900, "events": 2}


def test_a_record_that_cannot_be_read_is_skipped_and_holds_up_nothing(
    play: Play, environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    poison = bucket_record(2, {"b_rpm_tc": {"S": "my-secret"}}, bucket_image({"rpm": 1}))
    before, after = bucket_image({"rpm": 1}), bucket_image({"rpm": 3})
    with caplog.at_level("INFO", "headgate.aws"):
        assert aggregate(bucket_record(1, before), poison, {}, bucket_record(3, after, before)) == failures()
    assert play.used("hour") == {"rpm": 3, "events": 2}
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "headgate.aws"]
    assert [line["event"] for line in lines] == ["record skipped", "record skipped", "aggregated"]
    assert lines[0]["sequence_number"] == "2"
    assert lines[-1] == {
        "level": "INFO", "event": "aggregated", "records": 4, "counted": 2, "writes": 3, "skipped": 2, "archived": 0,
        "splits": 0, "failed": None,
    }  # fmt: skip
    assert not any(secret in caplog.text for secret in ("my-secret", "alice"))


def test_lambda_is_told_from_where_on_to_deliver_again(play: Play, environment: pytest.MonkeyPatch) -> None:
    """One entity's usage cannot be written: the records after its first come again, and count once."""
    environment.setenv("HEADGATE_URL", play.proxy.url(play.table))
    play.proxy.fail(1000, "ProvisionedThroughputExceededException", operation="UpdateItem")
    records = [
        bucket_record(n, bucket_image({"rpm": n}), bucket_image({"rpm": n - 1}) if n > 1 else None) for n in (1, 2, 3)
    ]
    assert aggregate(*records[:2]) == failures(1)
    play.proxy.forget()
    assert aggregate(*records) == failures()
    assert play.used("hour") == {"rpm": 3, "events": 3}


def test_what_there_is_no_time_for_comes_again(play: Play, environment: pytest.MonkeyPatch) -> None:
    records = [bucket_record(n, bucket_image({"rpm": n}), entity=f"e{n}") for n in range(1, 101)]
    # 100 entities in 3 windows are 300 writes, and there is time for the first hundred of them.
    assert aggregate(*records, context=Context(60_000, 10)) == failures(34)
    assert play.used("hour", entity="e1")["events"] == 1
    assert play.used("hour", entity="e50")["events"] == 0
    assert aggregate(*records[33:]) == failures()
    for n in range(1, 101):
        assert all(play.used(window, entity=f"e{n}") == {"rpm": n, "events": 1} for window in WINDOWS)


def test_how_long_usage_is_kept(play: Play, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HEADGATE_USAGE_RETENTION_DAYS", "7")
    aggregate(bucket_record(1, bucket_image({"rpm": 1})))
    kept = {item["window"]: item["ttl"] for item in play.usage_items()}
    assert kept["hour"] == NOON + 3600 + 7 * 86400
    assert kept["hour"] < kept["day"] < kept["month"]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("HEADGATE_URL", "", "HEADGATE_URL is not set"),
        ("HEADGATE_URL", "redis://localhost", "'redis://localhost' has no stream"),
        ("HEADGATE_USAGE_RETENTION_DAYS", "a week", "must be a whole number, not 'a week'"),
        ("HEADGATE_USAGE_RETENTION_DAYS", "1", "from 2 to 3660 days, not 1"),
        ("HEADGATE_MAX_SHARDS", "3", "power of two from 1 to 64, not 3"),
        ("HEADGATE_ARCHIVE_BUCKET", "Not_A_Bucket", "'Not_A_Bucket'"),
    ],
)
def test_an_environment_that_cannot_be(environment: pytest.MonkeyPatch, name: str, value: str, why: str) -> None:
    environment.setenv(name, value)
    with pytest.raises(ValidationError, match=why):
        aggregate()


def test_an_event_of_something_else(environment: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="stream of a DynamoDB table"):
        handlers.aggregate({"source": "aws.events"}, PLENTY)


def test_a_table_that_is_not_there(play: Play, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HEADGATE_URL", play.engine.url("no-such-table"))
    with pytest.raises(ValidationError, match="does not exist"):
        aggregate(bucket_record(1, bucket_image({"rpm": 1})))


@pytest.fixture
def namespaces(play: Play) -> list[str]:
    """Three, of which one cannot be used."""
    registry = Namespaces(play.host.deliverer)
    for name in ("blue", "green", "red"):
        play.host.run(registry.register_plan(name))
    play.client.update_item(
        TableName=play.table,
        Key={"PK": {"S": "_/SYSTEM#"}, "SK": {"S": "#NAMESPACE#green"}},
        UpdateExpression="SET #status = :deleted",
        ExpressionAttributeNames={"#status": "status"},
        ExpressionAttributeValues={":deleted": {"S": "deleted"}},
    )
    return ["blue", "red"]


def test_every_namespace_is_reconciled(
    namespaces: list[str], environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "headgate.aws"):
        answer = handlers.reconcile({}, PLENTY)
    assert list(answer["namespaces"]) == namespaces
    assert all(counts["buckets"] == 0 for counts in answer["namespaces"].values())
    assert json.loads(caplog.messages[-1])["namespaces"] == answer["namespaces"]


def test_one_that_fails_does_not_hold_up_the_others_and_is_not_hidden(
    namespaces: list[str], environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    def reconcile(limiter: Any) -> Reconciled:
        if limiter.namespace == "blue":
            raise RateLimiterUnavailable("not now")
        done.append(limiter.namespace)
        return Reconciled(0, 0, 0, 0)

    environment.setattr(SyncRateLimiter, "reconcile", reconcile)
    with pytest.raises(HeadgateError, match="1 of 2 namespaces"):
        handlers.reconcile({}, PLENTY)
    assert done == ["red"]
    assert "not now" in caplog.text


def test_lambda_runs_the_built_package(play: Play, ministack: Engine) -> None:
    functions = ministack.client("lambda")
    try:
        functions.create_function(
            FunctionName=play.table,
            Runtime="python3.13",
            Role="arn:aws:iam::000000000000:role/any",
            Handler="headgate.aws.handlers.aggregate",
            Code={"ZipFile": build_package().data},
            Timeout=60,
            Environment={"Variables": {"HEADGATE_URL": play.url}},
        )
        arn = play.client.describe_table(TableName=play.table)["Table"]["LatestStreamArn"]
        bucket = play.bucket()
        bucket.consume(rpm=1000)
        functions.create_event_source_mapping(
            EventSourceArn=arn,
            FunctionName=play.table,
            StartingPosition="TRIM_HORIZON",
            BatchSize=5,
            FunctionResponseTypes=["ReportBatchItemFailures"],
        )
        for n in range(1, 20):
            bucket.consume(rpm=n, tpm=-n)
        # The same stream read by a process at the same time changes nothing.
        play.follow_once()
        bucket.consume(rpm=7)
        deadline = time.monotonic() + 60
        while play.used("month")["events"] < 21 and time.monotonic() < deadline:
            time.sleep(0.1)
        for window in WINDOWS:
            assert play.used(window) == total([bucket]), ministack.log[-3000:]
        (mapping,) = functions.list_event_source_mappings(FunctionName=play.table)["EventSourceMappings"]
        assert "OK" in mapping["LastProcessingResult"]
        functions.delete_event_source_mapping(UUID=mapping["UUID"])
    finally:
        functions.delete_function(FunctionName=play.table)
        functions.close()
