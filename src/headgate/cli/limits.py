"""`headgate limits`, `headgate resource`, `headgate system`: the limits stored at each level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

import click

from ..limiter import OnUnavailable, SyncRateLimiter
from ..limiter.config.levels import LimitLevel
from .command import CliCommand, CliGroup
from .level import (
    guarded_options,
    limits_options,
    limits_table,
    remove,
    resolved_dict,
    show,
    show_all,
    store,
)
from .options import CommandSession, change_options, store_options
from .output import all_pages, answer, answer_json

_resource_option = click.option(
    "--resource", metavar="RESOURCE", help="The resource. Without it, the limits on every resource."
)


@click.group(cls=CliGroup, short_help="Limits of an entity, and the limits in force.")
def limits() -> None:
    """Store, show and delete the limits of an entity, and show the limits in force for it.

    Limits are stored at four levels. Each limit, by its name, comes from the most specific level that has it:

    \b
      headgate limits set ENTITY --resource R   an entity on a resource
      headgate limits set ENTITY                an entity on every resource
      headgate resource set R                   everyone on a resource
      headgate system set                       everyone on every resource

    A level stored with --no-inherit ends the search. The command asks for confirmation before a change that removes a
    limit, because programs that consume it would get an error.
    """


@limits.command(
    "set",
    cls=CliCommand,
    short_help="Store limits for an entity.",
    examples=[
        'headgate limits set acme rpm=100/minute "tpm=10000/minute burst 15000" --resource llm',
        "headgate limits set acme rpm=100/minute",
        'headgate limits set openai "parallel=20 concurrent" rpm=500/minute --resource gpt-4o --no-inherit',
        'headgate limits set acme "usd=500/month resets Europe/Berlin alert 80% 100%"',
        'headgate limits set acme rph=20/hour --hours "mon-fri 08:00-18:00: rph=100/hour" --tz Europe/Berlin',
    ],
)
@click.argument("entity_id", metavar="ENTITY")
@limits_options
@_resource_option
@guarded_options
@change_options
def set_limits(
    session: CommandSession,
    entity_id: str,
    specs: Sequence[str],
    hours: Sequence[str],
    tz: str | None,
    resource: str | None,
    inherit: bool,
    expected_version: int | None,
    yes: bool,
) -> int:
    """Store limits for ENTITY. They replace all limits at this level; limits of other names are inherited.

    NAME is any name. SPEC is an amount per time, optionally with a burst: 100/minute, 5/10s, '100/minute burst 150'.
    Units: ms, second, minute, hour, day, week. A quota is full again at a moment: '1000/day resets Europe/Berlin',
    '50/month resets 15 06:30 UTC', '45/5h from first use'. A limit on concurrency is written '10 concurrent' or
    '10 concurrent ttl 90s'. With ' alert 80% 100%' at its end, the use of a limit is reported (`headgate alerts`).
    """
    level = LimitLevel(session.stored_id(entity_id), resource)
    return store(session, level, specs, hours=hours, tz=tz, inherit=inherit, expected=expected_version, yes=yes)


@limits.command(
    "get", cls=CliCommand, examples=["headgate limits get acme", "headgate limits get acme --resource llm --json"]
)
@click.argument("entity_id", metavar="ENTITY")
@_resource_option
@store_options
def get_limits(session: CommandSession, entity_id: str, resource: str | None) -> None:
    """Show the limits stored for ENTITY at one level. `headgate limits resolve` shows the limits in force."""
    show(session, LimitLevel(session.stored_id(entity_id), resource))


@limits.command(
    "delete",
    cls=CliCommand,
    examples=["headgate limits delete acme", "headgate limits delete acme --resource llm --yes"],
)
@click.argument("entity_id", metavar="ENTITY")
@_resource_option
@guarded_options
@change_options
def delete_limits(
    session: CommandSession, entity_id: str, resource: str | None, expected_version: int | None, yes: bool
) -> int:
    """Delete the limits stored for ENTITY at one level. The limits of the other levels apply from then on."""
    return remove(session, LimitLevel(session.stored_id(entity_id), resource), expected=expected_version, yes=yes)


@limits.command(
    "list",
    cls=CliCommand,
    short_help="List entities with their own limits.",
    examples=["headgate limits list", "headgate limits list --resource llm"],
)
@click.option("--resource", metavar="RESOURCE", help="List entities with their own limits on this resource.")
@store_options
def list_limits(session: CommandSession, resource: str | None) -> None:
    """List the entities with their own limits on every resource, or with --resource on that one.

    `headgate resource list` and `headgate system get` show the limits for everyone.
    """

    def levels(limiter: SyncRateLimiter) -> Iterator[LimitLevel]:
        for entity_id in all_pages(lambda cursor: limiter.list_entities_with_custom_limits(resource, cursor=cursor)):
            yield LimitLevel(entity_id, resource)

    show_all(session, levels, f"no entity has its own limits on {resource or 'every resource'}")


@limits.command(
    "resolve",
    cls=CliCommand,
    short_help="Show the limits in force, and the level of each.",
    examples=["headgate limits resolve acme llm"],
)
@click.argument("entity_id", metavar="ENTITY")
@click.argument("resource")
@store_options
def resolve(session: CommandSession, entity_id: str, resource: str) -> None:
    """Show the limits in force for ENTITY on RESOURCE, and the level that each comes from.

    The levels are entity, entity_default, resource and system, the most specific first. Limits in the code of a program
    are not stored: the command lists those with a bucket in use, and `headgate buckets` shows them.
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
        answer(f"no limits are stored for {level}")
    if in_code:
        answer(f"in use, from code: {', '.join(in_code)}")


@click.group(cls=CliGroup)
def resource() -> None:
    """Limits for everyone on a resource.

    They apply to each entity separately. A limit of the same name stored for the entity takes precedence.
    """


@resource.command(
    "set",
    cls=CliCommand,
    short_help="Store limits for everyone on a resource.",
    examples=["headgate resource set llm rpm=60/minute", 'headgate resource set llm "tpm=10000/minute burst 15000"'],
)
@click.argument("resource")
@limits_options
@guarded_options
@change_options
def set_resource(
    session: CommandSession,
    resource: str,
    specs: Sequence[str],
    hours: Sequence[str],
    tz: str | None,
    inherit: bool,
    expected_version: int | None,
    yes: bool,
) -> int:
    """Store limits for everyone on RESOURCE. They replace all limits stored for it.

    `headgate limits set --help` explains NAME=SPEC.
    """
    level = LimitLevel(resource=resource)
    return store(session, level, specs, hours=hours, tz=tz, inherit=inherit, expected=expected_version, yes=yes)


@resource.command("get", cls=CliCommand, examples=["headgate resource get llm"])
@click.argument("resource")
@store_options
def get_resource(session: CommandSession, resource: str) -> None:
    """Show the limits for everyone on RESOURCE."""
    show(session, LimitLevel(resource=resource))


@resource.command("delete", cls=CliCommand, examples=["headgate resource delete llm"])
@click.argument("resource")
@guarded_options
@change_options
def delete_resource(session: CommandSession, resource: str, expected_version: int | None, yes: bool) -> int:
    """Delete the limits for everyone on RESOURCE. The system's limits apply from then on."""
    return remove(session, LimitLevel(resource=resource), expected=expected_version, yes=yes)


@resource.command("list", cls=CliCommand, examples=["headgate resource list"])
@store_options
def list_resource(session: CommandSession) -> None:
    """List the resources with limits for everyone."""

    def levels(limiter: SyncRateLimiter) -> Iterator[LimitLevel]:
        for name in all_pages(lambda cursor: limiter.list_resources_with_defaults(cursor=cursor)):
            yield LimitLevel(resource=name)

    show_all(session, levels, "no resource has limits for everyone")


@click.group(cls=CliGroup)
def system() -> None:
    """Limits for everyone on every resource. They apply where no other level has a limit of that name.

    The outage policy, which says what an acquire does when the store is unavailable, is stored with them.
    """


@system.command(
    "set",
    cls=CliCommand,
    short_help="Store limits for everyone on every resource.",
    examples=["headgate system set rpm=20/minute", "headgate system set rpm=20/minute --on-unavailable allow"],
)
@limits_options
@click.option(
    "--on-unavailable",
    metavar="POLICY",
    type=click.Choice(get_args(OnUnavailable)),
    help="What an acquire does when the store is unavailable: block, allow or local. Default: as set in the limiter.",
)
@guarded_options
@change_options
def set_system(
    session: CommandSession,
    specs: Sequence[str],
    hours: Sequence[str],
    tz: str | None,
    on_unavailable: str | None,
    inherit: bool,
    expected_version: int | None,
    yes: bool,
) -> int:
    """Store limits for everyone on every resource. They replace the stored limits and the outage policy.

    `headgate limits set --help` explains NAME=SPEC. With --no-inherit, limits in the code of programs do not apply.
    """
    return store(
        session,
        LimitLevel(),
        specs,
        hours=hours,
        tz=tz,
        inherit=inherit,
        expected=expected_version,
        yes=yes,
        policy=on_unavailable,
    )


@system.command("get", cls=CliCommand, examples=["headgate system get"])
@store_options
def get_system(session: CommandSession) -> None:
    """Show the limits for everyone on every resource."""
    show(session, LimitLevel())


@system.command("delete", cls=CliCommand, examples=["headgate system delete"])
@guarded_options
@change_options
def delete_system(session: CommandSession, expected_version: int | None, yes: bool) -> int:
    """Delete the limits for everyone on every resource. Without other limits, every acquire fails from then on."""
    return remove(session, LimitLevel(), expected=expected_version, yes=yes)
