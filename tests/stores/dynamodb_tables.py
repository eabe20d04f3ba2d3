"""Plans of the DynamoDB store, run on an engine by themselves, so that a test may come between any two operations."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from botocore.exceptions import ClientError

from headgate.plan import Call, Plan, Sleep, run
from headgate.stores.dynamodb.deliver import Deliverer
from headgate.stores.dynamodb.driver import failed, method_name
from headgate.stores.dynamodb.exchange import Exchange, MoreTime, Reply, Send
from headgate.stores.dynamodb.table import DynamoDBTable
from headgate.stores.dynamodb.url import DynamoDBSettings
from local_servers.dynamodb import Engine

T = TypeVar("T")
NOW = 1_700_000_000_000


class Driven:
    """A table. `sent`: all operations that went to the engine. `meddle` may answer one in its stead."""

    def __init__(self, client: Any, table: str) -> None:
        self.client = client
        self.table = table
        self.deliver = Deliverer(DynamoDBSettings(table, "us-east-1", client.meta.endpoint_url))
        self.sent: list[Send] = []
        self.slept = self.more_time = 0
        self.meddle: Callable[[Send], Reply | None] = lambda send: None

    def run(self, plan: Plan[T]) -> T:
        return run(plan, self.perform)

    def perform(self, call: Call[Any]) -> Any:
        if isinstance(call, Exchange):
            return [self.meddle(send) or self.reply(send) for send in call.sends]
        if isinstance(call, MoreTime):
            self.more_time += 1
        else:
            assert isinstance(call, Sleep)
            self.slept += 1
            assert self.slept < 10_000, "it goes round in circles"
            time.sleep(min(call.seconds, 0.002))
        return None

    def reply(self, send: Send) -> Reply:
        self.sent.append(send)
        try:
            reply: Reply = getattr(self.client, method_name(send.operation))(**send.parameters)
        except ClientError as error:
            return failed(error)
        return reply

    def meddle_once(self, operation: str, play: Callable[[Send], Reply | None]) -> None:
        """Play instead of the engine the next time there is such an operation."""

        def meddle(send: Send) -> Reply | None:
            if send.operation != operation:
                return None
            self.meddle = lambda send: None
            return play(send)

        self.meddle = meddle

    def operations(self) -> list[str]:
        """What was sent since the last time."""
        sent, self.sent = self.sent, []
        return [send.operation for send in sent]

    def items(self) -> dict[tuple[str, str], dict[str, Any]]:
        pages = self.client.get_paginator("scan").paginate(TableName=self.table, ConsistentRead=True)
        return {(item["PK"]["S"], item["SK"]["S"]): item for page in pages for item in page["Items"]}

    def put(self, **attributes: Any) -> None:
        self.client.put_item(TableName=self.table, Item=attributes)


@contextmanager
def a_table(engine: Engine, *, made: bool = True) -> Iterator[Driven]:
    """A table of one's own, or only its name."""
    client = engine.client()
    driven = Driven(client, f"t{uuid.uuid4().hex}")
    try:
        if made:
            driven.run(DynamoDBTable(driven.deliver).setup_plan())
        driven.operations()
        yield driven
    finally:
        try:
            client.delete_table(TableName=driven.table)
        except client.exceptions.ResourceNotFoundException:
            pass
        client.close()
