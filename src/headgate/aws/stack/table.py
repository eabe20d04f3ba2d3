"""The table of a stack: its settings, its namespaces and layout version, and the migration of a zae-limiter table."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeVar

from ...core.errors import ValidationError
from ...plan import Call, Plan, Sleep, run
from ...stores.dynamodb.deliver import Deliverer
from ...stores.dynamodb.exchange import Exchange, MoreTime, Reply, Send
from ...stores.dynamodb.migrations import MigrationRefused as MigrationRefused
from ...stores.dynamodb.migrations import MigrationReport, Migrator
from ...stores.dynamodb.namespaces import Namespaces, RegisteredNamespace
from ...stores.dynamodb.table import TTL, Foreign, Versions
from ...stores.dynamodb.url import DynamoDBSettings, check_table
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
    """Whether expired items are deleted."""
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
    """Not every engine applies all of the template: apply the rest."""
    dynamodb = aws.client("dynamodb")
    with translated():
        if not expires(aws, name):
            dynamodb.update_time_to_live(TableName=name, TimeToLiveSpecification=TTL)
        if is_backed_up(aws, name) != backups:
            dynamodb.update_continuous_backups(
                TableName=name, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": backups}
            )


T = TypeVar("T")
_AT_ONCE = 10  # as many connections as boto3 keeps


class Registry:
    """The namespaces and the version of a table. It uses the clients of the stack, and so its credentials."""

    def __init__(self, aws: Aws, table: str) -> None:
        self._deliverer = Deliverer(DynamoDBSettings(table, aws.region, aws.endpoint_url))
        self._namespaces, self._versions = Namespaces(self._deliverer), Versions(self._deliverer)
        self._dynamodb = aws.client("dynamodb")

    def register(self, name: str) -> RegisteredNamespace:
        """The namespace with this name, new or existing."""
        return self._run(self._namespaces.register_plan(name))

    def namespaces(self) -> list[RegisteredNamespace]:
        return self._run(self._namespaces.all_plan())

    def layout(self) -> int | None:
        """The number of the layout; 0 if the items are not headgate's, None if the table is empty."""
        version = self._run(self._versions.read_plan())
        return 0 if isinstance(version, Foreign) else None if version is None else version.schema

    def migrate(
        self, into: str, namespace: str, *, cascade: bool | None, force: bool, dry: bool
    ) -> MigrationReport | None:
        """Migrate this table, one of zae-limiter, into another or into itself."""
        target = Deliverer(replace(self._deliverer.settings, table=into))
        migrator = Migrator(self._deliverer, target, lambda: time.time_ns() // 1_000_000)
        return self._run(migrator.run_plan(namespace, cascade=cascade, force=force, dry=dry))

    def _run(self, plan: Plan[T]) -> T:
        with translated():
            return run(plan, self._perform)

    def _perform(self, call: Call[Any]) -> Any:
        if isinstance(call, Sleep):
            return time.sleep(call.seconds)
        if isinstance(call, MoreTime):
            return None
        assert isinstance(call, Exchange)
        if len(call.sends) == 1:
            return [self._send(call.sends[0])]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(self._send, call.sends))

    def _send(self, send: Send) -> Reply:
        """boto3 retries what it may; other errors are raised, as in all calls here."""
        from ...stores.dynamodb.driver import ErrorReply, failed, method_name

        try:
            reply: Reply = getattr(self._dynamodb, method_name(send.operation))(**send.parameters)
            return reply
        except ErrorReply as error:
            return failed(error)


SUFFIX = "-headgate"


def migrate_table(
    name: str,
    to_table: str | None = None,
    *,
    in_place: bool = False,
    namespace: str = "default",
    cascade: bool | None = None,
    force: bool = False,
    dry_run: bool = False,
    region: str | None = None,
    profile: str | None = None,
    endpoint_url: str | None = None,
) -> MigrationReport | None:
    """Copy the zae-limiter table `name` into `to_table`; by default, `name` and "-headgate".

    None if there is nothing to do: the table is headgate's already, or empty. MigrationRefused, before anything is
    written, if not all of it can be migrated; `force` leaves out the rest. The table `name` is only read, unless
    `in_place`: then stop all its clients first, and do not use it with zae-limiter afterwards. If the migration is
    interrupted, run it again.

    `namespace`: for items from before zae-limiter had namespaces. `cascade`: for entities with a parent from before
    entities stored it. Region and profile come from the AWS configuration if not given.
    """
    target = check_table(name if in_place else to_table or f"{name}{SUFFIX}")
    if in_place and to_table not in (None, name):
        raise ValidationError(f"pass in_place or to_table {to_table!r}, not both")
    if not in_place and target == name:
        raise ValidationError(
            f"table {name!r} would be copied into itself: name another table, or pass in_place (--in-place)"
        )
    with closing(Aws(region, profile, endpoint_url)) as aws:
        registry = Registry(aws, check_table(name))
        return registry.migrate(target, namespace, cascade=cascade, force=force, dry=dry_run)
