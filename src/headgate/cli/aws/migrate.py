"""`headgate aws migrate`."""

from __future__ import annotations

import click

from ..command import Command
from ..options import namespace_option
from ..output import Table, answer, answer_json, number
from .place import Place, place_options


@click.command(
    cls=Command,
    short_help="Bring a table to the layout of this headgate.",
    examples=["headgate aws migrate --dry-run", "headgate aws migrate --name limits"],
)
@click.option("--dry-run", is_flag=True, help="Only count what there is to do.")
@namespace_option
@place_options
def migrate(place: Place, namespace: str, dry_run: bool) -> None:
    """Bring the items of a table to the layout of this headgate.

    Stop everything that uses the table first. Items of the oldest layout are in no namespace, and go to --namespace. If
    it is interrupted, run it again: it goes on where it was.
    """
    with place.stack() as stack:
        reports = stack.migrate(namespace, dry_run=dry_run)
    if place.as_json:
        answer_json(
            [
                {"layout": each.number, "title": each.title, "counts": dict(each.counts), "left": each.left}
                for each in reports
            ]
        )
        return
    if not reports:
        answer(f"{place.name}: the table has the layout of this headgate, there is nothing to do")
    for each in reports:
        answer(f"{'would bring' if dry_run else 'brought'} {place.name} to layout {each.number}: {each.title}")
        answer(Table(["items", ">count"], [[kind, number(count)] for kind, count in sorted(each.counts.items())]))
        for left in each.left:
            answer(f"left as it is: {left}")
