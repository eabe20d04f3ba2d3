"""`headgate reconcile`: clear away what nobody needs any more."""

from __future__ import annotations

import json
import time

import click

from .command import Command
from .options import Session, store_options
from .output import answer, answer_json, number


@click.command(
    cls=Command,
    short_help="Clear away what nobody needs any more.",
    examples=["headgate reconcile", "headgate reconcile --every 60"],
)
@click.option(
    "--every",
    metavar="SECONDS",
    type=click.FloatRange(1, 86_400),
    help="Again and again, this far apart, until Ctrl-C.",
)
@store_options
def reconcile(session: Session, every: float | None) -> None:
    """Clear away what nobody needs any more: buckets that are full again, and records that have expired.

    Nothing depends on it but space. Once, or with --every for as long as it runs; with --json that is a line for each
    time. Any number of processes may do it at once. A stack on AWS does it by itself.
    """
    with session.limiter() as limiter:
        while True:
            found = limiter.reconcile().as_dict()
            if session.as_json and every:
                click.echo(json.dumps(found))
            elif session.as_json:
                answer_json(found)
            else:
                answer(f"cleared away: {number(found['buckets'])} buckets, {number(found['records'])} records")
            if every is None:
                return
            time.sleep(every)
