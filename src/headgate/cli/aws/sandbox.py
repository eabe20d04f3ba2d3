"""`headgate aws sandbox`: the whole stack on this machine."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from ...aws.stack.sandbox import Sandbox, SandboxStatus
from ..command import CliCommand, CliGroup
from ..errors import REFUSED
from ..options import json_option
from ..output import TextTable, answer, answer_json
from .progress import progress


@click.group(cls=CliGroup)
def sandbox() -> None:
    """Run the whole stack on this machine, without an account.

    ministack emulates AWS on a loopback address, and the functions really run, on stream records and on their schedule.
    It comes with the extra `sandbox`: pip install 'headgate[sandbox]'. All data is lost when it ends.
    """


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def command(*args: Any, folder: str | None, **kwargs: Any) -> Any:
        return function(Sandbox(folder or _default_folder()), *args, **kwargs)

    folder = click.option(
        "--dir", "folder", metavar="FOLDER", help="The folder for its files. Default: in your state directory."
    )
    return folder(json_option(command))


def _default_folder() -> Path:
    import platformdirs

    return platformdirs.user_state_path("headgate", appauthor=False) / "sandbox"


@sandbox.command(
    cls=CliCommand,
    short_help="Start it and deploy the stack in it.",
    examples=["headgate aws sandbox up", 'eval "$(headgate aws sandbox up --export)"'],
)
@click.option(
    "--name", metavar="NAME", default="headgate", show_default=True, help="The name of the stack and its table."
)
@click.option("--port", metavar="PORT", type=click.IntRange(1, 65535), help="The port. Default: any free port.")
@click.option("--export", "exports", is_flag=True, help="Print only the lines that a shell needs to use it.")
@_options
def up(box: Sandbox, name: str, port: int | None, exports: bool, as_json: bool) -> None:
    """Start it in the background, deploy the stack, and show how to use it.

    If it is running, update its stack.
    """
    with progress(as_json or exports) as on_event:
        found = box.up(name, port=port, on_event=on_event)
    _tell(found, as_json, exports)


@sandbox.command(cls=CliCommand, short_help="Stop it.", examples=["headgate aws sandbox down"])
@_options
def down(box: Sandbox, as_json: bool) -> None:
    """Stop it and remove its files."""
    was_there = box.down()
    if as_json:
        answer_json({"folder": str(box.folder), "ended": was_there})
    else:
        answer("the sandbox was stopped, and its data is removed" if was_there else "no sandbox was running")


@sandbox.command(cls=CliCommand, short_help="Show whether it is running.", examples=["headgate aws sandbox status"])
@click.option("--export", "exports", is_flag=True, help="Print only the lines that a shell needs to use it.")
@_options
def status(box: Sandbox, exports: bool, as_json: bool) -> int | None:
    """Show whether it is running, and how to use it. The exit code is 1 if it is not running."""
    found = box.status()
    _tell(found, as_json, exports)
    return None if found.running else REFUSED


def _tell(found: SandboxStatus, as_json: bool, exports: bool) -> None:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in found.environment.items()]
    if as_json:
        answer_json(found.as_dict())
    elif exports:
        answer(*lines)
    elif found.running:
        answer(f"running: table {found.name} on port {found.port}")
        answer(TextTable(["", ""], [["url", found.url or ""], ["process", str(found.pid)], ["log", found.log]]))
        answer("to use it in this shell:", *(f"  {line}" for line in lines))
    else:
        answer(_WHY[found.state].format(log=found.log))


_WHY = {
    "stopped": "no sandbox is running: start one with `headgate aws sandbox up`",
    "died": "the sandbox has ended by itself; the log {log} may say why: start it again with `headgate aws sandbox up`",
    "hung": "the sandbox does not answer; the log {log} may say why: stop it with `headgate aws sandbox down`",
}
