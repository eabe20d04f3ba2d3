"""The CloudFormation template of the whole: the table, what works behind it, and who may use it."""

from __future__ import annotations

from typing import Any

from .... import __version__
from ..options import parameters
from . import alarms, functions, policies, storage
from .text import to_yaml
from .words import HAS_ARCHIVE, HAS_FUNCTIONS, att, conditions, ref

__all__ = ["template", "to_yaml"]


def template() -> dict[str, Any]:
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": "headgate: exact rate limits in DynamoDB. The table has the name of the stack.",
        "Parameters": _parameters(),
        "Conditions": conditions(),
        "Resources": {
            **storage.resources(),
            **functions.resources(),
            **policies.resources(),
            **alarms.resources(),
        },
        "Outputs": _outputs(),
    }


def _parameters() -> dict[str, Any]:
    code = {
        "CodeBucket": {
            "Type": "String",
            "Default": "none",
            "Description": "The S3 bucket with the functions' code.",
            "AllowedPattern": "^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$",
            "ConstraintDescription": "the name of a bucket in the region of the stack",
        },
        "CodeKey": {
            "Type": "String",
            "Default": "",
            "Description": "The key of the code, which `headgate aws export-lambda` makes. Without one, no functions.",
        },
    }
    return code | {parameter.name: parameter.definition() for _, parameter in parameters()}


def _outputs() -> dict[str, Any]:
    def output(about: str, value: Any, condition: str = "") -> dict[str, Any]:
        made = {"Description": about, "Value": value}
        return made | {"Condition": condition} if condition else made

    return {
        "Version": output("The headgate that made the template.", __version__),
        "TableName": output("The table, for dynamodb://TableName.", ref(storage.TABLE)),
        "TableArn": output("The table.", att(storage.TABLE, "Arn")),
        "StreamArn": output("Its stream.", att(storage.TABLE, "StreamArn")),
        "AppPolicyArn": output("For programs that take tokens.", ref(policies.APP)),
        "AdminPolicyArn": output("For whoever manages limits and entities.", ref(policies.ADMIN)),
        "ReadOnlyPolicyArn": output("For whoever only looks.", ref(policies.READ_ONLY)),
        "ArchiveBucketName": output("Where audit events go.", ref(storage.ARCHIVE), HAS_ARCHIVE),
        "AggregatorArn": output("The aggregator.", att(functions.AGGREGATOR, "Arn"), HAS_FUNCTIONS),
        "ReconcilerArn": output("The reconciler.", att(functions.RECONCILER, "Arn"), HAS_FUNCTIONS),
        "DeadLetterQueueUrl": output("What the aggregator gave up on.", ref(storage.DEAD_LETTERS), HAS_FUNCTIONS),
    }
