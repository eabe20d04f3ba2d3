"""The template by itself: it is right by CloudFormation's rules, and its table is that of the store."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from cfnlint.api import ManualArgs, lint

from headgate.aws.stack import StackOptions, template, to_yaml
from headgate.aws.stack.options import check_together, parameters
from headgate.aws.stack.template import alarms
from headgate.core.errors import ValidationError
from headgate.stores.dynamodb.table import STREAM, TABLE, TTL
from headgate.stores.dynamodb.url import MAX_SHARDS


def test_the_template_has_nothing_that_cfn_lint_minds() -> None:
    found = lint(to_yaml(template()), config=ManualArgs(regions=["us-east-1", "eu-central-1"]))
    assert [f"{one.rule.id} {one.path}: {one.message}" for one in found] == []


def test_yaml_says_what_json_says() -> None:
    assert yaml.safe_load(to_yaml(template())) == template()
    odd = {"a: b": ["yes", "", "1", " x", "x ", "- y", "a:", "a: b", "é", 'q"', "#", "a #b", "*", "&a", "no", "0x1"]}
    odd |= {"Null": [None, True, 1, {}, []], "n": {"m": [["deep"], {"k": 1, "l": [2]}]}}
    assert yaml.safe_load(to_yaml(odd)) == odd


def test_it_is_small_enough_to_be_sent_as_it_is() -> None:
    assert len(json.dumps(template(), separators=(",", ":"))) < 51_200


def test_its_table_is_that_of_the_store() -> None:
    table = template()["Resources"]["Table"]["Properties"]
    assert {name: table[name] for name in TABLE} == TABLE
    assert table["TimeToLiveSpecification"] == TTL
    assert {"StreamEnabled": True, **table["StreamSpecification"]} == STREAM
    assert template()["Parameters"]["MaxShards"]["Default"] == MAX_SHARDS


def test_what_holds_data_does_not_go_by_accident() -> None:
    parts = template()["Resources"]
    assert parts["Table"]["UpdateReplacePolicy"] == "Retain"
    assert parts["ArchiveBucket"]["DeletionPolicy"] == "RetainExceptOnCreate"
    assert all(parts["ArchiveBucket"]["Properties"]["PublicAccessBlockConfiguration"].values())


def test_the_stream_is_read_so_that_one_bad_record_stops_nothing() -> None:
    source = template()["Resources"]["AggregatorSource"]["Properties"]
    assert source["BisectBatchOnFunctionError"] is True
    assert source["MaximumRetryAttempts"] == {"Ref": "Retries"}
    assert template()["Parameters"]["Retries"]["Default"] == -1
    assert source["MaximumRecordAgeInSeconds"] < 24 * 3600
    assert source["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert source["DestinationConfig"]["OnFailure"]["Destination"] == {"Fn::GetAtt": ["DeadLetterQueue", "Arn"]}
    assert source["StartingPosition"] == "TRIM_HORIZON"


def test_alarms_watch_what_can_go_wrong() -> None:
    parts = template()["Resources"]
    watched = {
        (parts[name]["Properties"]["MetricName"], parts[name]["Properties"]["Threshold"]) for name in alarms.names()
    }
    assert {
        ("Errors", 1),
        ("Throttles", 1),
        ("Duration", 48_000),  # 80 % of 60 s
        ("Duration", 192_000),
        ("IteratorAge", 15 * 60_000),
        ("ReadThrottleEvents", 1),
        ("WriteThrottleEvents", 1),
        ("ApproximateNumberOfMessagesVisible", 1),
    } == watched


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in _texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return [value] if isinstance(value, str) else []


def test_roles_and_policies_name_what_they_allow() -> None:
    """No action and no resource is simply everything."""
    for name, part in template()["Resources"].items():
        if part["Type"] not in ("AWS::IAM::Role", "AWS::IAM::ManagedPolicy"):
            continue
        statements = re.findall(r'"Action": (\[.*?\]|".*?")', json.dumps(part))
        assert statements, name
        assert not any("*" in statement for statement in statements), name
        assert '"Resource": "*"' not in json.dumps(part), name
        assert "*" not in [text for text in _texts(part) if ":" in text]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"max_shards": 3}, "max_shards 3 is not allowed: it is one of 1, 2, 4"),
        ({"memory_mb": 64}, "from 128 to 10240"),
        ({"memory_mb": True}, "of type int, not True"),
        ({"batch_size": "7"}, "of type int, not '7'"),
        ({"alarms": "no"}, "of type bool, not 'no'"),
        ({"kms_key_arn": "alias/mine"}, "kms_key_arn 'alias/mine' is not allowed: it is the ARN of a key"),
        ({"alarm_topic_arn": "pager"}, "ARN of a topic"),
        ({"alarm_email": "me"}, "e-mail address"),
        ({"namespace_id": "default"}, "not its name"),
        ({"log_retention_days": 2}, "one of 1, 3, 5"),
        ({"permissions_boundary_arn": "x"}, "ARN of a policy"),
        ({"alarm_topic_arn": "arn:aws:sns:eu-west-1:123456789012:a", "alarm_email": "a@b"}, "not both"),
    ],
)
def test_options_are_checked_before_anything_is_asked(options: dict[str, Any], part: str) -> None:
    with pytest.raises(ValidationError) as refused:
        StackOptions(**options)
    assert part in str(refused.value)


def test_options_that_exclude_each_other() -> None:
    values = {name: str(found["Default"]) for name, found in template()["Parameters"].items()}
    check_together(values)
    with pytest.raises(ValidationError, match=r"archive_glacier_days 90 .* archive_expire_days, which is 30"):
        check_together(values | {"ArchiveExpireDays": "30"})
    with pytest.raises(ValidationError, match="set one of"):
        check_together(values | {"AlarmTopicArn": "arn", "AlarmEmail": "a@b"})


def test_the_template_takes_exactly_what_the_options_give() -> None:
    """The pattern in the template and the check here are the same, and the defaults pass both."""
    for option, parameter in parameters():
        parameter.check(option, parameter.default)
        definition = template()["Parameters"][parameter.name]
        pattern = definition.get("AllowedPattern")
        if pattern:
            assert re.search(pattern, definition["Default"])
        assert parameter.read(parameter.spelled(parameter.default)) == parameter.default
