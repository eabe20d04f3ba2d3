"""`headgate system`: the limits of everyone who has no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import click

from ..limiter import OnUnavailable
from .command import Command, Group
from .level import Level, expected_option, remove, show, specs_argument, store
from .options import Session, change_options, store_options


@click.group(cls=Group)
def system() -> None:
    """Limits of everyone everywhere who has no others.

    With them is stored what an acquire does when the store is away.
    """


@system.command(
    "set",
    cls=Command,
    short_help="Store limits of everyone everywhere.",
    examples=["headgate system set rpm=20/minute", "headgate system set rpm=20/minute --on-unavailable allow"],
)
@specs_argument
@click.option(
    "--on-unavailable",
    metavar="POLICY",
    type=click.Choice(get_args(OnUnavailable)),
    help="What an acquire does when the store is away: block, allow or local. Without it, as each limiter says.",
)
@expected_option
@change_options
def set_(session: Session, specs: Sequence[str], on_unavailable: str | None, expected_version: int | None) -> None:
    """Store the limits of everyone everywhere who has no others. They replace all that were stored, and the policy.

    NAME=SPEC is spelled as for `headgate limits set`.
    """
    store(session, Level(), specs, expected_version, on_unavailable)


@system.command("get", cls=Command, examples=["headgate system get"])
@store_options
def get(session: Session) -> None:
    """Show the limits of everyone everywhere who has no others."""
    show(session, Level())


@system.command("delete", cls=Command, examples=["headgate system delete"])
@expected_option
@change_options
def delete(session: Session, expected_version: int | None) -> None:
    """Delete the limits of everyone everywhere. Where there are no others, an acquire is an error from then on."""
    remove(session, Level(), expected_version)
