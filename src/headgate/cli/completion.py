"""`headgate completion`: shell completion of commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .command import CliCommand
from .options import json_option
from .output import answer_json

SHELLS = ("bash", "zsh", "fish")


@click.command(
    cls=CliCommand,
    short_help="Print a completion script for your shell.",
    examples=[
        "headgate completion bash > ~/.local/share/bash-completion/completions/headgate",
        'headgate completion zsh > "${fpath[1]}/_headgate"',
        "headgate completion fish > ~/.config/fish/completions/headgate.fish",
    ],
)
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
def completion(shell: str, as_json: bool) -> None:
    """Print the completion script for SHELL: bash, zsh or fish.

    It completes commands and options, but not names in the store, so that completion never calls the store.
    """
    from .app import app

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(app, {}, "headgate", "_HEADGATE_COMPLETE").source()
    if as_json:
        answer_json({"shell": shell, "script": script})
    else:
        click.echo(script)
