"""`headgate aws delete`."""

from __future__ import annotations

import sys

import click

from ...aws.stack import StackStatus
from ..command import CliCommand
from ..errors import REFUSED
from ..output import answer, answer_json, number, printable
from .place import Place, place_options
from .progress import goes_on, progress


@click.command(
    cls=CliCommand,
    short_help="Delete the stack with its table.",
    examples=["headgate aws delete", "headgate aws delete --name limits --yes --delete-archive"],
)
@click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal to ask on.")
@click.option("--delete-archive", is_flag=True, help="Delete the archive of audit events too, with all that is in it.")
@place_options
def delete(place: Place, yes: bool, delete_archive: bool) -> int | None:
    """Delete the stack with its table: all limits, entities, buckets and usage.

    It says what will be lost, and asks for the name of the stack. The archive of audit events stays, unless that is to
    go too. A table that is protected has to be freed first: `headgate aws update --no-deletion-protection`.
    """
    with place.stack() as stack:
        if not yes and not _confirmed(stack.status(), delete_archive):
            answer("nothing was deleted")
            return REFUSED
        with goes_on(place.name), progress(place.as_json) as on_event:
            done = stack.delete(delete_archive=delete_archive, on_event=on_event)
    if place.as_json:
        answer_json(done.as_dict())
        return None
    answer(f"deleted: {done.name}")
    if done.kept_bucket:
        answer(f"kept: the archive, bucket {done.kept_bucket}")
    return None


def _confirmed(found: StackStatus, delete_archive: bool) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on: give --yes to delete without being asked")
    for line in _losses(found, delete_archive):
        click.echo(printable(line), err=True)
    return bool(
        click.prompt("Type the name of the stack to delete it", default="", show_default=False, err=True) == found.name
    )


def _losses(found: StackStatus, delete_archive: bool) -> list[str]:
    lines = [f"This deletes the stack {found.name}."]
    if found.table is not None:
        of = f" of {len(found.table.namespaces)} namespaces" if len(found.table.namespaces) > 1 else ""
        lines.append(f"  lost: table {found.name} with about {number(found.table.items)} items{of}")
        if found.table.backups:
            lines.append("  left: DynamoDB keeps a last backup of the table for 35 days")
    bucket = found.outputs.get("ArchiveBucketName")
    if bucket:
        lines.append(f"  {'lost' if delete_archive else 'left'}: the archive, bucket {bucket}")
    return lines
