"""The status of a stack and everything in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from ...core.errors import HeadgateError
from ...stores.dynamodb.table import SCHEMA
from .clients import Aws, code_of, translated
from .table import Registry, describe, expires, is_backed_up
from .template import alarms as alarm_parts
from .template.functions import AGGREGATOR, RECONCILER
from .template.storage import DEAD_LETTERS

LOOK_BACK_HOURS = 24
_LOG_STREAMS, _LOG_EVENTS = 3, 500
_ERROR_LINE = re.compile(r"ERROR|Error\b|Exception\b|Task timed out")


@dataclass(frozen=True)
class TableStatus:
    """`items` and `size_bytes` are what DynamoDB last counted, up to six hours ago."""

    status: str
    items: int
    size_bytes: int
    expiry: bool
    backups: bool
    protected: bool
    stream: bool
    layout: int | None  # 0: the items are not headgate's
    namespaces: Sequence[str]


@dataclass(frozen=True)
class FunctionStatus:
    """Counts are of the last 24 hours."""

    name: str
    state: str
    runs: str  # when it runs, and whether it is enabled
    invocations: int
    errors: int
    last_error: str


@dataclass(frozen=True)
class AlarmStatus:
    name: str
    state: str  # OK, ALARM, INSUFFICIENT_DATA
    reason: str


@dataclass(frozen=True)
class StackStatus:
    name: str
    status: str
    reason: str
    created: datetime
    updated: datetime | None
    version: str
    outputs: Mapping[str, str]
    table: TableStatus | None
    functions: Sequence[FunctionStatus]
    dead_letters: int | None
    alarms: Sequence[AlarmStatus]
    problems: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {
            "created": self.created.isoformat(),
            "updated": self.updated and self.updated.isoformat(),
        }


def read_status(aws: Aws, stack: Mapping[str, Any]) -> StackStatus:
    """`stack` is CloudFormation's description of it."""
    name = stack["StackName"]
    parts = _parts(aws, name)
    outputs = {each["OutputKey"]: each["OutputValue"] for each in stack.get("Outputs", ())}
    table = _table(aws, name)
    functions = [_function(aws, kind, parts) for kind in (AGGREGATOR, RECONCILER) if kind in parts]
    dead_letters = _dead_letters(aws, parts[DEAD_LETTERS]) if DEAD_LETTERS in parts else None
    alarms = _alarms(aws, parts)
    return StackStatus(
        name=name,
        status=stack["StackStatus"],
        reason=stack.get("StackStatusReason", ""),
        created=stack["CreationTime"],
        updated=stack.get("LastUpdatedTime"),
        version=outputs.pop("Version", ""),
        outputs=outputs,
        table=table,
        functions=functions,
        dead_letters=dead_letters,
        alarms=alarms,
        problems=[*_problems(stack["StackStatus"], name, table, functions, dead_letters, alarms)],
    )


def _problems(
    status: str,
    name: str,
    table: TableStatus | None,
    functions: Sequence[FunctionStatus],
    dead_letters: int | None,
    alarms: Sequence[AlarmStatus],
) -> list[str]:
    found = [] if status in ("CREATE_COMPLETE", "UPDATE_COMPLETE") else [f"the stack is {status}"]
    found += [f"table {name!r} does not exist"] if table is None else _problems_of(name, table)
    found += [f"{each.name}: {each.state}, {each.runs}" for each in functions if each.state != "Active"]
    found += [f"{each.name}: {each.errors} errors in {LOOK_BACK_HOURS} hours" for each in functions if each.errors]
    found += [f"batches on which the aggregator gave up: {dead_letters}"] if dead_letters else []
    return found + [f"alarm {each.name}: {each.reason}" for each in alarms if each.state == "ALARM"]


def _problems_of(name: str, table: TableStatus) -> list[str]:
    found = [] if table.status == "ACTIVE" else [f"the table is {table.status}"]
    switches = {"expiry of items": table.expiry, "the stream": table.stream}
    turn_on = f"`headgate aws update --name {name}` turns it on"
    found += [f"{what} is off: {turn_on}" for what, on in switches.items() if not on]
    if table.layout not in (None, SCHEMA):
        found.append(
            f"the table has layout {table.layout}, this headgate uses {SCHEMA} (0: items of another program, 1: a "
            "migration has not finished): run `headgate aws migrate`"
        )
    return found


def _parts(aws: Aws, name: str) -> dict[str, str]:
    """Physical names by the names in the template."""
    with translated():
        found = aws.client("cloudformation").describe_stack_resources(StackName=name)["StackResources"]
    return {each["LogicalResourceId"]: each["PhysicalResourceId"] for each in found if each.get("PhysicalResourceId")}


def _table(aws: Aws, name: str) -> TableStatus | None:
    found = describe(aws, name)
    if found is None:
        return None
    layout, namespaces = _registry(aws, name)
    return TableStatus(
        status=found["TableStatus"],
        items=found.get("ItemCount", 0),
        size_bytes=found.get("TableSizeBytes", 0),
        expiry=expires(aws, name),
        backups=is_backed_up(aws, name),
        protected=str(found.get("DeletionProtectionEnabled", False)).lower() == "true",
        stream=bool((found.get("StreamSpecification") or {}).get("StreamEnabled")),
        layout=layout,
        namespaces=namespaces,
    )


def _registry(aws: Aws, name: str) -> tuple[int | None, list[str]]:
    try:
        registry = Registry(aws, name)
        layout = registry.layout()
        return layout, [namespace.name for namespace in registry.namespaces()] if layout == SCHEMA else []
    except HeadgateError:  # the table is being created, or may be described but not read
        return None, []


def _function(aws: Aws, kind: str, parts: Mapping[str, str]) -> FunctionStatus:
    name = parts[kind]
    with translated():
        state = aws.client("lambda").get_function_configuration(FunctionName=name)
        runs = _source(aws, name) if kind == AGGREGATOR else _schedule(aws, parts["ReconcilerSchedule"])
        errors = _sum(aws, name, "Errors")
        return FunctionStatus(
            name=name,
            state=state.get("State", "Active"),
            runs=runs,
            invocations=_sum(aws, name, "Invocations"),
            errors=errors,
            last_error=_last_error(aws, name) if errors else "",
        )


def _source(aws: Aws, function: str) -> str:
    found = aws.client("lambda").list_event_source_mappings(FunctionName=function)["EventSourceMappings"]
    if not found:
        return "not connected to the stream"
    result = found[0].get("LastProcessingResult", "")
    return f"on the stream, {found[0]['State'].lower()}{result and f' ({result})'}"


def _schedule(aws: Aws, rule: str) -> str:
    # The physical name of a rule on the default bus is its name, on others bus|name.
    found = aws.client("events").describe_rule(Name=rule.rpartition("|")[2])
    return f"{found.get('ScheduleExpression', '')}, {found.get('State', '').lower()}"


def _sum(aws: Aws, function: str, metric: str) -> int:
    now = datetime.now(timezone.utc)
    found = aws.client("cloudwatch").get_metric_statistics(
        Namespace="AWS/Lambda",
        MetricName=metric,
        Dimensions=[{"Name": "FunctionName", "Value": function}],
        StartTime=now - timedelta(hours=LOOK_BACK_HOURS),
        EndTime=now + timedelta(minutes=1),
        Period=3600,
        Statistics=["Sum"],
    )
    return int(sum(point["Sum"] for point in found["Datapoints"]))


def _last_error(aws: Aws, function: str) -> str:
    """The last line with an error, if it is among the latest."""
    logs, group = aws.client("logs"), f"/aws/lambda/{function}"
    try:
        streams = logs.describe_log_streams(
            logGroupName=group, orderBy="LastEventTime", descending=True, limit=_LOG_STREAMS
        )["logStreams"]
        for stream in streams:
            found = logs.get_log_events(
                logGroupName=group, logStreamName=stream["logStreamName"], limit=_LOG_EVENTS, startFromHead=False
            )["events"]
            for event in reversed(found):
                if _ERROR_LINE.search(event["message"]):
                    return str(event["message"]).strip().partition("\n")[0]
    except logs.exceptions.ClientError as error:
        if code_of(error) != "ResourceNotFoundException":
            raise
    return ""


def _dead_letters(aws: Aws, url: str) -> int:
    with translated():
        found = aws.client("sqs").get_queue_attributes(
            QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        )["Attributes"]
    return sum(int(count) for count in found.values())


def _alarms(aws: Aws, parts: Mapping[str, str]) -> list[AlarmStatus]:
    names = {parts[name]: name for name in alarm_parts.names() if name in parts}
    if not names:
        return []
    with translated():
        found = aws.client("cloudwatch").describe_alarms(AlarmNames=list(names))["MetricAlarms"]
    return [
        AlarmStatus(names[each["AlarmName"]], each["StateValue"], each.get("StateReason", ""))
        for each in sorted(found, key=lambda each: list(names).index(each["AlarmName"]))
    ]
