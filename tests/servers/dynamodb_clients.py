"""Clients of both kinds that are called in the same way, and a table to count in."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from typing import Any

from aiobotocore.session import get_session
from botocore.config import Config

from local_servers.dynamodb import Proxy

SESSION = get_session()
KEY = {"PK": {"S": "a"}}


def settings(**more: Any) -> dict[str, Any]:
    return {"region_name": "us-east-1", "config": Config(retries={"total_max_attempts": 1}, **more)}


class AsyncClient:
    """One that is called from here: `call("get_item", ...)`."""

    def __init__(self, proxy: Proxy, **more: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        client = SESSION.create_client("dynamodb", endpoint_url=proxy.endpoint_url, **settings(**more))
        self._client = self._loop.run_until_complete(self._stack.enter_async_context(client))

    def __call__(self, name: str, **arguments: Any) -> Any:
        return self._loop.run_until_complete(getattr(self._client, name)(**arguments))

    def close(self) -> None:
        self._loop.run_until_complete(self._stack.aclose())
        self._loop.close()


class SyncClient:
    def __init__(self, proxy: Proxy, **more: Any) -> None:
        self._client = proxy.client(**settings(**more))

    def __call__(self, name: str, **arguments: Any) -> Any:
        return getattr(self._client, name)(**arguments)

    def close(self) -> None:
        self._client.close()


def create_table(client: Any) -> str:
    name = f"headgate-{uuid.uuid4().hex}"
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "PK", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    return name


def adding(table: str, amount: int = 1) -> dict[str, Any]:
    values = {":n": {"N": str(amount)}}
    return {
        "TableName": table,
        "Key": KEY,
        "UpdateExpression": "ADD n :n",
        "ExpressionAttributeValues": values,
    }


def total(direct: Any, table: str) -> int:
    item = direct.get_item(TableName=table, Key=KEY, ConsistentRead=True).get("Item")
    return int(item["n"]["N"]) if item else 0
