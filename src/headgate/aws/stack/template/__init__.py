"""The CloudFormation template: the table, the functions behind it, and the policies for its users."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .... import __version__
from ..options import parameters
from . import alarms, functions, policies, storage
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
            "Description": "The key of the code from `headgate aws export-lambda`. Without one, no functions.",
        },
    }
    return code | {parameter.name: parameter.definition() for _, parameter in parameters()}


def _outputs() -> dict[str, Any]:
    def output(about: str, value: Any, condition: str = "") -> dict[str, Any]:
        made = {"Description": about, "Value": value}
        return made | {"Condition": condition} if condition else made

    return {
        "Version": output("The version of headgate that made the template.", __version__),
        "TableName": output("The table, for dynamodb://TableName.", ref(storage.TABLE)),
        "TableArn": output("The table.", att(storage.TABLE, "Arn")),
        "StreamArn": output("Its stream.", att(storage.TABLE, "StreamArn")),
        "AppPolicyArn": output("For programs that take tokens.", ref(policies.APP)),
        "AdminPolicyArn": output("For administrators of limits and entities.", ref(policies.ADMIN)),
        "ReadOnlyPolicyArn": output("For readers.", ref(policies.READ_ONLY)),
        "ArchiveBucketName": output("Where audit events go.", ref(storage.ARCHIVE), HAS_ARCHIVE),
        "AggregatorArn": output("The aggregator.", att(functions.AGGREGATOR, "Arn"), HAS_FUNCTIONS),
        "ReconcilerArn": output("The reconciler.", att(functions.RECONCILER, "Arn"), HAS_FUNCTIONS),
        "DeadLetterQueueUrl": output(
            "Records that the aggregator gave up on.", ref(storage.DEAD_LETTERS), HAS_FUNCTIONS
        ),
    }


# As YAML. Text that could be read as something else is quoted, as JSON quotes it.

_WORD = r"(?:[A-Za-z0-9/_.()+*,;'-]|:(?=[^ ]))+"
_PLAIN = re.compile(rf"(?=[A-Za-z/]){_WORD}(?: {_WORD})*(?<!:)")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def to_yaml(value: Any) -> str:
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> Iterator[str]:
    entries = value.items() if isinstance(value, dict) else ((None, each) for each in value)
    for name, each in entries:
        mark = "-" if name is None else f"{_scalar(name)}:"
        if not isinstance(each, dict | list) or not each:
            yield f"{mark} {_scalar(each)}"
        elif name is None:
            first, *more = _lines(each)
            yield f"- {first}"
            yield from (f"  {line}" for line in more)
        else:
            yield mark
            yield from (f"  {line}" for line in _lines(each))


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
