"""The alarms: errors, delays, throttling, and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....stores.dynamodb.table import INDEXES
from .functions import AGGREGATOR, NAMES, RECONCILER, TIMEOUT_SECONDS
from .storage import DEAD_LETTERS, TABLE
from .words import HAS_ALARMS, HAS_EMAIL, HAS_FUNCTION_ALARMS, HAS_TOPIC, Json, att, ref, sub, when

TOPIC = "AlarmTopic"
LATE_MINUTES = 15  # of the 24 hours for which a stream keeps its records
NEAR_TIMEOUT = 0.8


def resources() -> Json:
    made: Json = {
        TOPIC: _topic(),
        "ReadThrottles": _throttles("reads", "ReadThrottleEvents"),
        "WriteThrottles": _throttles("writes", "WriteThrottleEvents"),
    }
    made |= {f"{index}Throttles": _throttles(f"writes to {index}", "WriteThrottleEvents", index) for index in INDEXES}
    for function in (AGGREGATOR, RECONCILER):
        made |= {
            f"{function}Errors": _of_function(
                function, "Errors", "Sum", 1, f"The {NAMES[function]} failed. Its log says why."
            ),
            f"{function}Throttles": _of_function(
                function, "Throttles", "Sum", 1, f"Lambda did not run the {NAMES[function]}: raise the concurrency."
            ),
            f"{function}Duration": _of_function(
                function,
                "Duration",
                "Maximum",
                round(TIMEOUT_SECONDS[function] * 1000 * NEAR_TIMEOUT),
                f"The {NAMES[function]} nearly ran out of time. Raise MemoryMB, or lower BatchSize.",
            ),
        }
    return made | {
        "AggregatorLate": _of_function(
            AGGREGATOR,
            "IteratorAge",
            "Maximum",
            LATE_MINUTES * 60_000,
            f"The aggregator is {LATE_MINUTES} minutes behind the stream. After 24 hours records are lost.",
        ),
        "DeadLetters": _alarm(
            HAS_FUNCTION_ALARMS,
            "The aggregator gave up on records of the stream: usage does not include them.",
            Namespace="AWS/SQS",
            MetricName="ApproximateNumberOfMessagesVisible",
            Dimensions=[{"Name": "QueueName", "Value": att(DEAD_LETTERS, "QueueName")}],
            Statistic="Maximum",
            Period=300,
            Threshold=1,
        ),
    }


def _of_function(function: str, metric: str, statistic: str, threshold: int, about: str) -> Json:
    return _alarm(
        HAS_FUNCTION_ALARMS,
        about,
        Namespace="AWS/Lambda",
        MetricName=metric,
        Dimensions=[{"Name": "FunctionName", "Value": ref(function)}],
        Statistic=statistic,
        Period=300,
        Threshold=threshold,
    )


def _throttles(what: str, metric: str, index: str | None = None) -> Json:
    """In three of five minutes: a hot bucket is split, which takes a moment."""
    dimensions: list[Json] = [{"Name": "TableName", "Value": ref(TABLE)}]
    if index:
        dimensions.append({"Name": "GlobalSecondaryIndexName", "Value": index})
    return _alarm(
        HAS_ALARMS,
        f"DynamoDB has throttled {what} for minutes. Raise MaxShards, or the quotas of the account.",
        Namespace="AWS/DynamoDB",
        MetricName=metric,
        Dimensions=dimensions,
        Statistic="Sum",
        Period=60,
        Threshold=1,
        evaluated=5,
        breached=3,
    )


def _alarm(condition: str, about: str, *, evaluated: int = 1, breached: int = 1, **properties: Any) -> Json:
    actions = when(HAS_TOPIC, [ref("AlarmTopicArn")], when(HAS_EMAIL, [ref(TOPIC)]))
    return {
        "Type": "AWS::CloudWatch::Alarm",
        "Condition": condition,
        "Properties": {
            "AlarmDescription": sub(f"headgate, table ${{{TABLE}}}: {about}"),
            **properties,
            "ComparisonOperator": "GreaterThanOrEqualToThreshold",
            "EvaluationPeriods": evaluated,
            "DatapointsToAlarm": breached,
            "TreatMissingData": "notBreaching",
            "AlarmActions": actions,
            "OKActions": actions,
        },
    }


def _topic() -> Json:
    return {
        "Type": "AWS::SNS::Topic",
        "Condition": HAS_EMAIL,
        "Properties": {"Subscription": [{"Protocol": "email", "Endpoint": ref("AlarmEmail")}]},
    }


def names() -> Sequence[str]:
    """The names of the alarms in the template."""
    return [name for name, made in resources().items() if made["Type"] == "AWS::CloudWatch::Alarm"]
