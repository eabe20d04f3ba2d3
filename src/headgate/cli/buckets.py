"""`headgate buckets`: how much is left."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import click

from ..limiter import BucketStatus
from .command import Command
from .options import Session, store_options
from .output import Bar, Table, answer, answer_json, duration, number
from .pages import all_pages

_NONE = "no buckets: all are full"


@click.command(
    cls=Command,
    examples=[
        "headgate buckets acme",
        "headgate buckets acme --resource llm --watch",
        "headgate buckets acme --watch --every 10 --json",
    ],
)
@click.argument("entity_id", metavar="ENTITY")
@click.option("--resource", metavar="RESOURCE", help="Only the buckets on this resource.")
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option(
    "--every",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 86_400),
    default=1,
    show_default=True,
    help="With --watch: how far apart.",
)
@store_options
def buckets(session: Session, entity_id: str, resource: str | None, watch: bool, every: float) -> None:
    """Show how full the buckets of ENTITY are.

    A bucket that is full again need not be stored, so only the others are shown. With --watch and --json that is a
    line for each time.
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


def _watch(session: Session, title: str, look: Callable[[], list[BucketStatus]], every: float) -> None:
    """Until somebody presses Ctrl-C."""
    if not session.as_json and sys.stdout.isatty():
        from .live import live

        live(lambda: (title, _table(found) if (found := look()) else _NONE), every)
    while True:
        found = look()
        if session.as_json:
            click.echo(json.dumps([bucket.as_dict() for bucket in found]))
        else:
            answer(_table(found) if found else _NONE, "")
        time.sleep(every)


def _table(found: list[BucketStatus]) -> Table:
    return Table(
        ["resource", "limit", "allows", "level", ">available", ">full in", ">blocked for"],
        [
            [
                bucket.resource,
                bucket.limit.name,
                str(bucket.limit),
                Bar(bucket.available / bucket.limit.capacity),
                f"{number(bucket.available)} of {number(bucket.limit.capacity)}",
                duration(bucket.full_in_seconds) or "now",
                duration(bucket.blocked_for_seconds),
            ]
            for bucket in found
        ],
    )
