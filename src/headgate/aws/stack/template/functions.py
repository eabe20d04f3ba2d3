"""The functions: the aggregator on the stream, the reconciler on a schedule, their roles and logs."""

from __future__ import annotations

import json

from .policies import INDEX_ARN, TABLE_ARN, document, key_statement, statement
from .storage import ARCHIVE, DEAD_LETTERS, TABLE
from .words import HAS_ARCHIVE, HAS_BOUNDARY, HAS_FUNCTIONS, Json, att, ref, sub, when

AGGREGATOR, RECONCILER = "Aggregator", "Reconciler"
NAMES = {AGGREGATOR: "aggregator", RECONCILER: "reconciler"}
HANDLERS = {AGGREGATOR: "headgate.aws.handlers.aggregate", RECONCILER: "headgate.aws.handlers.reconcile"}
TIMEOUT_SECONDS = {AGGREGATOR: 60, RECONCILER: 240}
RUNTIME = "python3.13"
RECORD_AGE_SECONDS = 23 * 3600  # of the 24 hours for which a stream keeps them

_ABOUT = {
    AGGREGATOR: "Counts usage from the stream of the table, splits hot buckets, archives audit events.",
    RECONCILER: "Removes buckets that are full again and records that have expired.",
}
# Other changes, above all the aggregator's own writes, invoke no function.
_OF_INTEREST = [
    {"eventName": ["INSERT", "MODIFY"], "dynamodb": {"Keys": {"SK": {"S": ["#STATE"]}}}},
    {"eventName": ["REMOVE"], "dynamodb": {"Keys": {"SK": {"S": [{"prefix": "#AUDIT#"}]}}}},
]


def resources() -> Json:
    made: Json = {}
    for function in (AGGREGATOR, RECONCILER):
        made |= {
            f"{function}Logs": _logs(function),
            f"{function}Role": _role(function),
            function: _function(function),
        }
    return made | {
        "AggregatorSource": _source(),
        "ReconcilerSchedule": _schedule(),
        "ReconcilerPermission": _permission(),
        "ReconcilerInvocations": _invocations(),
    }


def _function(function: str) -> Json:
    return {
        "Type": "AWS::Lambda::Function",
        "Condition": HAS_FUNCTIONS,
        # The stack has its log group: one created by Lambda would be kept forever.
        "DependsOn": f"{function}Logs",
        "Properties": {
            "FunctionName": sub(f"${{AWS::StackName}}-{NAMES[function]}"),
            "Description": _ABOUT[function],
            "Runtime": RUNTIME,
            "Architectures": ["arm64"],
            "Handler": HANDLERS[function],
            "Code": {"S3Bucket": ref("CodeBucket"), "S3Key": ref("CodeKey")},
            "Role": att(f"{function}Role", "Arn"),
            "MemorySize": ref("MemoryMB"),
            "Timeout": TIMEOUT_SECONDS[function],
            "Environment": {
                "Variables": {
                    "HEADGATE_URL": sub(f"dynamodb://${{{TABLE}}}?region=${{AWS::Region}}"),
                    "HEADGATE_ARCHIVE_BUCKET": when(HAS_ARCHIVE, ref(ARCHIVE)),
                    "HEADGATE_USAGE_RETENTION_DAYS": sub("${UsageRetentionDays}"),
                    "HEADGATE_MAX_SHARDS": sub("${MaxShards}"),
                }
            },
        },
    }


def _logs(function: str) -> Json:
    return {
        "Type": "AWS::Logs::LogGroup",
        "Condition": HAS_FUNCTIONS,
        "DeletionPolicy": "Delete",
        "UpdateReplacePolicy": "Delete",
        "Properties": {
            "LogGroupName": sub(f"/aws/lambda/${{AWS::StackName}}-{NAMES[function]}"),
            "RetentionInDays": ref("LogRetentionDays"),
        },
    }


def _role(function: str) -> Json:
    own = _aggregator() if function == AGGREGATOR else _reconciler()
    return {
        "Type": "AWS::IAM::Role",
        "Condition": HAS_FUNCTIONS,
        "Properties": {
            "Description": sub(f"What the {NAMES[function]} of headgate's table ${{AWS::StackName}} may do."),
            "AssumeRolePolicyDocument": document(
                [
                    {
                        "Effect": "Allow",
                        "Principal": {"Service": "lambda.amazonaws.com"},
                        "Action": "sts:AssumeRole",
                    }
                ]
            ),
            "PermissionsBoundary": when(HAS_BOUNDARY, ref("PermissionsBoundaryArn")),
            "Policies": [
                {
                    "PolicyName": NAMES[function],
                    "PolicyDocument": document([_write_logs(function), *own, key_statement()]),
                }
            ],
        },
    }


def _write_logs(function: str) -> Json:
    return {
        "Sid": "Logs",
        "Effect": "Allow",
        "Action": ["logs:CreateLogStream", "logs:PutLogEvents"],
        "Resource": [att(f"{function}Logs", "Arn")],
    }


def _aggregator() -> list[Json]:
    archive = {
        "Sid": "Archive",
        "Effect": "Allow",
        "Action": ["s3:PutObject"],
        "Resource": [sub(f"${{{ARCHIVE}.Arn}}/*")],
    }
    dead_letters = {
        "Sid": "DeadLetters",
        "Effect": "Allow",
        "Action": ["sqs:SendMessage"],
        "Resource": [att(DEAD_LETTERS, "Arn")],
    }
    stream = ("DescribeStream", "GetRecords", "GetShardIterator", "ListStreams")
    return [
        statement("Stream", stream, sub(f"${{{TABLE}.Arn}}/stream/*")),
        statement("Table", ("GetItem", "PutItem", "UpdateItem", "ConditionCheckItem"), TABLE_ARN),
        dead_letters,
        when(HAS_ARCHIVE, archive),
    ]


def _reconciler() -> list[Json]:
    reads = ("GetItem", "BatchGetItem", "Query")
    writes = ("PutItem", "UpdateItem", "DeleteItem", "ConditionCheckItem", "PartiQLUpdate")
    return [statement("Table", (*reads, *writes), TABLE_ARN), statement("Indexes", ("Query",), INDEX_ARN)]


def _source() -> Json:
    return {
        "Type": "AWS::Lambda::EventSourceMapping",
        "Condition": HAS_FUNCTIONS,
        "Properties": {
            "EventSourceArn": att(TABLE, "StreamArn"),
            "FunctionName": att(AGGREGATOR, "Arn"),
            "StartingPosition": "TRIM_HORIZON",
            "BatchSize": ref("BatchSize"),
            "MaximumBatchingWindowInSeconds": ref("BatchWindowSeconds"),
            "ParallelizationFactor": ref("Parallelization"),
            # A skipped record is missing from usage for good. So the stream waits for as long as it keeps records. A
            # record that cannot be processed is found by halving the batch, so the others are processed.
            "BisectBatchOnFunctionError": True,
            "MaximumRetryAttempts": ref("Retries"),
            "MaximumRecordAgeInSeconds": RECORD_AGE_SECONDS,
            "FunctionResponseTypes": ["ReportBatchItemFailures"],
            "DestinationConfig": {"OnFailure": {"Destination": att(DEAD_LETTERS, "Arn")}},
            "FilterCriteria": {"Filters": [{"Pattern": json.dumps(pattern)} for pattern in _OF_INTEREST]},
        },
    }


def _schedule() -> Json:
    return {
        "Type": "AWS::Events::Rule",
        "Condition": HAS_FUNCTIONS,
        "Properties": {
            "Description": sub("Runs the reconciler of headgate's table ${AWS::StackName}."),
            "ScheduleExpression": sub("rate(${ReconcileMinutes} minutes)"),
            "State": "ENABLED",
            "Targets": [{"Id": "reconciler", "Arn": att(RECONCILER, "Arn")}],
        },
    }


def _permission() -> Json:
    return {
        "Type": "AWS::Lambda::Permission",
        "Condition": HAS_FUNCTIONS,
        "Properties": {
            "Action": "lambda:InvokeFunction",
            "FunctionName": ref(RECONCILER),
            "Principal": "events.amazonaws.com",
            "SourceArn": att("ReconcilerSchedule", "Arn"),
        },
    }


def _invocations() -> Json:
    return {
        "Type": "AWS::Lambda::EventInvokeConfig",
        "Condition": HAS_FUNCTIONS,
        "Properties": {
            "FunctionName": ref(RECONCILER),
            "Qualifier": "$LATEST",
            # It runs again in a few minutes anyway.
            "MaximumRetryAttempts": 0,
            "MaximumEventAgeInSeconds": 120,
        },
    }
