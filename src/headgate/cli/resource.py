"""`headgate resource`: the limits of everyone on a resource."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from ..limiter import SyncRateLimiter
from ..limiter.config.levels import LimitLevel
from .command import Command, Group
from .level import guarded_options, inherit_option, remove, show, show_all, specs_argument, store
from .options import Session, change_options, store_options
from .pages import all_pages


@click.group(cls=Group)
def resource() -> None:
    """Limits of everyone on a resource.

    They hold for each entity by itself, but for those names of which it has a limit of its own.
    """


@resource.command(
    "set",
    cls=Command,
    short_help="Store limits of everyone on a resource.",
    examples=["headgate resource set llm rpm=60/minute", 'headgate resource set llm "tpm=10000/minute burst 15000"'],
)
@click.argument("resource")
@specs_argument
@inherit_option
@guarded_options
@change_options
def set_(
    session: Session, resource: str, specs: Sequence[str], inherit: bool, expected_version: int | None, yes: bool
) -> int:
    """Store the limits of everyone on RESOURCE. They replace all that were stored for it.

    NAME=SPEC is spelled as for `headgate limits set`.
    """
    return store(session, LimitLevel(resource=resource), specs, inherit=inherit, expected=expected_version, yes=yes)


@resource.command("get", cls=Command, examples=["headgate resource get llm"])
@click.argument("resource")
@store_options
def get(session: Session, resource: str) -> None:
    """Show the limits of everyone on RESOURCE."""
    show(session, LimitLevel(resource=resource))


@resource.command("delete", cls=Command, examples=["headgate resource delete llm"])
@click.argument("resource")
@guarded_options
@change_options
def delete(session: Session, resource: str, expected_version: int | None, yes: bool) -> int:
    """Delete the limits of everyone on RESOURCE. Those of the system hold from then on."""
    return remove(session, LimitLevel(resource=resource), expected=expected_version, yes=yes)


@resource.command("list", cls=Command, examples=["headgate resource list"])
@store_options
def list_(session: Session) -> None:
    """List the resources that have limits for everyone."""

    def levels(limiter: SyncRateLimiter) -> Iterator[LimitLevel]:
        for name in all_pages(lambda cursor: limiter.list_resources_with_defaults(cursor=cursor)):
            yield LimitLevel(resource=name)

    show_all(session, levels, "no resource has limits for everyone")
