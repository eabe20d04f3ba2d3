"""`headgate reconcile`: let go of what dead holders have kept, and clear away what nobody needs any more."""

from __future__ import annotations

import json
import time

import click

from .command import Command
from .options import Session, hash_option, json_option, namespace_option, url_option, with_session
from .output import answer, answer_json, number


@click.command(
    cls=Command,
    short_help="Let go of what the dead hold, and clear away what nobody needs.",
    examples=["headgate reconcile", "headgate reconcile --every 60"],
)
@click.option(
    "--every",
    metavar="SECONDS",
    type=click.FloatRange(1, 86_400),
    help="Again and again, this far apart, until Ctrl-C.",
)
@with_session(url_option, namespace_option, hash_option, json_option, changes=True)
def reconcile(session: Session, every: float | None) -> None:
    """Let go of what dead holders have kept: their slots, and tokens that are to be restored. And clear away what
    nobody needs any more: buckets that are full again, and records that have expired.

    Whoever needs a slot finds those of the dead without it; only tokens wait for it. Once, or with --every for as long
    as it runs; with --json that is a line for each time. Any number of processes may do it at once. A stack on AWS does
    it by itself.
    """
    with session.limiter() as limiter:
        while True:
            found = limiter.reconcile().as_dict()
            if session.as_json and every:
                click.echo(json.dumps(found))
            elif session.as_json:
                answer_json(found)
            else:
                counts = ", ".join(f"{what} {number(count)}" for what, count in found.items())
                answer(f"put right: {counts}")
            if every is None:
                return
            time.sleep(every)
