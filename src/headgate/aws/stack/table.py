"""The table of a stack, as DynamoDB describes it."""

from __future__ import annotations

from typing import Any

from ...stores.dynamodb.table import TTL
from .clients import Aws, code_of, translated


def describe(aws: Aws, name: str) -> dict[str, Any] | None:
    dynamodb = aws.client("dynamodb")
    with translated():
        try:
            return dict(dynamodb.describe_table(TableName=name)["Table"])
        except dynamodb.exceptions.ClientError as error:
            if code_of(error) == "ResourceNotFoundException":
                return None
            raise


def is_protected(aws: Aws, name: str) -> bool:
    table = describe(aws, name)
    return table is not None and str(table.get("DeletionProtectionEnabled", False)).lower() == "true"


def expires(aws: Aws, name: str) -> bool:
    """Whether items whose time is over are deleted."""
    with translated():
        found = aws.client("dynamodb").describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    return (
        found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING") and found.get("AttributeName") == TTL["AttributeName"]
    )


def is_backed_up(aws: Aws, name: str) -> bool:
    with translated():
        found = aws.client("dynamodb").describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
    status = found.get("PointInTimeRecoveryDescription", {}).get("PointInTimeRecoveryStatus")
    return bool(status == "ENABLED")


def settle_table(aws: Aws, name: str, *, backups: bool) -> None:
    """Not every engine that takes the template does all that it says: see that it is done."""
    dynamodb = aws.client("dynamodb")
    with translated():
        if not expires(aws, name):
            dynamodb.update_time_to_live(TableName=name, TimeToLiveSpecification=TTL)
        if is_backed_up(aws, name) != backups:
            dynamodb.update_continuous_backups(
                TableName=name, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": backups}
            )
