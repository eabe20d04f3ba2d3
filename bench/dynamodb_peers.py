"""headgate and its peer on one DynamoDB engine, and the bare client.

The two limiters are called alike, and get the same limits and entities: whatever is done here is done to both. Each has
a table of its own, as its own code makes it, without functions on the stream. Whoever opens one gets what takes one
token of an entity on a resource, and says whether it was admitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from uuid import uuid4

import zae_limiter
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from tests.local_servers.dynamodb import Engine, Proxy

import headgate

from .dynamodb_scenes import CHILD, PARENT
from .peers import PLENTY

At = Engine | Proxy
Loop = asyncio.AbstractEventLoop
Take = Callable[[str, str], Awaitable[bool]]
Open = Callable[[At, Loop], AbstractContextManager[Take]]

REGION = "us-east-1"
API, SCARCE = "api", "scarce"  # resources: of one there is plenty, of the other a token
CONNECTIONS = 64
PATIENCE_SECONDS = 20.0


def _table() -> str:
    return f"bench-{uuid4().hex[:12]}"


async def _furnish(limiter: Any, per_hour: Callable[[str, int], Any]) -> None:
    await limiter.set_system_defaults([per_hour("requests", PLENTY)])
    await limiter.set_resource_defaults(SCARCE, [per_hour("requests", 1)])
    await limiter.create_entity(PARENT)
    await limiter.create_entity(CHILD, parent_id=PARENT, cascade=True)


def _take(limiter: Any, exceeded: type[Exception]) -> Take:
    async def take(entity_id: str, resource: str) -> bool:
        try:
            async with limiter.acquire(entity_id, resource, {"requests": 1}):
                return True
        except exceeded:
            return False

    return take


@contextmanager
def ours(at: At, loop: Loop) -> Iterator[Take]:
    limiter = headgate.RateLimiter(at.url(_table(), region=REGION), store_timeout=PATIENCE_SECONDS)
    try:
        loop.run_until_complete(limiter.setup())
        loop.run_until_complete(_furnish(limiter, headgate.Limit.per_hour))
        yield _take(limiter, headgate.RateLimitExceeded)
    finally:
        loop.run_until_complete(limiter.close())


@contextmanager
def zae(at: At, loop: Loop) -> Iterator[Take]:
    """With speculative writes and its caches, which are its defaults."""
    repository = zae_limiter.Repository(_table(), region=REGION, endpoint_url=at.endpoint_url)
    limiter = zae_limiter.RateLimiter(repository=repository)
    try:
        loop.run_until_complete(repository.create_table())
        loop.run_until_complete(_furnish(limiter, zae_limiter.Limit.per_hour))
        yield _take(limiter, zae_limiter.RateLimitExceeded)
    finally:
        loop.run_until_complete(limiter.close())


@contextmanager
def update_item(at: At, loop: Loop) -> Iterator[Take]:
    """The client alone: a conditional addition to a number, which is the least that an acquire can be."""
    table = _table()
    creating = get_session().create_client(
        "dynamodb",
        region_name=REGION,
        endpoint_url=at.endpoint_url,
        config=AioConfig(max_pool_connections=CONNECTIONS, parameter_validation=False),
    )
    client = loop.run_until_complete(creating.__aenter__())

    async def take(entity_id: str, resource: str) -> bool:
        await client.update_item(
            TableName=table,
            Key={"PK": {"S": f"{entity_id}#{resource}"}},
            UpdateExpression="ADD taken :one",
            ConditionExpression="attribute_not_exists(taken) OR taken < :most",
            ExpressionAttributeValues={":one": {"N": "1"}, ":most": {"N": str(PLENTY)}},
            ReturnValues="ALL_NEW",
        )
        return True

    try:
        loop.run_until_complete(
            client.create_table(
                TableName=table,
                AttributeDefinitions=[{"AttributeName": "PK", "AttributeType": "S"}],
                KeySchema=[{"AttributeName": "PK", "KeyType": "HASH"}],
                BillingMode="PAY_PER_REQUEST",
            )
        )
        yield take
    finally:
        loop.run_until_complete(creating.__aexit__(None, None, None))
