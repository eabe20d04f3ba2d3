"""Which stack, and where: options of nearly every command here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from ...aws.stack import Stack
from ..options import json_option

_OPTIONS = (
    click.option(
        "--name",
        metavar="NAME",
        default="headgate",
        show_default=True,
        help="The stack, and its table.",
    ),
    click.option("--region", metavar="REGION", help="Like eu-west-1; without one, that of your AWS configuration."),
    click.option("--profile", metavar="PROFILE", help="The profile of your AWS configuration to use."),
    click.option(
        "--endpoint-url",
        metavar="URL",
        help="Where AWS is, if not in the clouds: the address of an engine that plays it.",
    ),
)


@dataclass(frozen=True)
class Place:
    """A stack that may or may not be there, and how the command answers."""

    name: str
    region: str | None
    profile: str | None
    endpoint_url: str | None
    as_json: bool

    def stack(self) -> Stack:
        return Stack(self.name, region=self.region, profile=self.profile, endpoint_url=self.endpoint_url)


def place_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options and pass them on as one Place."""

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
        return function(Place(name, region, profile, endpoint_url, as_json), *args, **kwargs)

    for option in reversed((*_OPTIONS, json_option)):
        command = option(command)
    return command
