"""`headgate alerts`: which limits were used up to a threshold."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ..limiter import Alert
from .command import CliCommand
from .options import CommandSession, store_options
from .output import TextTable, answer, answer_json, moment, number


@click.command(
    cls=CliCommand,
    short_help="Show which limits were used up to a threshold, newest first.",
    examples=["headgate alerts", "headgate alerts --limit 20 --json"],
)
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="Show at most this many alerts.",
)
@click.option("--cursor", metavar="CURSOR", help="Continue after an earlier page.")
@store_options
def alerts(session: CommandSession, limit: int, cursor: str | None) -> None:
    """Show which limits with alerts were used up to one of their thresholds in the last week. The newest come first.

    A limit has alerts if they were stored with it: 'usd=500/month resets UTC alert 80% 100%'. Times are in UTC. With
    --json the output is {"alerts": [...], "cursor": "..."}; the cursor is null on the last page.
    """
    with session.limiter() as limiter:
        page = limiter.list_alerts(limit=limit, cursor=cursor)
    if session.as_json:
        answer_json({"alerts": [alert.as_dict() for alert in page], "cursor": page.cursor})
        return
    answer(_table(page) if page else "no alerts")
    if page.cursor is not None:
        answer("", f"more alerts: --cursor {page.cursor}")


def _table(found: Sequence[Alert]) -> TextTable:
    return TextTable(
        ["at (UTC)", "entity", "resource", "limit", ">alert", ">used", "resets at"],
        [
            [
                moment(alert.at),
                alert.entity_id,
                alert.resource,
                alert.limit_name,
                f"{100 * alert.threshold:g}%",
                f"{number(alert.used)} / {number(alert.amount)}",
                moment(alert.resets_at),
            ]
            for alert in found
        ],
    )
