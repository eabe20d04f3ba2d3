"""`headgate buckets`: how much is left."""

from __future__ import annotations

import click

from ..limiter import BucketStatus
from .command import Command
from .options import Session, store_options
from .output import Bar, Table, answer, answer_json, duration, number


@click.command(cls=Command, examples=["headgate buckets acme", "headgate buckets acme --resource llm"])
@click.argument("entity_id", metavar="ENTITY")
@click.option("--resource", metavar="RESOURCE", help="Only the buckets on this resource.")
@store_options
def buckets(session: Session, entity_id: str, resource: str | None) -> None:
    """Show how full the buckets of ENTITY are.

    A bucket that is full again need not be stored, so only the others are shown.
    """
    entity_id = session.stored_id(entity_id)
    with session.limiter() as limiter:
        found = limiter.get_buckets(entity_id, resource)
    if session.as_json:
        answer_json([bucket.as_dict() for bucket in found])
    elif found:
        answer(_table(found))
    else:
        answer("no buckets: all are full")


def _table(found: list[BucketStatus]) -> Table:
    return Table(
        ["resource", "limit", "allows", "level", ">available", ">capacity", ">full in", ">blocked for"],
        [
            [
                bucket.resource,
                bucket.limit.name,
                str(bucket.limit),
                Bar(bucket.available / bucket.limit.capacity),
                number(bucket.available),
                number(bucket.limit.capacity),
                duration(bucket.full_in_seconds) or "now",
                duration(bucket.blocked_for_seconds),
            ]
            for bucket in found
        ],
    )
