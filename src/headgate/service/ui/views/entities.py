"""Finding, creating, changing and deleting entities."""

from __future__ import annotations

import json
from typing import Any

from ....core.errors import EntityExists, EntityNotFound, HeadgateError, ValidationError, VersionConflict
from ....core.names import check_entity_id
from ....core.records import Entity, Page
from ...reading import cursor_of
from ..pages import Answer, Fields, Redirect, Shown, Visit, link, page, read_cursor, whole_number
from ..words import field_changes, words_of

_PER_PAGE = 50
_EMPTY = {"entity_id": "", "name": "", "parent_id": "", "cascade": False, "metadata": "{}", "version": 0}


@page("GET", "/entities")
async def entities(visit: Visit) -> Answer:
    prefix = visit.query.get("q")
    try:
        typed = check_entity_id(prefix) if prefix else ""
        found = await visit.limiter.list_entities(prefix=typed, limit=_PER_PAGE, cursor=read_cursor(visit.query))
        problem = ""
    except ValidationError as error:
        typed, found, problem = "", Page[Entity]([]), words_of(error)
    return Shown(
        "entities.html",
        {
            "entities": found,
            "query": prefix,
            "typed": typed,
            "problem": problem,
            "cursor": cursor_of(found),
            "corrupt": found.corrupt,
        },
        422 if problem else 200,
    )


@page("GET", "/new", "admin")
async def new_form(visit: Visit) -> Answer:
    given = {"entity_id": visit.query.get("id"), "parent_id": visit.query.get("parent")}
    return Shown("entity_form.html", {"form": {**_EMPTY, **given}, "new": True, "problem": ""})


@page("POST", "/new", "admin")
async def create(visit: Visit) -> Answer:
    form = _form(visit.form)
    try:
        fields = _fields(visit.form)
        made = await visit.limiter.create_entity(form["entity_id"], **fields, actor=visit.actor)
    except (ValidationError, EntityExists, EntityNotFound) as error:
        return _again(form, error, new=True)
    visit.changed()
    return Redirect(link("entities", made.entity_id), "created")


@page("GET", "/entities/{entity_id}/edit", "admin")
async def edit_form(visit: Visit) -> Answer:
    entity = await visit.limiter.get_entity(visit.parts["entity_id"])
    return Shown("entity_form.html", {"form": _form_of(entity), "new": False, "problem": ""})


@page("POST", "/entities/{entity_id}/edit", "admin")
async def edit(visit: Visit) -> Answer:
    entity_id = visit.parts["entity_id"]
    form = {**_form(visit.form), "entity_id": entity_id}
    try:
        fields = _fields(visit.form)
        version = whole_number(visit.form.get("version"), "version")
        await visit.limiter.update_entity(entity_id, **fields, expected_version=version, actor=visit.actor)
    except VersionConflict:
        now = await visit.limiter.get_entity(entity_id)
        wanted = {**now.as_dict(), **fields}
        context = {"entity": now, "form": form, "changes": field_changes(now.as_dict(), wanted)}
        return Shown("entity_conflict.html", context, 409)
    except (ValidationError, EntityNotFound) as error:
        return _again(form, error, new=False)
    visit.changed()
    return Redirect(link("entities", entity_id), "updated")


@page("GET", "/entities/{entity_id}/delete", "admin")
async def delete_form(visit: Visit) -> Answer:
    entity_id = visit.parts["entity_id"]
    entity = await visit.limiter.get_entity(entity_id)
    children = await visit.limiter.get_children(entity_id, limit=5)
    own = await visit.limiter.get_own_limits(entity_id)
    return Shown("entity_delete.html", {"entity": entity, "children": children, "own": own})


@page("POST", "/entities/{entity_id}/delete", "admin")
async def delete(visit: Visit) -> Answer:
    await visit.limiter.delete_entity(visit.parts["entity_id"], actor=visit.actor)
    visit.changed()
    return Redirect(link("entities"), "deleted")


def _form(sent: Fields) -> dict[str, Any]:
    texts = {name: sent.get(name) for name in ("entity_id", "name", "parent_id", "metadata", "version")}
    return {**texts, "cascade": bool(sent.get("cascade"))}


def _form_of(entity: Entity) -> dict[str, Any]:
    metadata = json.dumps(entity.metadata, indent=2, ensure_ascii=False)
    return {**entity.as_dict(), "name": entity.name or "", "parent_id": entity.parent_id or "", "metadata": metadata}


def _fields(sent: Fields) -> dict[str, Any]:
    try:
        metadata = json.loads(sent.get("metadata") or "{}")
    except (ValueError, RecursionError) as error:
        raise ValidationError(f"metadata is not JSON: {error}") from None
    return {
        "name": sent.or_none("name"),
        "parent_id": sent.or_none("parent_id"),
        "cascade": bool(sent.get("cascade")),
        "metadata": metadata,
    }


def _again(form: dict[str, Any], error: HeadgateError, *, new: bool) -> Shown:
    status = 409 if isinstance(error, EntityExists) else 422
    return Shown("entity_form.html", {"form": form, "new": new, "problem": words_of(error)}, status)
