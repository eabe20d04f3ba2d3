"""`headgate aws`. Its commands are imported on first use, because the other commands do not need them."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import click

from ..command import CliGroup


class LazyGroup(CliGroup):
    @property
    def commands(self) -> MutableMapping[str, click.Command]:
        if not self._loaded:
            self._loaded.update({str(command.name): command for command in _commands()})
        return self._loaded

    @commands.setter
    def commands(self, given: MutableMapping[str, click.Command]) -> None:
        self._loaded: dict[str, Any] = dict(given)


def _commands() -> tuple[click.Command, ...]:
    """In the order in which they are worth reading."""
    from .aggregate import aggregate
    from .deploy import delete, deploy, export_lambda, template, update
    from .migrate import migrate
    from .sandbox import sandbox
    from .status import status

    return deploy, status, update, delete, template, export_lambda, aggregate, migrate, sandbox


@click.group(cls=LazyGroup)
def aws() -> None:
    """Run headgate on AWS: a stack with the table and the functions behind it.

    Try it without an account: `headgate aws sandbox up`.
    """
