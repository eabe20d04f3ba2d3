"""`headgate buckets`, `headgate reset`, `headgate penalize`: how full buckets are, and correcting them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import click

from ..limiter import BucketStatus
from .command import CliCommand
from .options import CommandSession, change_options, seconds_option, store_options
from .output import Bar, TextTable, all_pages, answer, answer_json, duration, number, resets

_NONE = "all buckets are full"


@click.command(
    cls=CliCommand,
    examples=[
        "headgate buckets acme",
        "headgate buckets acme --resource llm --watch",
        "headgate buckets acme --watch --every 10 --json",
    ],
)
@click.argument("entity_id", metavar="ENTITY")
@click.option("--resource", metavar="RESOURCE", help="Only the buckets on this resource.")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@seconds_option("--every", 0.1, 86_400, "With --watch: seconds between two readings.", default=1)
@store_options
def buckets(session: CommandSession, entity_id: str, resource: str | None, watch: bool, every: float) -> None:
    """Show how full the buckets of ENTITY are.

    A full bucket need not be stored, so only the others are shown. With --watch and --json, each reading is one line.
    """
    entity_id = session.stored_id(entity_id)
    with session.limiter() as limiter:
        if watch:
            _watch(session, f"{entity_id}, every {every:g} s", lambda: limiter.get_buckets(entity_id, resource), every)
            return
        found = list(all_pages(lambda _: limiter.get_buckets(entity_id, resource)))
    if session.as_json:
        answer_json([bucket.as_dict() for bucket in found])
    else:
        answer(_table(found) if found else _NONE)


def _watch(session: CommandSession, title: str, look: Callable[[], list[BucketStatus]], every: float) -> None:
    """Until Ctrl-C."""
    if not session.as_json and sys.stdout.isatty():
        from .drawing import live

        live(lambda: (title, _table(found) if (found := look()) else _NONE), every)
    while True:
        found = look()
        if session.as_json:
            click.echo(json.dumps([bucket.as_dict() for bucket in found]))
        else:
            answer(_table(found) if found else _NONE, "")
        time.sleep(every)


def _table(found: list[BucketStatus]) -> TextTable:
    now_ms = time.time_ns() // 1_000_000
    return TextTable(
        ["resource", "limit", "allows", "level", ">available", ">used", ">full in", "resets", ">blocked for"],
        [
            [
                bucket.resource,
                bucket.limit.name,
                bucket.limit.spelled,
                Bar(bucket.available / bucket.limit.capacity),
                f"{number(bucket.available)} of {number(bucket.limit.capacity)}",
                f"{number(bucket.used)} / {number(bucket.limit.capacity)}" if bucket.limit.is_quota else "",
                duration(bucket.full_in_seconds) or "now",
                resets(bucket.limit, bucket.resets_at_ms, now_ms),
                duration(bucket.blocked_for_seconds),
            ]
            for bucket in found
        ],
    )


@click.command(cls=CliCommand, short_help="Fill buckets.", examples=["headgate reset acme llm"])
@click.argument("entity_id", metavar="ENTITY")
@click.argument("resource")
@change_options
def reset(session: CommandSession, entity_id: str, resource: str) -> None:
    """Fill the buckets of ENTITY on RESOURCE: penalties and debts are cleared, and all slots are free.

    The buckets of its ancestors do not change. A lease that held a slot loses it.
    """
    entity_id = session.stored_id(entity_id)
    with session.limiter() as limiter:
        limiter.reset(entity_id, resource)
    if session.as_json:
        answer_json({"entity_id": entity_id, "resource": resource, "reset": True})
    else:
        answer(f"filled: {entity_id} on {resource}")


@click.command(
    cls=CliCommand,
    short_help="Block an entity for a while, or take tokens away.",
    examples=["headgate penalize openai gpt-4o --seconds 30", "headgate penalize openai gpt-4o --factor 0.5"],
)
@click.argument("entity_id", metavar="ENTITY")
@click.argument("resource")
@click.option("--seconds", metavar="N", type=float, help="Refuse everything for this many seconds.")
@click.option("--factor", metavar="F", type=float, help="Keep this fraction of the tokens, from 0 to 1.")
@change_options
def penalize(
    session: CommandSession, entity_id: str, resource: str, seconds: float | None, factor: float | None
) -> None:
    """After a vendor's 429: block ENTITY on RESOURCE for a while, or take tokens away, or both.

    This affects the stored limits of ENTITY and all its buckets, also those of limits in code, but not its ancestors.
    """
    if seconds is None and factor is None:
        raise click.UsageError(
            "specify --seconds 30, to refuse everything for 30 s, or --factor 0.5, to halve the tokens"
        )
    entity_id = session.stored_id(entity_id)
    with session.limiter() as limiter:
        limiter.penalize(entity_id, resource, seconds=seconds, factor=factor)
    if session.as_json:
        answer_json({"entity_id": entity_id, "resource": resource, "seconds": seconds, "factor": factor})
        return
    effects = [f"everything is refused for {duration(seconds)}"] if seconds else []
    effects += [] if factor is None else [f"{factor:.0%} of the tokens are left"]
    answer(f"penalized: {entity_id} on {resource}, {' and '.join(effects) or 'for 0 s'}")
