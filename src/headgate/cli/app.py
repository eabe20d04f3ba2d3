"""The command `headgate`. The module of a command is imported only when that command is used."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click

from .. import __version__
from ..core.errors import HeadgateError
from .command import CliGroup
from .errors import INTERRUPTED, report

# In the order of the help; for each command, its module.
SECTIONS = {
    "Start": {"demo": "demo.command", "check": "check"},
    "Limits": {
        "limits": "limits",
        "resource": "limits",
        "system": "limits",
        "entity": "entity",
        "apply": "apply",
        "export": "apply",
        "replay": "replay",
    },
    "Observe and correct": {
        "buckets": "buckets",
        "usage": "usage",
        "alerts": "alerts",
        "audit": "audit",
        "reset": "buckets",
        "penalize": "buckets",
    },
    "Operate": {
        "setup": "store",
        "namespace": "namespace",
        "reconcile": "store",
        "doctor": "doctor.command",
        "loadtest": "loadtest.command",
    },
    "Serve": {"serve": "serve", "token": "serve", "ui": "serve", "aws": "aws"},
    "Shell": {"completion": "completion"},
}


_MODULES = {name: module for section in SECTIONS.values() for name, module in section.items()}


class RootGroup(CliGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        command: click.Command = getattr(import_module(f".{_MODULES[cmd_name]}", __package__), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, _MODULES))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                commands = [(name, self.get_command(ctx, name)) for name in names]
                room = formatter.width - width - 6
                formatter.write_dl(
                    [(f"{name:<{width}}", command.get_short_help_str(room)) for name, command in commands if command]
                )


@click.group(
    cls=RootGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="headgate")
def app() -> None:
    """Exact rate limits, shared by every process that uses the same store.

    Start with `headgate demo`. `headgate COMMAND --help` has examples.
    """


def run(arguments: Sequence[str]) -> int:
    """Run the command line, and return its exit code. A command returns its own, or None for 0."""
    try:
        return int(app.main(list(arguments), prog_name="headgate", standalone_mode=False) or 0)
    except (HeadgateError, click.ClickException) as error:
        return report(error, as_json="--json" in arguments)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
