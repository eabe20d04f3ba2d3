"""Stacks on ministack: made, used, changed, deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from stack_helpers import QUICK, Site, site

import headgate.aws.stack.cloudformation as cloudformation
from headgate import Limit, RateLimiterUnavailable, SyncRateLimiter, ValidationError, __version__
from headgate.aws.stack import Stack, StackError, StackFailed, StackNotFound, StackOptions, template
from headgate.stores.dynamodb.table import TABLE
from headgate.testing.servers.process import eventually, free_port
from local_servers.dynamodb import Engine

LIMITS = [Limit.per_hour("rpm", 100)]


@pytest.fixture
def here(ministack: Engine, aws_credentials: str) -> Iterator[Site]:
    with site(ministack) as made:
        yield made


@pytest.fixture
def alone(own_ministack: Engine, aws_credentials: str) -> Iterator[Site]:
    """ministack counts the errors of all functions together, and the alarms of every stack go off."""
    with site(own_ministack) as made:
        yield made


def test_from_the_first_deploy_to_the_end(here: Site) -> None:
    stack = here.stack
    deployed = stack.deploy(QUICK, on_event=here.events.append)
    assert (deployed.action, deployed.namespace) == ("created", "default")
    assert here.ended()["Table"] == here.ended()[here.name] == "CREATE_COMPLETE"

    with SyncRateLimiter(deployed.url, store_timeout=20) as limiter:
        limiter.try_acquire("acme", "llm", {"rpm": 3}, LIMITS)
        limiter.try_acquire("acme", "llm", {"rpm": 4}, LIMITS)
    # Nothing here counts: it is the function, with the code of the package, behind the stream.
    eventually(lambda: _used(here, deployed.namespace_id) == ["7000"] * 3, "the function has counted")

    status = stack.status()
    assert status.problems == []
    assert status.version == __version__
    assert status.table is not None
    assert (status.table.expiry, status.table.backups, status.table.stream) == (True, True, True)
    assert (status.table.layout, status.table.namespaces) == (2, ["default"])
    assert [function.name for function in status.functions] == [f"{here.name}-aggregator", f"{here.name}-reconciler"]
    assert "on the stream, enabled" in status.functions[0].runs
    assert status.functions[1].runs == "rate(5 minutes), enabled"
    assert len(status.alarms) == 14
    assert status.dead_letters == 0

    assert stack.update().action == "unchanged"
    assert stack.update(StackOptions(memory_mb=512, point_in_time_recovery=False)).action == "updated"
    function = here.client("lambda").get_function_configuration(FunctionName=f"{here.name}-aggregator")
    assert function["MemorySize"] == 512
    assert function["Environment"]["Variables"]["HEADGATE_URL"] == f"dynamodb://{here.name}?region=us-east-1"
    status = stack.status()
    assert status.table is not None
    assert status.table.backups is False
    assert _used(here, deployed.namespace_id) == ["7000"] * 3

    done = stack.delete(on_event=here.events.append)
    assert done.kept_bucket == deployed.outputs["ArchiveBucketName"]
    assert here.ended()["ArchiveBucket"] == "DELETE_SKIPPED"
    assert here.ended()[here.name] == "DELETE_COMPLETE"
    assert here.buckets() == [done.kept_bucket]  # and no bucket of code
    with pytest.raises(StackNotFound, match=f"`headgate aws deploy --name {here.name}` makes it"):
        stack.status()


def _used(here: Site, namespace_id: str | None) -> list[str]:
    assert namespace_id is not None
    found = here.usage(namespace_id, "acme")
    return [found[window]["u_rpm"]["N"] for window in ("hour", "day", "month") if window in found]


def test_the_table_is_as_the_store_makes_it(here: Site) -> None:
    here.stack.deploy(functions=False)
    found = here.client("dynamodb").describe_table(TableName=here.name)["Table"]
    assert found["KeySchema"] == TABLE["KeySchema"]
    indexes = [{name: index[name] for name in ("IndexName", "KeySchema", "Projection")} for index in _indexes(found)]
    assert indexes == TABLE["GlobalSecondaryIndexes"]
    with SyncRateLimiter(here.stack.url, store_timeout=20) as limiter:
        limiter.try_acquire("acme", "llm", {"rpm": 3}, LIMITS)


def _indexes(found: Any) -> list[Any]:
    return sorted(found["GlobalSecondaryIndexes"], key=lambda index: str(index["IndexName"]))


def test_without_functions_there_is_only_the_table_and_what_guards_it(here: Site) -> None:
    deployed = here.stack.deploy(StackOptions(archive=False, alarms=False), functions=False)
    assert "AggregatorArn" not in deployed.outputs
    assert here.stack.status().functions == []
    assert here.stack.status().alarms == []
    assert here.stack.update(StackOptions(alarms=True)).action == "updated"
    status = here.stack.status()
    assert status.functions == []  # what is not said stays as it is
    assert sorted(alarm.name for alarm in status.alarms)[:2] == ["GSI1Throttles", "GSI2Throttles"]
    assert here.stack.update(functions=True).outputs["AggregatorArn"].endswith(f"{here.name}-aggregator")
    here.stack.delete()


def test_a_deploy_that_fails_says_what_failed_first_and_leaves_nothing(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = here.buckets()
    monkeypatch.setattr(cloudformation, "template", _broken)
    with pytest.raises(StackFailed) as failed:
        here.stack.deploy(on_event=here.events.append)
    assert failed.value.resource == "Broken (AWS::CloudWatch::Alarm)"
    assert "metric math" in failed.value.reason
    assert "could not be created, and was removed: Broken" in str(failed.value)
    assert here.ended()["Broken"] == "CREATE_FAILED"
    assert here.buckets() == before
    monkeypatch.undo()
    assert here.stack.deploy(functions=False).action == "created"
    monkeypatch.setattr(cloudformation, "template", _broken)
    with pytest.raises(StackFailed, match="could not be updated, and is as before: Broken"):
        here.stack.update()
    monkeypatch.undo()
    assert here.stack.update().action == "unchanged"


def _broken() -> dict[str, Any]:
    properties = {"Metrics": [{"Id": "a"}], "ComparisonOperator": "GreaterThanThreshold", "EvaluationPeriods": 1}
    broken = template()
    broken["Resources"]["Broken"] = {"Type": "AWS::CloudWatch::Alarm", "Properties": properties}
    return broken


def test_a_protected_table_is_not_deleted(here: Site) -> None:
    here.stack.deploy(StackOptions(deletion_protection=True), functions=False)
    with pytest.raises(StackError, match="--no-deletion-protection"):
        here.stack.delete()
    assert here.stack.status().problems == []
    here.stack.update(StackOptions(deletion_protection=False))
    here.stack.delete()


def test_the_archive_goes_only_when_told_to(here: Site) -> None:
    bucket = here.stack.deploy().outputs["ArchiveBucketName"]
    here.client("s3").put_object(Bucket=bucket, Key="audit/one", Body=b"kept")
    before = [name for name in here.buckets() if name != bucket]
    assert here.stack.delete(delete_archive=True).deleted_bucket == bucket
    assert here.buckets() == [name for name in before if not name.startswith("headgate-code-")]


def test_code_is_uploaded_once_and_replaced_when_it_changes(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def keys() -> list[str]:
        (bucket,) = [name for name in here.buckets() if name.startswith("headgate-code-")]
        return here.objects(bucket, f"{here.name}/")

    here.stack.deploy()
    (first,) = keys()
    here.stack.deploy()
    assert keys() == [first]
    monkeypatch.setattr("headgate.aws.stack.s3.build_package", _other_code)
    assert here.stack.deploy().action == "updated"
    (second,) = keys()
    assert second != first
    here.stack.delete()


def _other_code() -> Any:
    from headgate.aws.stack import Package, build_package

    package = build_package()
    return Package(package.data, "0" * 64, package.names)


def test_a_bucket_of_ones_own_for_the_code(here: Site) -> None:
    with pytest.raises(StackError, match="'mine-alone', for the functions' code, does not exist"):
        here.stack.deploy(code_bucket="mine-alone")
    here.client("s3").create_bucket(Bucket="mine-alone")
    here.stack.deploy(code_bucket="mine-alone")
    assert here.stack.deploy().action == "unchanged"
    here.stack.delete()
    assert here.objects("mine-alone") == []


def test_a_stack_of_one_namespace(here: Site) -> None:
    deployed = here.stack.deploy(namespace="blue", functions=False)
    assert deployed.namespace == "blue"
    reads = here.policy("ReadOnlyPolicyArn")["Statement"][0]
    assert reads["Condition"]["ForAllValues:StringLike"]["dynamodb:LeadingKeys"] == [
        f"{deployed.namespace_id}/*",
        deployed.namespace_id,
    ]
    again = here.stack.update(namespace="blue")
    assert (again.action, again.namespace_id) == ("unchanged", deployed.namespace_id)
    other = here.stack.update(namespace="green")
    assert (other.action, other.namespace_id != deployed.namespace_id) == ("updated", True)
    whole = here.stack.update(namespace="")
    assert (whole.action, whole.namespace) == ("updated", "default")
    keys = here.policy("ReadOnlyPolicyArn")["Statement"][0]["Condition"]["ForAllValues:StringLike"]
    assert keys["dynamodb:LeadingKeys"] == ["*/*", "*"]
    with pytest.raises(ValidationError, match="pass namespace or namespace_id, not both"):
        here.stack.update(StackOptions(namespace_id="abcdefghijk"), namespace="blue")


def test_tags_are_on_everything(here: Site) -> None:
    here.stack.deploy(functions=False, tags={"team": "platform"})
    arn = here.stack.outputs()["TableArn"]
    tags = here.client("dynamodb").list_tags_of_resource(ResourceArn=arn)["Tags"]
    assert {"Key": "team", "Value": "platform"} in tags


def test_what_is_wrong_is_a_problem(alone: Site) -> None:
    here = alone
    here.stack.deploy()
    dynamodb = here.client("dynamodb")
    dynamodb.update_time_to_live(
        TableName=here.name, TimeToLiveSpecification={"Enabled": False, "AttributeName": "ttl"}
    )
    cloudwatch = here.client("cloudwatch")
    (alarm,) = [
        found["AlarmName"]
        for found in cloudwatch.describe_alarms()["MetricAlarms"]
        if found["AlarmName"].startswith(f"{here.name}-AggregatorLate")
    ]
    cloudwatch.set_alarm_state(AlarmName=alarm, StateValue="ALARM", StateReason="two hours behind")
    here.client("sqs").send_message(QueueUrl=here.stack.outputs()["DeadLetterQueueUrl"], MessageBody="{}")
    # An event that is none: the function fails.
    here.client("lambda").invoke(FunctionName=f"{here.name}-aggregator", Payload=b"{}")
    status = here.stack.status()
    assert sorted(status.problems) == [
        "alarm AggregatorLate: two hours behind",
        "batches on which the aggregator gave up: 1",
        "expiry of items is off: `headgate aws update --name " + here.name + "` turns it on",
        f"{here.name}-aggregator: 1 errors in 24 hours",
    ]
    assert "the event has no Records" in status.functions[0].last_error
    here.stack.update()
    assert "expiry" not in str(here.stack.status().problems)


def test_bad_names_of_a_stack_are_refused() -> None:
    for name in ("a", "1st", "under_score", "x" * 49):
        with pytest.raises(ValidationError, match="3 to 48"):
            Stack(name, region="eu-west-1")


@pytest.mark.usefixtures("aws_credentials")
def test_a_region_is_needed_and_somebody_who_answers() -> None:
    with pytest.raises(ValidationError, match="--region"):
        Stack("limits")
    with pytest.raises(ValidationError, match="nobody"):
        Stack("limits", region="eu-west-1", profile="nobody")
    endpoint = f"http://127.0.0.1:{free_port()}"
    with (
        Stack("limits", region="eu-west-1", endpoint_url=endpoint) as stack,
        pytest.raises(RateLimiterUnavailable, match="does not answer"),
    ):
        stack.status()


def test_status_without_credentials_names_the_missing_variables(
    monkeypatch: pytest.MonkeyPatch, aws_credentials: str
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with Stack("limits", region="eu-west-1") as stack, pytest.raises(ValidationError, match="AWS_SECRET_ACCESS_KEY"):
        stack.status()
