"""Namespaces, for tokens with the scope `namespaces`: they concern all users of the store."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from ..limiter import Namespace
from ..limiter.config.namespaces import Status
from .operations import Asked, operation
from .reading import cursor_of, read_cursor
from .schema import Input, Nothing, PageQuery


class NamespaceReply(Struct):
    """Only an `active` namespace can be used."""

    name: str
    id: str
    status: Status
    created_at: datetime
    deleted_at: datetime | None


class NamespaceList(Struct):
    items: list[NamespaceReply]
    cursor: str | None


class PurgeForm(Input):
    confirm: Annotated[str, Meta(max_length=256, description="The name of the namespace again.")]


class Purged(Struct):
    removed: Annotated[int, Meta(description="The number of rows and records removed.")]


def _answer(namespace: Namespace) -> NamespaceReply:
    return NamespaceReply(namespace.name, namespace.id, namespace.status, namespace.created_at, namespace.deleted_at)


@operation("GET", "/v1/namespaces", "namespaces")
async def list_namespaces(asked: Asked, query: PageQuery) -> NamespaceList:
    """List all namespaces of the store by name, deleted ones too."""
    page = await asked.limiter.list_namespaces(limit=query.limit, cursor=read_cursor(query))
    return NamespaceList([_answer(one) for one in page], cursor_of(page))


@operation("GET", "/v1/namespaces/{namespace}", "namespaces")
async def get_namespace(asked: Asked, namespace: str) -> NamespaceReply:
    """Get a namespace."""
    return _answer(await asked.limiter.get_namespace(namespace))


@operation("PUT", "/v1/namespaces/{namespace}", "namespaces")
async def register_namespace(asked: Asked, namespace: str, body: Nothing) -> NamespaceReply:
    """Register a namespace. The first use of a namespace registers it too."""
    return _answer(await asked.limiter.register_namespace(namespace, actor=asked.actor))


@operation("DELETE", "/v1/namespaces/{namespace}", "namespaces", problems=(409,))
async def delete_namespace(asked: Asked, namespace: str) -> NamespaceReply:
    """Delete a namespace: it can no longer be used. Its contents stay, and return when it is recovered."""
    return _answer(await asked.limiter.delete_namespace(namespace, actor=asked.actor))


@operation("POST", "/v1/namespaces/{namespace}/recover", "namespaces", problems=(409,))
async def recover_namespace(asked: Asked, namespace: str, body: Nothing) -> NamespaceReply:
    """Recover a deleted namespace."""
    return _answer(await asked.limiter.recover_namespace(namespace, actor=asked.actor))


@operation("POST", "/v1/namespaces/{namespace}/purge", "namespaces", problems=(409,))
async def purge_namespace(asked: Asked, namespace: str, body: PurgeForm) -> Purged:
    """Remove a deleted namespace and its contents permanently."""
    return Purged(await asked.limiter.purge_namespace(namespace, confirm=body.confirm, actor=asked.actor))
