"""Entities: users, teams, API keys, or whatever is limited."""

from __future__ import annotations

import msgspec

from ..core.records import Entity, Page
from .operations import Asked, operation
from .reading import cursor_of, read_cursor
from .schema import Entities, EntityChange, EntityForm, EntityReply, PageQuery


@operation("POST", "/v1/entities", "admin", status=201, problems=(404, 409))
async def create_entity(asked: Asked, body: EntityForm) -> EntityReply:
    """Create an entity. Limits work without one: it adds a parent, a name or metadata."""
    made = await asked.limiter.create_entity(
        body.entity_id,
        name=body.name,
        parent_id=body.parent_id,
        cascade=body.cascade,
        metadata=body.metadata,
        actor=asked.actor,
    )
    return _entity(made)


@operation("GET", "/v1/entities", "read")
async def list_entities(asked: Asked, query: PageQuery) -> Entities:
    """List all entities, ordered by id."""
    page = await asked.limiter.list_entities(limit=query.limit, cursor=read_cursor(query))
    return _entities(page)


@operation("GET", "/v1/entities/{entity_id}", "read")
async def get_entity(asked: Asked, entity_id: str) -> EntityReply:
    """Get an entity."""
    return _entity(await asked.limiter.get_entity(entity_id))


@operation("PATCH", "/v1/entities/{entity_id}", "admin", problems=(409,))
async def update_entity(asked: Asked, entity_id: str, body: EntityChange) -> EntityReply:
    """Change the given fields, and keep the others."""
    given = {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not msgspec.UNSET}
    return _entity(await asked.limiter.update_entity(entity_id, **given, actor=asked.actor))


@operation("DELETE", "/v1/entities/{entity_id}", "admin")
async def delete_entity(asked: Asked, entity_id: str) -> None:
    """Delete an entity with its limits and buckets. Delete or move its children first."""
    await asked.limiter.delete_entity(entity_id, actor=asked.actor)


@operation("GET", "/v1/entities/{entity_id}/children", "read")
async def get_children(asked: Asked, entity_id: str, query: PageQuery) -> Entities:
    """List the children of an entity."""
    page = await asked.limiter.get_children(entity_id, limit=query.limit, cursor=read_cursor(query))
    return _entities(page)


def _entities(page: Page[Entity]) -> Entities:
    corrupt = [error.record_key.rpartition("#")[2] for error in page.corrupt]
    return Entities([_entity(entity) for entity in page], cursor_of(page), corrupt or msgspec.UNSET)


def _entity(entity: Entity) -> EntityReply:
    return EntityReply(**entity.as_dict())
