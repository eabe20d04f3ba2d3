"""`headgate entity`: whoever is limited."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from ..core.limit import Limit
from ..core.records import Entity
from ..limiter import SyncRateLimiter
from .command import Command, Group
from .errors import REFUSED
from .options import Session, store_options
from .output import Table, answer, answer_json, limit_dict, spelled
from .pages import all_pages
from .values import read_pairs


@click.group(cls=Group)
def entity() -> None:
    """Create, show and delete entities.

    Limits need no entity: one has to be created only for a parent, a name or metadata.
    """


@entity.command(
    cls=Command,
    examples=[
        "headgate entity create acme --name 'Acme Ltd' --metadata tier=gold",
        "headgate entity create acme-key-1 --parent acme --cascade",
    ],
)
@click.argument("entity_id", metavar="ID")
@click.option("--name", metavar="NAME", help="A name for people.")
@click.option("--parent", "parent_id", metavar="ID", help="The entity above it; it has to exist.")
@click.option("--cascade", is_flag=True, help="What it takes counts on every ancestor too.")
@click.option("--metadata", metavar="KEY=VALUE", multiple=True, help="Anything worth keeping with it. Repeatable.")
@store_options
def create(
    session: Session,
    entity_id: str,
    name: str | None,
    parent_id: str | None,
    cascade: bool,
    metadata: Sequence[str],
) -> None:
    """Create the entity ID."""
    pairs = read_pairs(metadata, "KEY=VALUE, like tier=gold")
    entity_id = session.stored_id(entity_id)
    parent_id = None if parent_id is None else session.stored_id(parent_id, "parent_id")
    with session.limiter() as limiter:
        made = limiter.create_entity(entity_id, name=name, parent_id=parent_id, cascade=cascade, metadata=dict(pairs))
    if session.as_json:
        answer_json(made.as_dict())
    else:
        answer(f"created: {made.id}" + (f" below {parent_id}" if parent_id else ""))


@entity.command(cls=Command, examples=["headgate entity show acme", "headgate entity show acme --resource llm"])
@click.argument("entity_id", metavar="ID")
@click.option("--resource", metavar="RESOURCE", help="Show the limits that hold for it on this resource, too.")
@store_options
def show(session: Session, entity_id: str, resource: str | None) -> None:
    """Show the entity ID, the entities above it and its own limits."""
    entity_id = session.stored_id(entity_id)
    with session.limiter() as limiter:
        found = limiter.get_entity(entity_id)
        parents = list(_parents(limiter, found))
        own = limiter.get_limits(entity_id)
        effective = limiter.resolve_limits(entity_id, resource) if resource else None
    if session.as_json:
        answer_json(_shown_dict(found, parents, own, effective))
    else:
        answer(_table(found, parents, own, effective, resource))


def _parents(limiter: SyncRateLimiter, child: Entity) -> Iterator[Entity]:
    while child.parent_id is not None:
        child = limiter.get_entity(child.parent_id)
        yield child


Effective = tuple[list[Limit], "str | None"]


def _shown_dict(found: Entity, parents: list[Entity], own: list[Limit], effective: Effective | None) -> dict[str, Any]:
    shown = found.as_dict() | {
        "parents": [parent.id for parent in parents],
        "limits": [limit_dict(limit) for limit in own],
    }
    if effective:
        shown["effective"] = {"limits": [limit_dict(limit) for limit in effective[0]], "source": effective[1]}
    return shown


def _table(
    found: Entity, parents: list[Entity], own: list[Limit], effective: Effective | None, resource: str | None
) -> Table:
    rows = [
        ["entity", found.id],
        ["name", found.name or ""],
        ["parents", " < ".join(parent.id for parent in parents)],
        ["cascade", "yes: what it takes counts on every ancestor too" if found.cascade else ""],
        ["metadata", ", ".join(f"{key}={value}" for key, value in found.metadata.items())],
        ["limits", spelled(own)],
    ]
    if effective:
        stored, source = effective
        rows.append([f"limits on {resource}", f"{spelled(stored)} (source: {source})" if stored else "none"])
    return Table(["", ""], [row for row in rows if row[1]])


@entity.command(cls=Command, examples=["headgate entity delete acme --yes"])
@click.argument("entity_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal to ask on.")
@store_options
def delete(session: Session, entity_id: str, yes: bool) -> int | None:
    """Delete the entity ID with its limits and buckets. Its children have to go, or move, first."""
    entity_id = session.stored_id(entity_id)
    with session.limiter() as limiter:
        limiter.get_entity(entity_id)
        if not yes and not _confirmed(entity_id):
            answer("nothing was deleted")
            return REFUSED
        limiter.delete_entity(entity_id)
    if session.as_json:
        answer_json({"entity_id": entity_id, "deleted": True})
    else:
        answer(f"deleted: {entity_id}")
    return None


def _confirmed(entity_id: str) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on: give --yes to delete without being asked")
    return click.confirm(f"Delete {entity_id} with its limits and buckets?", err=True)


@entity.command(cls=Command, examples=["headgate entity children acme"])
@click.argument("entity_id", metavar="ID")
@store_options
def children(session: Session, entity_id: str) -> None:
    """List the entities directly below the entity ID."""
    entity_id = session.stored_id(entity_id)
    with session.limiter() as limiter:
        found = list(all_pages(lambda cursor: limiter.get_children(entity_id, cursor=cursor)))
        if not found:
            limiter.get_entity(entity_id)  # raises if there is no such entity
    if session.as_json:
        answer_json([child.as_dict() for child in found])
    elif found:
        rows = [[child.id, child.name or "", "yes" if child.cascade else "no"] for child in found]
        answer(Table(["entity", "name", "cascade"], rows))
    else:
        answer(f"{entity_id} has no children")
