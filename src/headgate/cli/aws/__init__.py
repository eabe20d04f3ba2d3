"""`headgate aws`. What it does is imported when it is asked for: the other commands do without."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import click

from ..command import CliGroup


class LazyGroup(CliGroup):
    @property
    def commands(self) -> MutableMapping[str, click.Command]:
        if not self._loaded:
            from .commands import COMMANDS

            self._loaded.update(COMMANDS)
        return self._loaded

    @commands.setter
    def commands(self, given: MutableMapping[str, click.Command]) -> None:
        self._loaded: dict[str, Any] = dict(given)


@click.group(cls=LazyGroup)
def aws() -> None:
    """Run headgate on AWS: a stack with the table and what works behind it.

    Try it without an account: `headgate aws sandbox up`.
    """
