"""Which stack, and where: the options of nearly every command here, and asking before a loss."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from ...aws.stack import Stack
from ..options import json_option
from ..output import printable

_OPTIONS = (
    click.option(
        "--name",
        metavar="NAME",
        default="headgate",
        show_default=True,
        help="The name of the stack and its table.",
    ),
    click.option("--region", metavar="REGION", help="Like eu-west-1. Default: from your AWS configuration."),
    click.option("--profile", metavar="PROFILE", help="The profile of your AWS configuration."),
    click.option(
        "--endpoint-url",
        metavar="URL",
        help="The address of a local engine that emulates AWS.",
    ),
)


@dataclass(frozen=True)
class StackTarget:
    """A stack, which may not exist, and how the command answers."""

    name: str
    region: str | None
    profile: str | None
    endpoint_url: str | None
    as_json: bool

    def stack(self) -> Stack:
        return Stack(self.name, region=self.region, profile=self.profile, endpoint_url=self.endpoint_url)


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options, and pass them on as one StackTarget."""

    @wraps(function)
    def command(
        *args: Any,
        name: str,
        region: str | None,
        profile: str | None,
        endpoint_url: str | None,
        as_json: bool,
        **kwargs: Any,
    ) -> Any:
        return function(StackTarget(name, region, profile, endpoint_url, as_json), *args, **kwargs)

    for option in reversed((*_OPTIONS, json_option)):
        command = option(command)
    return command


def confirmed(name: str, kind: str, losses: Callable[[], Sequence[str]]) -> bool:
    """Show what will be lost, and ask for the name of the stack or table."""
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on: give --yes to go on without being asked")
    for line in losses():
        click.echo(printable(line), err=True)
    return bool(click.prompt(f"Type the name of the {kind} to go on", default="", show_default=False, err=True) == name)
