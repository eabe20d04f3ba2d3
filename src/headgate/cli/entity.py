"""`headgate entity`: the entities, each with a parent, a name and metadata."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from ..core.records import Entity
from ..limiter import ResolvedLimits, StoredLimits, SyncRateLimiter
from .command import CliCommand, CliGroup
from .errors import REFUSED
from .level import resolved_dict, sourced
from .options import CommandSession, change_options, confirmed, store_options, yes_option
from .output import TextTable, all_pages, answer, answer_json, limit_dict, spelled
from .values import read_pairs

_METADATA = "KEY=VALUE, like tier=gold"


@click.group(cls=CliGroup)
def entity() -> None:
    """Create, show, change and delete entities.

    Limits work without this: create an entity only to give it a parent, a name or metadata.
    """


@entity.command(
    cls=CliCommand,
    examples=[
        "headgate entity create acme --name 'Acme Ltd' --metadata tier=gold",
        "headgate entity create acme-key-1 --parent acme --cascade",
    ],
)
@click.argument("entity_id", metavar="ID")
@click.option("--name", metavar="NAME", help="A display name.")
@click.option("--parent", "parent_id", metavar="ID", help="Its parent, which must exist.")
@click.option("--cascade", is_flag=True, help="What it takes also counts for every ancestor.")
@click.option("--metadata", metavar="KEY=VALUE", multiple=True, help="A property of the entity. Repeatable.")
@change_options
def create(
    session: CommandSession,
    entity_id: str,
    name: str | None,
    parent_id: str | None,
    cascade: bool,
    metadata: Sequence[str],
) -> None:
    """Create the entity ID."""
    pairs = read_pairs(metadata, _METADATA)
    entity_id = session.stored_id(entity_id)
    parent_id = None if parent_id is None else session.stored_id(parent_id, "parent_id")
    with session.limiter() as limiter:
        made = limiter.create_entity(entity_id, name=name, parent_id=parent_id, cascade=cascade, metadata=dict(pairs))
    if session.as_json:
        answer_json(made.as_dict())
    else:
        answer(f"created: {made.id}" + (f" below {parent_id}" if parent_id else ""))


@entity.command(cls=CliCommand, examples=["headgate entity get acme", "headgate entity get acme --resource llm"])
@click.argument("entity_id", metavar="ID")
@click.option("--resource", metavar="RESOURCE", help="Also show the limits in force on this resource.")
@store_options
def get(session: CommandSession, entity_id: str, resource: str | None) -> None:
    """Show the entity ID, its ancestors and its own limits."""
    entity_id = session.stored_id(entity_id)
    with session.limiter() as limiter:
        found = limiter.get_entity(entity_id)
        parents = list(_parents(limiter, found))
        own = limiter.get_own_limits(entity_id)
        effective = limiter.resolve_limits(entity_id, resource) if resource else None
    if session.as_json:
        answer_json(_shown_dict(found, parents, own, effective))
    else:
        answer(_table(found, parents, own, effective, resource))


def _parents(limiter: SyncRateLimiter, child: Entity) -> Iterator[Entity]:
    while child.parent_id is not None:
        child = limiter.get_entity(child.parent_id)
        yield child


Own = Mapping["str | None", StoredLimits]


def _shown_dict(found: Entity, parents: list[Entity], own: Own, effective: ResolvedLimits | None) -> dict[str, Any]:
    shown = found.as_dict() | {
        "parents": [parent.id for parent in parents],
        "limits": [limit_dict(limit) for limit in own.get(None, ())],
        "resources": {name: [limit_dict(limit) for limit in limits] for name, limits in own.items() if name},
        "no_inherit": [name for name, limits in own.items() if not limits.inherit],
    }
    if effective:
        shown["effective"] = resolved_dict(effective)
    return shown


def _table(
    found: Entity, parents: list[Entity], own: Own, effective: ResolvedLimits | None, resource: str | None
) -> TextTable:
    rows = [
        ["entity", found.id],
        ["name", found.name or ""],
        ["parents", " < ".join(parent.id for parent in parents)],
        ["cascade", "yes: what it takes also counts for every ancestor" if found.cascade else ""],
        ["metadata", ", ".join(f"{key}={value}" for key, value in found.metadata.items())],
        ["version", str(found.version)],
        *([f"own limits on {name or 'every resource'}", _own(limits)] for name, limits in own.items()),
        [f"limits on {resource}", _effective(effective)],
    ]
    return TextTable(["", ""], [row for row in rows if row[1]])


def _own(limits: StoredLimits) -> str:
    return f"{spelled(limits)}{'' if limits.inherit else '; nothing is inherited'}"


def _effective(effective: ResolvedLimits | None) -> str:
    return "" if effective is None else sourced(effective) or "none"


@entity.command(
    cls=CliCommand,
    short_help="Change properties of an entity.",
    examples=[
        "headgate entity update acme --name 'Acme plc'",
        "headgate entity update acme-key-1 --parent globex --no-cascade",
        "headgate entity update acme --metadata tier=silver --expected-version 3",
    ],
)
@click.argument("entity_id", metavar="ID")
@click.option("--name", metavar="NAME", help="The new name.")
@click.option("--no-name", is_flag=True, help="Remove the name.")
@click.option("--parent", "parent_id", metavar="ID", help="The new parent, which must exist.")
@click.option("--no-parent", is_flag=True, help="Remove the parent.")
@click.option("--cascade/--no-cascade", default=None, help="Whether what it takes also counts for every ancestor.")
@click.option(
    "--metadata",
    metavar="KEY=VALUE",
    multiple=True,
    help="The new metadata, which replaces all of the old. Repeatable.",
)
@click.option("--no-metadata", is_flag=True, help="Remove the metadata.")
@click.option(
    "--expected-version",
    metavar="N",
    type=click.IntRange(1),
    help="Fail unless the entity has this version. `headgate entity get` shows it.",
)
@change_options
def update(session: CommandSession, entity_id: str, expected_version: int | None, **given: Any) -> None:
    """Change the given properties of the entity ID, and keep the others."""
    changes = _changes(session, **given)
    entity_id = session.stored_id(entity_id)
    with session.limiter() as limiter:
        changed = limiter.update_entity(entity_id, expected_version=expected_version, **changes)
    if session.as_json:
        answer_json(changed.as_dict())
    else:
        answer(f"changed: {changed.id}, now version {changed.version}")


def _changes(
    session: CommandSession,
    name: str | None,
    no_name: bool,
    parent_id: str | None,
    no_parent: bool,
    cascade: bool | None,
    metadata: Sequence[str],
    no_metadata: bool,
) -> dict[str, Any]:
    parent_id = session.stored_id(parent_id, "parent_id") if parent_id else None
    changes = {
        **_change("name", "name", name, no_name, None),
        **_change("parent_id", "parent", parent_id, no_parent, None),
        **_change("metadata", "metadata", read_pairs(metadata, _METADATA), no_metadata, {}),
        **({} if cascade is None else {"cascade": cascade}),
    }
    if not changes:
        raise click.UsageError("specify what to change, like --name 'Acme plc' or --no-parent")
    return changes


def _change(field: str, option: str, given: Any, none: bool, nothing: Any) -> dict[str, Any]:
    if given and none:
        raise click.UsageError(f"--{option} and --no-{option} contradict each other: use one of them")
    return {field: given or nothing} if given or none else {}


@entity.command(cls=CliCommand, examples=["headgate entity delete acme --yes"])
@click.argument("entity_id", metavar="ID")
@yes_option
@change_options
def delete(session: CommandSession, entity_id: str, yes: bool) -> int | None:
    """Delete the entity ID with its limits and buckets. Delete or move its children first."""
    entity_id = session.stored_id(entity_id)
    with session.limiter() as limiter:
        limiter.get_entity(entity_id)
        if not confirmed(f"Delete {entity_id} with its limits and buckets?", yes):
            answer("nothing was deleted")
            return REFUSED
        limiter.delete_entity(entity_id)
    if session.as_json:
        answer_json({"entity_id": entity_id, "deleted": True})
    else:
        answer(f"deleted: {entity_id}")
    return None


@entity.command("list", cls=CliCommand, examples=["headgate entity list", "headgate entity list --prefix acme-"])
@click.option("--prefix", metavar="TEXT", default="", help="Only entities whose stored id starts with this.")
@store_options
def list_(session: CommandSession, prefix: str) -> None:
    """List the entities that were created. `headgate limits list` lists those that only have limits."""
    with session.limiter() as limiter:
        found = list(all_pages(lambda cursor: limiter.list_entities(prefix=prefix, cursor=cursor)))
    _tell(session, found, f"no entities{f' whose id starts with {prefix}' if prefix else ''} were created")


@entity.command(cls=CliCommand, examples=["headgate entity children acme"])
@click.argument("entity_id", metavar="ID")
@store_options
def children(session: CommandSession, entity_id: str) -> None:
    """List the children of the entity ID."""
    entity_id = session.stored_id(entity_id)
    with session.limiter() as limiter:
        found = list(all_pages(lambda cursor: limiter.get_children(entity_id, cursor=cursor)))
    _tell(session, found, f"{entity_id} has no children")


def _tell(session: CommandSession, found: Iterable[Entity], none: str) -> None:
    if session.as_json:
        answer_json([one.as_dict() for one in found])
    elif found:
        rows = [[one.id, one.name or "", one.parent_id or "", "yes" if one.cascade else ""] for one in found]
        answer(TextTable(["entity", "name", "parent", "cascade"], rows))
    else:
        answer(none)
