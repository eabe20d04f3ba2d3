"""`headgate apply` and `headgate export`: the limits of a namespace from a file, and to one."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ..core.errors import HeadgateError
from .command import CliCommand
from .errors import ALLOWED, REFUSED
from .options import CommandSession, change_options, confirmed, yes_option
from .output import answer, answer_json, number, printable

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
    short_help="Make the stored limits those of a file.",
    examples=[
        "headgate apply -f limits.yaml --plan",
        "headgate apply -f limits.yaml",
        "headgate apply -f limits.yaml --prune --yes",
        "headgate apply --schema > limits.schema.json",
    ],
)
@click.option("-f", "--file", metavar="FILE", required=True, help="A .yaml or .toml file of limits.")
@click.option("--plan", is_flag=True, help="Only show what would change: the exit code is 1 if anything would.")
@click.option("--prune", is_flag=True, help="Also remove whatever is stored and not in the file.")
@yes_option
@click.option(
    "--schema", is_flag=True, is_eager=True, expose_value=False, callback=_print_schema,
    help="Print the JSON schema of such files, for editors, and do nothing else.",
)  # fmt: skip
@change_options
def apply(session: CommandSession, file: str, plan: bool, prune: bool, yes: bool) -> int:
    """Make the stored limits, entities, plans and rules those of a file.

    What is not in the file stays, unless --prune is given. It shows what it changes, and before it removes anything it
    asks. A file with a mistake is refused as a whole. The exit code is 0 if there was nothing to do or it was done;
    with --plan it is 1 if there is something to do.
    """
    from ..declare import diff, read_limits_file

    declaration = read_limits_file(file, session.stored_id)
    with session.limiter() as limiter:
        found = diff(limiter, declaration, prune=prune)
        if plan or not found:
            _tell(session, found, done=0, shown=None)
            return REFUSED if found else ALLOWED
        removed = sum(difference.kind == "removed" for difference in found)
        if not session.as_json:
            _show(found, _SHOWN)
        if removed and not confirmed(f"Remove {number(removed)} of what is stored, for good?", yes):
            answer("nothing was changed")
            return REFUSED
        done = _apply(session, limiter, found)
    _tell(session, found, done=done, shown=0)
    return ALLOWED


def _apply(session: CommandSession, limiter: SyncRateLimiter, found: Diff) -> int:
    from ..declare import apply as apply_diff

    with _progress(session, len(found)) as progress:
        try:
            return apply_diff(limiter, found, progress=progress)
        except HeadgateError:
            click.echo(f"{number(progress.done)} of {number(len(found))} changes were made", err=True)
            raise


class _Progress:
    """How much is done."""

    def __init__(self, show: Callable[[int], object] | None = None) -> None:
        self.done = 0
        self._show = show

    def __call__(self, done: int, of: int) -> None:
        self.done = done
        if self._show:
            self._show(done)


@contextmanager
def _progress(session: CommandSession, total: int) -> Iterator[_Progress]:
    if session.as_json or total < _MANY or not sys.stderr.isatty():
        yield _Progress()
        return
    from rich.console import Console  # slow to import
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("applying", total=total)
        yield _Progress(lambda done: bar.update(task, completed=done))


def _tell(session: CommandSession, found: Diff, *, done: int, shown: int | None) -> None:
    if session.as_json:
        answer_json({"changes": [difference.as_dict() for difference in found], "applied": done})
        return
    _show(found, shown)
    counts = Counter(str(difference.kind) for difference in found)
    summary = ", ".join(f"{number(counts[kind])} {kind}" for kind in _COLORS if counts[kind])
    if not found:
        answer("nothing to do")
    else:
        answer(summary if done else f"would be: {summary}")


def _show(found: Diff, most: int | None) -> None:
    for difference in found[:most]:
        click.secho(printable(str(difference)), fg=_COLORS[difference.kind])
    if most and len(found) > most:
        answer(f"... and {number(len(found) - most)} more: --plan shows them all")


@click.command(
    cls=CliCommand,
    short_help="Write the stored limits as a file.",
    examples=["headgate export", "headgate export -o limits.yaml", "headgate export --format toml > limits.toml"],
)
@click.option("-o", "--output", metavar="FILE", help="Where to write it; without this, to standard output.")
@click.option("--format", type=click.Choice(["yaml", "toml"]), help="If not as FILE ends, or YAML.")
@store_options
def export(session: CommandSession, output: str | None, format: Literal["yaml", "toml"] | None) -> None:
    """Write all limits, entities, plans and rules of the namespace as a file that `headgate apply` reads.

    Applying it changes nothing. It has no buckets and no usage. With hashed ids it has the hashes.
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
