"""`headgate limits`: those of one entity, and which hold in the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from ..limiter import SyncRateLimiter
from .command import Command, Group
from .level import (
    Level,
    expected_option,
    level_dict,
    limits_table,
    remove,
    show,
    show_all,
    specs_argument,
    store,
)
from .options import Session, change_options, store_options
from .output import answer, answer_json
from .pages import all_pages

_resource_option = click.option(
    "--resource", metavar="RESOURCE", help="Its limits on this resource; without it, those on every resource."
)


@click.group(cls=Group, short_help="Limits of one entity, and those that hold.")
def limits() -> None:
    """Store, show and delete the limits of an entity, and say which hold for it.

    Limits are stored at four levels, and the most specific one that has any is obeyed:

    \b
      headgate limits set ENTITY --resource R   an entity on a resource
      headgate limits set ENTITY                an entity on every resource
      headgate resource set R                   everyone on a resource
      headgate system set                       everyone on every resource
    """


@limits.command(
    "set",
    cls=Command,
    short_help="Store limits of an entity.",
    examples=[
        'headgate limits set acme rpm=100/minute "tpm=10000/minute burst 15000" --resource llm',
        "headgate limits set acme rpm=100/minute",
        'headgate limits set openai "parallel=20 concurrent" rpm=500/minute --resource gpt-4o',
    ],
)
@click.argument("entity_id", metavar="ENTITY")
@specs_argument
@_resource_option
@expected_option
@change_options
def set_(
    session: Session, entity_id: str, specs: Sequence[str], resource: str | None, expected_version: int | None
) -> None:
    """Store limits of ENTITY. They replace all that were stored at this level.

    NAME is yours to choose; SPEC is an amount per time, with a larger or smaller burst if you like: 100/minute,
    5/10s, '100/minute burst 150'. Units: ms, second, minute, hour, day, week. Or it is how many at once:
    '10 concurrent', '10 concurrent ttl 90s'.
    """
    store(session, Level(session.stored_id(entity_id), resource), specs, expected_version)


@limits.command(
    "get", cls=Command, examples=["headgate limits get acme", "headgate limits get acme --resource llm --json"]
)
@click.argument("entity_id", metavar="ENTITY")
@_resource_option
@store_options
def get(session: Session, entity_id: str, resource: str | None) -> None:
    """Show the limits stored for ENTITY at one level. `headgate limits resolve` shows those that hold."""
    show(session, Level(session.stored_id(entity_id), resource))


@limits.command(
    "delete",
    cls=Command,
    examples=["headgate limits delete acme", "headgate limits delete acme --resource llm"],
)
@click.argument("entity_id", metavar="ENTITY")
@_resource_option
@expected_option
@change_options
def delete(session: Session, entity_id: str, resource: str | None, expected_version: int | None) -> None:
    """Delete the limits stored for ENTITY at one level. The next level that has any holds from then on."""
    remove(session, Level(session.stored_id(entity_id), resource), expected_version)


@limits.command(
    "list",
    cls=Command,
    short_help="List the entities with limits of their own.",
    examples=["headgate limits list", "headgate limits list --resource llm"],
)
@click.option("--resource", metavar="RESOURCE", help="Those with limits of their own on this resource.")
@store_options
def list_(session: Session, resource: str | None) -> None:
    """List the entities with limits of their own on every resource, or with --resource on that one.

    `headgate resource list` and `headgate system get` show the limits of everyone.
    """

    def levels(limiter: SyncRateLimiter) -> Iterator[Level]:
        for entity_id in all_pages(lambda cursor: limiter.list_entities_with_custom_limits(resource, cursor=cursor)):
            yield Level(entity_id, resource)

    show_all(session, levels, f"no entity has limits of its own on {resource or 'every resource'}")


@limits.command(
    "resolve",
    cls=Command,
    short_help="Show the limits that hold, and where they are from.",
    examples=["headgate limits resolve acme llm"],
)
@click.argument("entity_id", metavar="ENTITY")
@click.argument("resource")
@store_options
def resolve(session: Session, entity_id: str, resource: str) -> None:
    """Show the limits that an acquire of ENTITY on RESOURCE obeys, and the level they are from.

    The source is entity, entity_default, resource or system: the most specific level that has any.
    """
    level = Level(session.stored_id(entity_id), resource)
    with session.limiter() as limiter:
        found, source = limiter.resolve_limits(level.entity_id or "", resource)
    if session.as_json:
        answer_json(level_dict(level, found) | {"source": source})
    elif found:
        answer(f"{level}; source: {source}", limits_table(found))
    else:
        answer(f"no limits hold for {level}")
