"""Three policies for people and programs.

    AppPolicy       take tokens and give them back, read everything, but change no limit and no entity
    AdminPolicy     everything that the library and its command do with a table
    ReadOnlyPolicy  read

Access depends on the partition key, which begins with the id of a namespace. So `dynamodb:LeadingKeys` restricts a
policy to a namespace, and an application to buckets. A condition over all values also holds if there are none, as in a
scan: therefore there must be some.
"""

from __future__ import annotations

from ....stores.dynamodb import keys
from .storage import TABLE
from .words import HAS_KEY, HAS_NAMESPACE, NO_VALUE, Json, att, ref, sub, when

APP, ADMIN, READ_ONLY = "AppPolicy", "AdminPolicy", "ReadOnlyPolicy"

READS = ("GetItem", "BatchGetItem", "Query", "PartiQLSelect")
WRITES = ("PutItem", "UpdateItem", "DeleteItem", "ConditionCheckItem", "PartiQLUpdate")
BULK_WRITES = ("BatchWriteItem", "PartiQLInsert", "PartiQLDelete")
LOOKS = ("DescribeTable", "DescribeTimeToLive", "DescribeContinuousBackups")
STREAM = ("DescribeStream", "GetShardIterator", "GetRecords")

REGISTRY = keys.pk_system(keys.REGISTRY)
# Taking tokens writes buckets, their usage, a note of those that were split, and records that expire.
_TAKEN = ("/BUCKET#*", "/RECORD#*")
_AUDIT = "/AUDIT#*"

TABLE_ARN = att(TABLE, "Arn")
INDEX_ARN = sub(f"${{{TABLE}.Arn}}/index/*")


def resources() -> Json:
    return {
        APP: _policy("Take tokens from the table of headgate and give them back.", _app()),
        ADMIN: _policy("Manage limits, entities and namespaces in the table of headgate.", _admin()),
        READ_ONLY: _policy("Read the table of headgate.", _read_only()),
    }


def document(statements: list[Json]) -> Json:
    return {"Version": "2012-10-17", "Statement": statements}


def statement(sid: str, actions: tuple[str, ...], *arns: Json, condition: Json | None = None) -> Json:
    made: Json = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": [f"dynamodb:{action}" for action in actions],
        "Resource": list(arns),
    }
    return made if condition is None else made | {"Condition": condition}


def key_statement() -> Json:
    """A customer's key must be usable by all users of the table, but only through DynamoDB."""
    made = {
        "Sid": "KeyOfTheTable",
        "Effect": "Allow",
        "Action": ["kms:Decrypt", "kms:DescribeKey"],
        "Resource": [ref("KmsKeyArn")],
        "Condition": {"StringEquals": {"kms:ViaService": sub("dynamodb.${AWS::Region}.amazonaws.com")}},
    }
    return when(HAS_KEY, made)


def _app() -> list[Json]:
    return [
        statement("Read", READS, TABLE_ARN, INDEX_ARN, condition=_of_the_namespace("/*", "")),
        statement("TakeAndGiveBack", WRITES, TABLE_ARN, condition=_of_the_namespace(*_TAKEN)),
        # A penalty and a reset write an audit event, which cannot be changed or deleted.
        statement("TellOfIt", ("PutItem",), TABLE_ARN, condition=_of_the_namespace(_AUDIT)),
        *_everyone(),
    ]


def _admin() -> list[Json]:
    actions = (*READS, *WRITES, *BULK_WRITES)
    one_namespace = _leading_keys(sub("${NamespaceId}/*"), ref("NamespaceId"))
    return [
        when(
            HAS_NAMESPACE,
            statement("Namespace", actions, TABLE_ARN, INDEX_ARN, condition=one_namespace),
            statement("WholeTable", (*actions, "Scan"), TABLE_ARN, INDEX_ARN),
        ),
        when(HAS_NAMESPACE, NO_VALUE, statement("Stream", STREAM, sub(f"${{{TABLE}.Arn}}/stream/*"))),
        *_everyone(),
    ]


def _read_only() -> list[Json]:
    return [
        statement("Read", READS, TABLE_ARN, INDEX_ARN, condition=_of_the_namespace("/*", "")),
        *_everyone(),
    ]


def _everyone() -> list[Json]:
    """To find the id of a namespace by its name, and to check the table."""
    return [
        statement("Registry", ("GetItem", "BatchGetItem"), TABLE_ARN, condition=_leading_keys(REGISTRY)),
        statement("Describe", LOOKS, TABLE_ARN),
        key_statement(),
    ]


def _of_the_namespace(*endings: str) -> Json:
    """Keys that begin with the namespace's id; any key, if the policies are for the whole table."""
    namespace = when(HAS_NAMESPACE, ref("NamespaceId"), "*")
    return _leading_keys(*(sub(f"${{Namespace}}{ending}", Namespace=namespace) for ending in endings))


def _leading_keys(*patterns: str | Json) -> Json:
    return {
        "ForAllValues:StringLike": {"dynamodb:LeadingKeys": list(patterns)},
        "Null": {"dynamodb:LeadingKeys": "false"},
    }


def _policy(description: str, statements: list[Json]) -> Json:
    return {
        "Type": "AWS::IAM::ManagedPolicy",
        "Properties": {"Description": description, "PolicyDocument": document(statements)},
    }
