"""Help, the reference and completion: every command is there, with everything it has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("click")

import click
from cli_helpers import DOCS, Cli, every_command

from headgate import __version__
from headgate.cli.app import SECTIONS
from headgate.cli.completion import SHELLS
from headgate.cli.reference import reference

_STACK = {"--json"}  # what is about a stack names that, and what is about neither needs no more than a way to answer
_STORE = {"--url", "--json"}
_NAMESPACE = {"--url", "--namespace", "--json"}
_OTHERS = {
    "headgate aws ": _STACK,
    "headgate token": _STACK,
    "headgate completion": _STACK,
    "headgate replay": _STACK,
    "headgate namespace ": _STORE,
    "headgate loadtest": _STORE,
}
_CHANGES = {"create", "update", "set", "delete", "register", "recover", "purge", "reset", "penalize", "apply"}


def test_help_without_arguments_and_the_version(cli: Cli, inside: Cli) -> None:
    assert "headgate demo" in cli(code=2).stderr
    assert "Store, show and delete the limits" in inside("limits", code=2).stderr
    assert inside("--version").stdout.strip().endswith(__version__)
    assert "HEADGATE_URL" in inside("check", "--help").stdout


def test_the_help_names_every_command_once(inside: Cli) -> None:
    shown = inside("--help").stdout
    names = [line.split()[0] for line in shown.splitlines() if line.startswith("  ") and line[2:3].islower()]
    assert names == [name for section in SECTIONS.values() for name in section]
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_a_command_is_imported_when_it_is_asked_for() -> None:
    script = """
import sys, headgate.cli.app
loaded = set(sys.modules)
heavy = {"rich", "multiprocessing", "boto3", "redis", "starlette", "headgate.service", "headgate.cli.limits"}
sys.exit(", ".join(heavy & loaded) or 0)
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("path", "command"), [pytest.param(*found, id=found[0]) for found in every_command()])
def test_every_command_is_complete_and_documented(path: str, command: click.Command) -> None:
    options = [option for option in command.params if isinstance(option, click.Option)]
    names = {option.opts[0] for option in options}
    common = next((some for start, some in _OTHERS.items() if path.startswith(start)), _NAMESPACE)
    assert common <= names
    if path.split()[-1] in _CHANGES and not path.startswith("headgate aws "):
        assert "--actor" in names
    assert all(option.help for option in options)
    with click.Context(command, info_name=path) as context:
        assert f"Examples:\n  {path}" in command.get_help(context)
    page = (DOCS / "cli.md").read_text()
    assert f"# {path}\n" in page
    section = page.split(f"# {path}\n")[1].split("\n## ")[0].split("\n### ")[0]
    for option in options:
        assert option.opts[0] in section


def test_the_reference_is_up_to_date() -> None:
    hint = "make it again: python -m headgate.cli.reference > docs/cli.md"
    assert (DOCS / "cli.md").read_text() == reference(), hint


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_for_a_shell(inside: Cli, shell: str) -> None:
    script = inside("completion", shell).stdout
    assert f"_HEADGATE_COMPLETE={shell}_complete" in script
    assert inside.json("completion", shell) == {"shell": shell, "script": script.removesuffix("\n")}


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["headgate", "namespace", "r"], ["register", "recover"]),
        (["headgate", "usage", "--window", ""], ["hour", "day", "month"]),
    ],
)
def test_bash_completes_commands_options_and_values(
    cli: Cli, tmp_path: Path, typed: list[str], offered: list[str]
) -> None:
    """In bash itself, with the script as it is printed."""
    command = tmp_path / "headgate"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headgate.cli "$@"\n')
    command.chmod(0o755)
    words = " ".join(f"'{word}'" for word in typed)
    ask = f"COMP_WORDS=({words}) COMP_CWORD={len(typed) - 1}; _headgate_completion headgate; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(
        ["bash", "-c", f'eval "$(headgate completion bash)"; {ask}'],
        env=cli.environment | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == offered, done
