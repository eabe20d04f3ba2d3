"""`headgate limits`: what is stored, at four levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

import click

from ..core.limit import Limit
from ..limiter import OnUnavailable, SyncRateLimiter
from .command import Command, Group
from .level import Level, level_options
from .options import Session, store_options
from .output import Table, answer, answer_json, limit_dict, number, spelled
from .pages import all_pages
from .values import read_limits


@click.group(cls=Group)
def limits() -> None:
    """Store, show and delete limits.

    Limits are stored at four levels, and the most specific one that has any is obeyed:

    \b
      ENTITY --resource R   an entity on a resource
      ENTITY                an entity on every resource
      --resource R          everyone on a resource
      --system              everyone on every resource
    """


@limits.command(
    "set",
    cls=Command,
    examples=[
        'headgate limits set acme rpm=100/minute "tpm=10000/minute burst 15000" --resource llm',
        "headgate limits set acme rpm=100/minute",
        "headgate limits set --resource llm rpm=60/minute",
        'headgate limits set openai "parallel=20 concurrent" rpm=500/minute --resource gpt-4o',
        "headgate limits set --system rpm=20/minute --on-unavailable allow",
    ],
)
@click.argument("words", metavar="[ENTITY] NAME=SPEC...", nargs=-1, required=True)
@level_options
@click.option(
    "--on-unavailable",
    metavar="POLICY",
    type=click.Choice(get_args(OnUnavailable)),
    help="With --system: what an acquire does when the store is away: block, allow or local.",
)
@store_options
def set_(
    session: Session,
    words: Sequence[str],
    entity_id: str | None,
    resource: str | None,
    system: bool,
    on_unavailable: str | None,
) -> None:
    """Store limits. They replace all that were stored at this level.

    NAME is yours to choose; SPEC is an amount per time, with a larger or smaller burst if you like: 100/minute,
    5/10s, '100/minute burst 150'. Units: ms, second, minute, hour, day, week. Or it is how many at once:
    '10 concurrent', '10 concurrent ttl 90s'.

    An ENTITY with = in it, as a secret that is hashed may have, is given with --entity.
    """
    # An identifier has no "=" in it, a limit always has.
    first = words[0] if "=" not in words[0] else None
    level = Level.chosen(session, first, entity_id, resource, system)
    if on_unavailable is not None and not system:
        raise click.UsageError("--on-unavailable is stored with the system's limits: use it with --system")
    found = read_limits(words[1:] if first else words)
    if not found:
        raise click.UsageError("give at least one limit, like rpm=100/minute")
    with session.limiter() as limiter:
        level.set(limiter, found, on_unavailable)
    if session.as_json:
        answer_json(_level_dict(level, found) | ({"on_unavailable": on_unavailable} if system else {}))
    else:
        policy = f"; when the store is away: {on_unavailable}" if on_unavailable else ""
        answer(f"stored for {level}: {spelled(found)}{policy}")


@limits.command(
    "get",
    cls=Command,
    short_help="Show the limits stored at one level, or those that hold.",
    examples=[
        "headgate limits get acme",
        "headgate limits get acme --resource llm --effective",
        "headgate limits get --system",
    ],
)
@click.argument("entity", required=False)
@level_options
@click.option(
    "--effective",
    is_flag=True,
    help="With an entity and --resource: the limits an acquire would obey, and which level they are from.",
)
@store_options
def get(
    session: Session, entity: str | None, entity_id: str | None, resource: str | None, system: bool, effective: bool
) -> None:
    """Show the limits stored at one level, or with --effective those that hold in the end."""
    level = Level.chosen(session, entity, entity_id, resource, system)
    if effective and level.source != "entity":
        raise click.UsageError("--effective needs both an entity and --resource")
    more: dict[str, Any] = {}
    with session.limiter() as limiter:
        if effective:
            found, more["source"] = limiter.resolve_limits(level.entity_id or "", level.resource or "")
        else:
            found = level.get(limiter)
        if system:
            more["on_unavailable"] = limiter.get_system_on_unavailable()
    if session.as_json:
        answer_json(_level_dict(level, found) | more)
        return
    _tell(level, found, more)


def _tell(level: Level, found: list[Limit], more: dict[str, Any]) -> None:
    if not found:
        answer(f"no limits {'hold' if 'source' in more else 'are stored'} for {level}")
        return
    answer(
        f"{level}; source: {more['source']}" if "source" in more else str(level),
        Table(
            ["limit", "allows", ">capacity", ">refill"],
            [
                [
                    limit.name,
                    str(limit),
                    number(limit.capacity),
                    number(limit.refill_amount) if limit.refill_amount else "",
                ]
                for limit in found
            ],
        ),
    )
    if more.get("on_unavailable"):
        answer(f"when the store is away: {more['on_unavailable']}")


@limits.command(
    "delete", cls=Command, examples=["headgate limits delete acme --resource llm", "headgate limits delete --system"]
)
@click.argument("entity", required=False)
@level_options
@store_options
def delete(session: Session, entity: str | None, entity_id: str | None, resource: str | None, system: bool) -> None:
    """Delete the limits stored at one level. The next level that has any holds from then on."""
    level = Level.chosen(session, entity, entity_id, resource, system)
    with session.limiter() as limiter:
        deleted = level.delete(limiter)
    if session.as_json:
        answer_json(_place(level) | {"deleted": deleted})
    else:
        answer(f"deleted: the limits of {level}" if deleted else f"nothing to delete: {level} had no limits")


@limits.command(
    "list",
    cls=Command,
    short_help="List all that is stored.",
    examples=["headgate limits list", "headgate limits list --resource llm"],
)
@click.option(
    "--resource",
    metavar="RESOURCE",
    help="Only this resource: its defaults, and the entities with limits of their own on it.",
)
@store_options
def list_(session: Session, resource: str | None) -> None:
    """List what is stored: the system's limits, every resource with defaults, every entity with a default.

    With --resource: that resource's defaults, and every entity that has limits of its own on it.
    """
    with session.limiter() as limiter:
        found = [(level, stored) for level in _levels(limiter, resource) if (stored := level.get(limiter))]
    if session.as_json:
        answer_json([_level_dict(level, stored) for level, stored in found])
    elif found:
        answer(Table(["for", "limits"], [[str(level), spelled(stored)] for level, stored in found]))
    else:
        answer("no limits are stored" + (f" on {resource}" if resource else ""))


def _levels(limiter: SyncRateLimiter, resource: str | None) -> Iterator[Level]:
    if resource is None:
        yield Level()
        for name in all_pages(lambda cursor: limiter.list_resources_with_defaults(cursor=cursor)):
            yield Level(resource=name)
    else:
        yield Level(resource=resource)
    for entity_id in all_pages(lambda cursor: limiter.list_entities_with_custom_limits(resource, cursor=cursor)):
        yield Level(entity_id, resource)


def _place(level: Level) -> dict[str, Any]:
    return {"entity_id": level.entity_id, "resource": level.resource, "source": level.source}


def _level_dict(level: Level, found: list[Limit]) -> dict[str, Any]:
    return _place(level) | {"limits": [limit_dict(limit) for limit in found]}
