"""`headgate setup` and `headgate reconcile`: preparing a store, and cleaning up in it."""

from __future__ import annotations

import json
import time

import click

from ..core.names import shown_url
from .command import CliCommand
from .options import (
    CommandSession,
    hash_option,
    json_option,
    namespace_option,
    seconds_option,
    url_option,
    with_session,
    work_options,
)
from .output import answer, answer_json, number


@click.command(
    cls=CliCommand,
    short_help="Prepare a store before its first use.",
    examples=["headgate setup --url postgresql://admin@db/app", "headgate setup --url dynamodb://limits"],
)
@work_options
def setup(session: CommandSession) -> None:
    """Create or update the schema of PostgreSQL, or create the table of DynamoDB. Other stores need no setup.

    It can be repeated at any time. On PostgreSQL it needs a role that may create a schema; clients need fewer rights.
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
    short_help="Release what expired leases hold, and delete expired data.",
    examples=["headgate reconcile", "headgate reconcile --every 60"],
)
@seconds_option("--every", 1, 86_400, "Repeat after this many seconds, until Ctrl-C.")
@with_session(url_option, namespace_option, hash_option, json_option, changes=True)
def reconcile(session: CommandSession, every: float | None) -> None:
    """Release what expired leases hold: their slots, and the tokens that they were to give back. Delete data that is no
    longer needed: full buckets, and expired records.

    An acquire reclaims expired slots by itself; tokens come back only through this command. It runs once, or with
    --every until it is stopped; with --json and --every, each sweep is one line. Any number of processes may run it at
    the same time. A stack on AWS does this by itself.
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
                answer(f"swept: {counts}")
            if every is None:
                return
            time.sleep(every)
