"""`headgate setup`: make a store ready."""

from __future__ import annotations

import click

from ..core.names import shown_url
from .command import Command
from .options import Session, work_options
from .output import answer, answer_json


@click.command(
    cls=Command,
    short_help="Make what a store needs before it is used.",
    examples=["headgate setup --url postgresql://admin@db/app", "headgate setup --url dynamodb://limits"],
)
@work_options
def setup(session: Session) -> None:
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
