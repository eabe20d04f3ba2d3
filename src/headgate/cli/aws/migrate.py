"""`headgate aws migrate`."""

from __future__ import annotations

from datetime import datetime, timezone

import click

from ...aws.stack import migrate_table
from ...stores.dynamodb.migrations import MigrationReport
from ..command import CliCommand
from ..errors import REFUSED
from ..options import namespace_option
from ..output import TextTable, answer, answer_json, number
from .target import StackTarget, confirmed, target_options


@click.command(
    cls=CliCommand,
    short_help="Copy a zae-limiter table into a headgate table.",
    examples=[
        "headgate aws migrate --name zae-limiter --dry-run",
        "headgate aws migrate --name zae-limiter --to-table limits",
        "headgate aws migrate --name zae-limiter --in-place",
    ],
)
@click.option("--to-table", metavar="NAME", help="The table to copy into. Default: the name and -headgate.")
@click.option("--in-place", is_flag=True, help="Change the table itself instead, after asking.")
@click.option("--yes", is_flag=True, help="Do not ask. Required for --in-place without a terminal.")
@click.option(
    "--cascade/--no-cascade",
    default=None,
    help="Whether entities cascade to their parents, where zae-limiter (before 0.6) does not store it.",
)
@click.option("--force", is_flag=True, help="Leave out what headgate has no equivalent of.")
@click.option("--dry-run", is_flag=True, help="Write nothing, and show what would be done.")
@namespace_option
@target_options
def migrate(
    target: StackTarget,
    namespace: str,
    to_table: str | None,
    in_place: bool,
    yes: bool,
    cascade: bool | None,
    force: bool,
    dry_run: bool,
) -> int | None:
    """Copy a zae-limiter table, of any release from 0.1 to 0.17, into a new headgate table.

    The whole table is read first. If something cannot be migrated, the command says what, and writes nothing. The table
    itself is only read, and its clients keep working, unless you pass --in-place: then stop them first. Items from
    before release 0.10 have no namespace, and go to --namespace. If it is interrupted, run it again: it continues where
    it stopped.
    """
    if in_place and not (yes or dry_run or confirmed(target.name, "table", lambda: _losses(target.name))):
        answer("nothing was changed")
        return REFUSED
    report = migrate_table(
        target.name,
        to_table,
        in_place=in_place,
        namespace=namespace,
        cascade=cascade,
        force=force,
        dry_run=dry_run,
        region=target.region,
        profile=target.profile,
        endpoint_url=target.endpoint_url,
    )
    if target.as_json:
        answer_json(None if report is None else report.as_dict())
    elif report is None:
        answer(f"{target.name}: the table is empty, or already headgate's: there is nothing to do")
    else:
        _tell(report, "would be" if dry_run else "was")
    return None


def _losses(name: str) -> list[str]:
    return [
        f"This changes table {name}: zae-limiter cannot use it afterwards, and its old items are removed.",
        "  Without --in-place, it is copied into a new table and stays as it is.",
    ]


def _tell(report: MigrationReport, verb: str) -> None:
    if report.finished_at_ms:
        at = datetime.fromtimestamp(report.finished_at_ms / 1000, timezone.utc).isoformat(timespec="seconds")
        answer(f"{report.target} was filled from {report.source} at {at}: delete it to migrate again")
        return
    where = "in place" if report.target == report.source else f"into {report.target}"
    answer(f"{report.source} ({report.found}) {verb} migrated {where}")
    rows = [[kind, number(count)] for kind, count in sorted(report.counts.items())]
    answer(TextTable(["items", ">count"], rows))
    answer(f"namespaces: {', '.join(report.namespaces)}")
    for note in report.notes:
        answer(f"note: {note}")
    for problem in report.problems:
        answer(f"left out, or different: {problem}")
