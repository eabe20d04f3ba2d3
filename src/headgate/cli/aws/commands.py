"""The commands of the group, in the order they are worth reading."""

from __future__ import annotations

import click

from .aggregate import aggregate
from .delete import delete
from .deploy import deploy, update
from .migrate import migrate
from .sandbox import sandbox
from .status import status
from .template import export_lambda, template

COMMANDS: dict[str, click.Command] = {
    str(command.name): command
    for command in (deploy, status, update, delete, template, export_lambda, aggregate, migrate, sandbox)
}
