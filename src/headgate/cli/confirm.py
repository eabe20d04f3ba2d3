"""Asking before something is gone."""

from __future__ import annotations

import sys

import click

from .output import printable

yes_option = click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal to ask on.")


def confirmed(question: str, yes: bool, why: str = "") -> bool:
    """`yes`: it is confirmed already. `why`: what there is to be asked about, for those who cannot be."""
    if yes:
        return True
    if not sys.stdin.isatty():
        reason = f"{why}; " if why else ""
        raise click.UsageError(f"{reason}there is no terminal to ask on: give --yes to do it without being asked")
    return click.confirm(printable(question), err=True)


def confirmed_name(name: str, question: str, given: str | None) -> str:
    """The name as it was given or is typed now; whoever asked holds it against the real one."""
    if given is not None:
        return given
    if not sys.stdin.isatty():
        raise click.UsageError(f"there is no terminal to ask on: give --confirm {name} to do it without being asked")
    typed: str = click.prompt(
        printable(f"{question}\nType its name to confirm"), default="", show_default=False, err=True
    )
    return typed
