"""`headgate system`: the limits of everyone everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import click

from ..limiter import OnUnavailable
from ..limiter.config.levels import LimitLevel
from .command import Command, Group
from .level import guarded_options, inherit_option, remove, show, specs_argument, store
from .options import Session, change_options, store_options


@click.group(cls=Group)
def system() -> None:
    """Limits of everyone everywhere: they hold wherever no other level has their names.

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
@inherit_option
@guarded_options
@change_options
def set_(
    session: Session,
    specs: Sequence[str],
    on_unavailable: str | None,
    inherit: bool,
    expected_version: int | None,
    yes: bool,
) -> int:
    """Store the limits of everyone everywhere. They replace all that were stored, and the policy.

    NAME=SPEC is spelled as for `headgate limits set`. With --no-inherit the limits that programs give their limiters do
    not hold.
    """
    return store(
        session, LimitLevel(), specs, inherit=inherit, expected=expected_version, yes=yes, policy=on_unavailable
    )


@system.command("get", cls=Command, examples=["headgate system get"])
@store_options
def get(session: Session) -> None:
    """Show the limits of everyone everywhere."""
    show(session, LimitLevel())


@system.command("delete", cls=Command, examples=["headgate system delete"])
@guarded_options
@change_options
def delete(session: Session, expected_version: int | None, yes: bool) -> int:
    """Delete the limits of everyone everywhere. Where there are no others, an acquire is an error from then on."""
    return remove(session, LimitLevel(), expected=expected_version, yes=yes)
