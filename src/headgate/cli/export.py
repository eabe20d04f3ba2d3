"""`headgate export`: a namespace as the file that `headgate apply` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from ..core.errors import ValidationError
from .command import Command
from .options import Session, store_options
from .output import answer_json


@click.command(
    cls=Command,
    short_help="Write the stored limits as a file.",
    examples=["headgate export", "headgate export -o limits.yaml", "headgate export --format toml > limits.toml"],
)
@click.option("-o", "--output", metavar="FILE", help="Where to write it; without this, to standard output.")
@click.option("--format", type=click.Choice(["yaml", "toml"]), help="If not as FILE ends, or YAML.")
@store_options
def export(session: Session, output: str | None, format: Literal["yaml", "toml"] | None) -> None:
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
