"""What the table itself knows: its namespaces, and the layout of its items, which can be brought up to date."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from ...plan import Call, Plan, Sleep, run
from ...stores.dynamodb.deliver import Deliverer
from ...stores.dynamodb.exchange import Exchange, MoreTime, Reply, Send
from ...stores.dynamodb.migrations import MigrationReport, Migrator
from ...stores.dynamodb.namespaces import Namespaces, RegisteredNamespace
from ...stores.dynamodb.table import Foreign, Versions
from ...stores.dynamodb.url import DynamoDBSettings
from .clients import Aws, translated

T = TypeVar("T")
_AT_ONCE = 10  # as many connections as boto3 keeps


class Registry:
    """Of the table with this name. It has the clients of the stack, and so its credentials."""

    def __init__(self, aws: Aws, table: str) -> None:
        self._deliverer = Deliverer(DynamoDBSettings(table, aws.region, aws.endpoint_url))
        self._namespaces, self._versions = Namespaces(self._deliverer), Versions(self._deliverer)
        self._dynamodb = aws.client("dynamodb")

    def register(self, name: str) -> RegisteredNamespace:
        """The namespace of this name, which is new or was there."""
        return self._run(self._namespaces.register_plan(name))

    def namespaces(self) -> Iterator[RegisteredNamespace]:
        cursor = None
        while True:
            page = self._run(self._namespaces.list_plan(cursor))
            yield from page
            cursor = page.cursor
            if cursor is None:
                return

    def layout(self) -> int | None:
        """The number of the layout; 0 if the items are not headgate's, None if the table is empty."""
        version = self._run(self._versions.read_plan())
        return 0 if isinstance(version, Foreign) else None if version is None else version.schema

    def migrate(
        self, into: str, namespace: str, *, cascade: bool | None, force: bool, dry: bool
    ) -> MigrationReport | None:
        """Carry the items of this table, one of zae-limiter's, into another or into itself."""
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
        """boto3 tries again what may be; what it does not get through raises, as with every other call here."""
        from ...stores.dynamodb.driver import ErrorReply, failed, method_name

        try:
            reply: Reply = getattr(self._dynamodb, method_name(send.operation))(**send.parameters)
            return reply
        except ErrorReply as error:
            return failed(error)
