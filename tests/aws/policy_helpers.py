"""What a policy allows, as IAM decides it, as far as the stack's policies need IAM; and what a request asks for.

An operation on several items asks for all of them at once. IAM is not told here whether it looks at them one by one, so
that what is allowed here is allowed either way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

KEYS = "dynamodb:LeadingKeys"
_WRITES = {"Put": "PutItem", "Update": "UpdateItem", "Delete": "DeleteItem", "ConditionCheck": "ConditionCheckItem"}
_STATEMENTS = {
    "UPDATE": "PartiQLUpdate",
    "SELECT": "PartiQLSelect",
    "INSERT": "PartiQLInsert",
    "DELETE": "PartiQLDelete",
}


class Asked(NamedTuple):
    """`keys` is None if the operation has no partition keys, as a scan."""

    action: str
    resource: str
    keys: frozenset[str] | None = None


def allows(document: Mapping[str, Any], asked: Asked) -> bool:
    return any(_matches(statement, asked) for statement in document["Statement"])


def _matches(statement: Mapping[str, Any], asked: Asked) -> bool:
    assert statement["Effect"] == "Allow"
    return (
        asked.action in statement["Action"]
        and any(fnmatchcase(asked.resource, pattern) for pattern in statement["Resource"])
        and all(_holds(kind, wanted, asked) for kind, wanted in statement.get("Condition", {}).items())
    )


def _holds(kind: str, wanted: Mapping[str, Any], asked: Asked) -> bool:
    if kind == "Null":
        return wanted == {KEYS: "false"} and asked.keys is not None
    if kind == "ForAllValues:StringLike":
        patterns = wanted[KEYS]
        # Of no values at all, everything is true: that is why there is `Null` too.
        return all(any(fnmatchcase(key, pattern) for pattern in patterns) for key in asked.keys or ())
    return False  # a condition on something that these requests do not have


def asked(operation: str, body: Mapping[str, Any], table_arn: str) -> Iterator[Asked]:
    """What a request to DynamoDB needs to be allowed."""

    def on_table(action: str, keys: Sequence[str] | None) -> Asked:
        return Asked(f"dynamodb:{action}", table_arn, None if keys is None else frozenset(keys))

    if operation in ("GetItem", "UpdateItem", "DeleteItem"):
        yield on_table(operation, [body["Key"]["PK"]["S"]])
    elif operation == "PutItem":
        yield on_table(operation, [body["Item"]["PK"]["S"]])
    elif operation == "BatchGetItem":
        yield on_table(operation, [key["PK"]["S"] for one in body["RequestItems"].values() for key in one["Keys"]])
    elif operation == "Query":
        index = body.get("IndexName")
        resource = f"{table_arn}/index/{index}" if index else table_arn
        yield Asked("dynamodb:Query", resource, frozenset([_hashed(body)]))
    elif operation == "TransactWriteItems":
        found: dict[str, list[str]] = {}
        for item in body["TransactItems"]:
            ((kind, one),) = item.items()
            found.setdefault(_WRITES[kind], []).append((one.get("Key") or one["Item"])["PK"]["S"])
        yield from (on_table(action, keys) for action, keys in found.items())
    elif operation == "BatchExecuteStatement":
        for statement in body["Statements"]:
            action = _STATEMENTS[statement["Statement"].split()[0]]
            keys = [one["S"] for one in statement["Parameters"] if "/" in one.get("S", "") and "#" in one["S"]]
            yield on_table(action, keys[:1])
    elif operation == "BatchWriteItem":
        deleted = [one["DeleteRequest"]["Key"] for some in body["RequestItems"].values() for one in some]
        yield on_table(operation, [key["PK"]["S"] for key in deleted])
    elif operation in ("Scan", "DescribeTable", "DescribeTimeToLive"):
        yield on_table(operation, None)
    else:
        raise AssertionError(f"what does {operation} need? {body}")


def _hashed(body: Mapping[str, Any]) -> str:
    """The partition key that a query is for."""
    for name, value in re.findall(r"([#\w]+) = (:\w+)", body["KeyConditionExpression"]):
        if body.get("ExpressionAttributeNames", {}).get(name, name).endswith("PK"):
            return str(body["ExpressionAttributeValues"][value]["S"])
    raise AssertionError(f"no partition key in {body}")
