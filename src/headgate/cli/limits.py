"""`headgate limits`: those of one entity, and which hold in the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from ..limiter import SyncRateLimiter
from ..limiter.config.levels import LimitLevel
from .command import Command, Group
from .level import (
    guarded_options,
    inherit_option,
    limits_table,
    remove,
    resolved_dict,
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

    Limits are stored at four levels. Each limit is taken, by its name, from the most specific level that has it:

    \b
      headgate limits set ENTITY --resource R   an entity on a resource
      headgate limits set ENTITY                an entity on every resource
      headgate resource set R                   everyone on a resource
      headgate system set                       everyone on every resource

    A level stored with --no-inherit is the last one looked at. Before a change that makes a limit disappear, the
    command asks: programs that consume it would get an error.
    """


@limits.command(
    "set",
    cls=Command,
    short_help="Store limits of an entity.",
    examples=[
        'headgate limits set acme rpm=100/minute "tpm=10000/minute burst 15000" --resource llm',
        "headgate limits set acme rpm=100/minute",
        'headgate limits set openai "parallel=20 concurrent" rpm=500/minute --resource gpt-4o --no-inherit',
    ],
)
@click.argument("entity_id", metavar="ENTITY")
@specs_argument
@_resource_option
@inherit_option
@guarded_options
@change_options
def set_(
    session: Session,
    entity_id: str,
    specs: Sequence[str],
    resource: str | None,
    inherit: bool,
    expected_version: int | None,
    yes: bool,
) -> int:
    """Store limits of ENTITY. They replace all that were stored at this level; limits of other names are inherited.

    NAME is yours to choose; SPEC is an amount per time, with a larger or smaller burst if you like: 100/minute,
    5/10s, '100/minute burst 150'. Units: ms, second, minute, hour, day, week. Or it is how many at once:
    '10 concurrent', '10 concurrent ttl 90s'.
    """
    level = LimitLevel(session.stored_id(entity_id), resource)
    return store(session, level, specs, inherit=inherit, expected=expected_version, yes=yes)


@limits.command(
    "get", cls=Command, examples=["headgate limits get acme", "headgate limits get acme --resource llm --json"]
)
@click.argument("entity_id", metavar="ENTITY")
@_resource_option
@store_options
def get(session: Session, entity_id: str, resource: str | None) -> None:
    """Show the limits stored for ENTITY at one level. `headgate limits resolve` shows those that hold."""
    show(session, LimitLevel(session.stored_id(entity_id), resource))


@limits.command(
    "delete",
    cls=Command,
    examples=["headgate limits delete acme", "headgate limits delete acme --resource llm --yes"],
)
@click.argument("entity_id", metavar="ENTITY")
@_resource_option
@guarded_options
@change_options
def delete(session: Session, entity_id: str, resource: str | None, expected_version: int | None, yes: bool) -> int:
    """Delete the limits stored for ENTITY at one level. Those of the other levels hold from then on."""
    return remove(session, LimitLevel(session.stored_id(entity_id), resource), expected=expected_version, yes=yes)


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

    def levels(limiter: SyncRateLimiter) -> Iterator[LimitLevel]:
        for entity_id in all_pages(lambda cursor: limiter.list_entities_with_custom_limits(resource, cursor=cursor)):
            yield LimitLevel(entity_id, resource)

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
    """Show the limits that an acquire of ENTITY on RESOURCE obeys, and the level that each is from.

    A level is entity, entity_default, resource or system, the most specific first. Limits that a program keeps in its
    code are not stored: those with a bucket in use are named, and `headgate buckets` shows them.
    """
    entity_id = session.stored_id(entity_id)
    level = LimitLevel(entity_id, resource)
    with session.limiter() as limiter:
        found = limiter.resolve_limits(entity_id, resource)
        in_use = {bucket.limit.name for bucket in limiter.get_buckets(entity_id, resource)}
    in_code = sorted(in_use - {limit.name for limit in found.limits})
    if session.as_json:
        answer_json(level.as_dict() | resolved_dict(found) | {"in_code": in_code})
        return
    if found.limits:
        answer(f"{level}; source: {found.source}", limits_table(found.limits, found))
    else:
        answer(f"no limits {'are stored' if in_code else 'hold'} for {level}")
    if in_code:
        answer(f"in use, kept in code: {', '.join(in_code)}")
