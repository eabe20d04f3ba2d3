"""`headgate apply` and `headgate export`: the limits of a namespace from a file, and to one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from ..core.errors import HeadgateError
from .command import CliCommand
from .errors import ALLOWED, REFUSED
from .options import CommandSession, change_options, confirmed, yes_option
from .output import answer, answer_json, number, printable
from .progress import progress_bar

if TYPE_CHECKING:
    from ..declare import Diff
    from ..limiter import SyncRateLimiter

from pathlib import Path
from typing import Literal

from ..core.errors import ValidationError
from .options import store_options

_SHOWN = 50
_MANY = 500
_COLORS = {"created": "green", "changed": "yellow", "removed": "red"}


def _print_schema(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from ..declare import limits_schema

        click.echo(limits_schema(), nl=False)
        ctx.exit()


@click.command(
    cls=CliCommand,
    short_help="Store the limits of a file.",
    examples=[
        "headgate apply -f limits.yaml --plan",
        "headgate apply -f limits.yaml",
        "headgate apply -f limits.yaml --prune --yes",
        "headgate apply --schema > limits.schema.json",
    ],
)
@click.option("-f", "--file", metavar="FILE", required=True, help="A .yaml or .toml file of limits.")
@click.option(
    "--plan", "preview", is_flag=True, help="Only show what would change. The exit code is 1 if anything would."
)
@click.option("--prune", is_flag=True, help="Also remove what is stored but not in the file.")
@yes_option
@click.option(
    "--schema", is_flag=True, is_eager=True, expose_value=False, callback=_print_schema,
    help="Print the JSON schema of such files, for editors, and exit.",
)  # fmt: skip
@change_options
def apply(session: CommandSession, file: str, preview: bool, prune: bool, yes: bool) -> int:
    """Store the limits, entities, plans and rules of a file.

    What is not in the file stays, unless --prune is given. The command shows its changes, and asks for confirmation
    before it removes anything. A file with a mistake is rejected as a whole. The exit code is 0 if nothing needed to
    change or all changes were made; with --plan it is 1 if there are changes.
    """
    from ..declare import diff, read_limits_file

    declaration = read_limits_file(file, session.stored_id)
    with session.limiter() as limiter:
        found = diff(limiter, declaration, prune=prune)
        if preview or not found:
            _tell(session, found, done=0, shown=None)
            return REFUSED if found else ALLOWED
        removed = sum(difference.kind == "removed" for difference in found)
        if not session.as_json:
            _show(found, _SHOWN)
        if removed and not confirmed(f"Remove {number(removed)} stored items permanently?", yes):
            answer("nothing was changed")
            return REFUSED
        done = _apply(session, limiter, found)
    _tell(session, found, done=done, shown=0)
    return ALLOWED


def _apply(session: CommandSession, limiter: SyncRateLimiter, found: Diff) -> int:
    from ..declare import apply as apply_diff

    done = 0
    with progress_bar("applying", quiet=session.as_json or len(found) < _MANY) as show:

        def progress(count: int, total: int) -> None:
            nonlocal done
            done = count
            show(count / total, f"{number(count)} of {number(total)}")

        try:
            return apply_diff(limiter, found, progress=progress)
        except HeadgateError:
            click.echo(f"{number(done)} of {number(len(found))} changes were made", err=True)
            raise


def _tell(session: CommandSession, found: Diff, *, done: int, shown: int | None) -> None:
    if session.as_json:
        answer_json({"changes": [difference.as_dict() for difference in found], "applied": done})
        return
    _show(found, shown)
    counts = Counter(str(difference.kind) for difference in found)
    summary = ", ".join(f"{number(counts[kind])} {kind}" for kind in _COLORS if counts[kind])
    if not found:
        answer("no changes")
    else:
        answer(summary if done else f"would be: {summary}")


def _show(found: Diff, most: int | None) -> None:
    for difference in found[:most]:
        click.secho(printable(str(difference)), fg=_COLORS[difference.kind])
    if most and len(found) > most:
        answer(f"... and {number(len(found) - most)} more: --plan shows all of them")


@click.command(
    cls=CliCommand,
    short_help="Write the stored limits to a file.",
    examples=["headgate export", "headgate export -o limits.yaml", "headgate export --format toml > limits.toml"],
)
@click.option("-o", "--output", metavar="FILE", help="The file to write. Default: standard output.")
@click.option(
    "--format", type=click.Choice(["yaml", "toml"]), help="The format. Default: that of the name of FILE, or YAML."
)
@store_options
def export(session: CommandSession, output: str | None, format: Literal["yaml", "toml"] | None) -> None:
    """Write all limits, entities, plans and rules of the namespace to a file that `headgate apply` reads.

    Applying the file changes nothing. It contains no buckets and no usage. Hashed ids are exported as hashes.
    """
    from ..declare import export as export_limits
    from ..declare import write_limits

    with session.limiter() as limiter:
        declaration = export_limits(limiter)
    if session.as_json:
        answer_json(declaration.as_dict())
        return
    text = write_limits(declaration, format or ("toml" if (output or "").endswith(".toml") else "yaml"))
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValidationError(f"{output!r} cannot be written: {error.strerror}") from None
