"""`headgate aws aggregate`: the aggregator as a process."""

from __future__ import annotations

import sys

import click

from ...aws.aggregator import AggregatorProgress, Counts, follow
from ...aws.aggregator.windows import DEFAULT_RETENTION_DAYS
from ..command import CliCommand
from ..output import answer, answer_json, duration, number
from .target import StackTarget, target_options


@click.command(
    cls=CliCommand,
    short_help="Run the aggregator here instead of in a function.",
    examples=["headgate aws aggregate", "headgate aws aggregate --once --json"],
)
@click.option("--once", is_flag=True, help="Process the records that are in the stream now, then exit.")
@click.option("--archive-bucket", metavar="BUCKET", help="The S3 bucket for audit events that expire.")
@click.option(
    "--usage-retention-days",
    metavar="N",
    type=int,
    default=DEFAULT_RETENTION_DAYS,
    show_default=True,
    help="How long usage by the hour is kept.",
)
@click.option("--max-shards", metavar="N", type=int, help="The most items that a hot bucket is split over.")
@target_options
def aggregate(
    target: StackTarget, once: bool, archive_bucket: str | None, usage_retention_days: int, max_shards: int | None
) -> None:
    """Run the aggregator here, for a table whose stack has no functions, or that has no stack.

    It reads the stream of the table, counts usage, splits hot buckets and archives audit events that expire. It runs
    until SIGTERM or Ctrl-C, and continues from its last position when it is started again. Running several does no
    harm: every record is counted once.
    """
    with target.stack() as stack:
        url = stack.url
    counts = follow(
        url,
        archive_bucket=archive_bucket,
        retention_days=usage_retention_days,
        max_shards=max_shards,
        once=once,
        report=_Shown(target.as_json),
    )
    if target.as_json:
        answer_json(counts.as_dict())
    else:
        answer(_said(counts))


class _Shown:
    """One line on the terminal that is updated; nothing without a terminal."""

    def __init__(self, as_json: bool) -> None:
        self._quiet = as_json or not sys.stderr.isatty()

    def __call__(self, progress: AggregatorProgress) -> None:
        if not self._quiet:
            late = f", {duration(progress.behind_seconds)} behind" if progress.behind_seconds >= 1 else ""
            click.echo(f"\r\x1b[K{_said(progress.counts)}, {progress.shards} shards{late} ", nl=False, err=True)


def _said(counts: Counts) -> str:
    more = {"archived": counts.archived, "buckets split": counts.splits, "skipped": counts.skipped}
    parts = [f"{number(count)} {name}" for name, count in more.items() if count]
    return ", ".join([f"{number(counts.records)} records, {number(counts.counted)} counted", *parts])
