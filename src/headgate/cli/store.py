"""`headgate setup` and `headgate reconcile`: preparing a store, and cleaning up in it."""

from __future__ import annotations

import json
import time

import click

from ..core.names import shown_url
from .command import CliCommand
from .options import CommandSession, hash_option, json_option, namespace_option, url_option, with_session, work_options
from .output import answer, answer_json, number


@click.command(
    cls=CliCommand,
    short_help="Make what a store needs before it is used.",
    examples=["headgate setup --url postgresql://admin@db/app", "headgate setup --url dynamodb://limits"],
)
@work_options
def setup(session: CommandSession) -> None:
    """Make what the store needs and lacks: the schema of PostgreSQL, or bring it up to date; the table of DynamoDB.
    Others need nothing.

    It can be done again at any time. On PostgreSQL by a role that may create a schema; those who use it need less.
    """
    with session.limiter() as limiter:
        limiter.setup()
        url = shown_url(limiter.url)
    if session.as_json:
        answer_json({"url": url, "ready": True})
    else:
        answer(f"ready: {url}")


@click.command(
    cls=CliCommand,
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
def reconcile(session: CommandSession, every: float | None) -> None:
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
