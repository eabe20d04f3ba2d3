"""`headgate audit`: who changed what, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from ..limiter import AuditEvent
from ..limiter.config.levels import LimitLevel
from .command import CliCommand
from .options import CommandSession, store_options
from .output import answer, answer_json, moment, printable

_NOT_SHOWN = ("id", "created_at_ms", "deleted_at_ms")
_NO = "no"


@click.command(
    cls=CliCommand,
    short_help="Show who changed what, newest first.",
    examples=["headgate audit", "headgate audit --entity acme --limit 20", "headgate audit --namespaces --json"],
)
@click.option("--entity", "entity_id", metavar="ENTITY", help="Only changes of this entity.")
@click.option("--namespaces", is_flag=True, help="Changes of namespaces themselves, in the whole store.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="Show at most this many events.",
)
@click.option("--cursor", metavar="CURSOR", help="Continue after an earlier page.")
@store_options
def audit(session: CommandSession, entity_id: str | None, namespaces: bool, limit: int, cursor: str | None) -> None:
    """Show who changed entities and limits, reset or penalized buckets, and when. The newest come first.

    Events are kept for a year, unless `audit_days` of a limiter is different. Times are in UTC. With --json the output
    is {"events": [...], "cursor": "..."}; the cursor is null on the last page.
    """
    if namespaces and entity_id is not None:
        raise click.UsageError("--entity and --namespaces contradict each other: use one of them")
    entity_id = None if entity_id is None else session.stored_id(entity_id)
    with session.limiter() as limiter:
        if namespaces:
            page = limiter.get_namespace_events(limit=limit, cursor=cursor)
        else:
            page = limiter.get_audit_events(entity_id, limit=limit, cursor=cursor)
    if session.as_json:
        answer_json({"events": [event.as_dict() for event in page], "cursor": page.cursor})
        return
    _tell(page)
    if page.cursor is not None:
        answer("", f"more events: --cursor {page.cursor}")


def _tell(events: Sequence[AuditEvent]) -> None:
    if not events:
        answer("no events")
        return
    who, what = max(len(event.actor) for event in events), max(len(event.action) for event in events)
    for event in events:
        answer(f"{moment(event.at)}  {event.actor:<{who}}  {event.action:<{what}}  {_about(event)}".rstrip())
        for change in _changes(event):
            click.secho(printable(f"    {change}"), dim=True)


def _about(event: AuditEvent) -> str:
    if event.action.startswith("namespace."):
        return event.namespace
    if event.action.startswith("entity."):
        return event.entity_id or ""
    if event.action.startswith(("rules.", "plans.")):
        return ""
    return str(LimitLevel(event.entity_id, event.resource))


def _changes(event: AuditEvent) -> Iterator[str]:
    """A line for each value that changed; all values of something that was created or deleted."""
    old, new = dict(_flat(event.before)), dict(_flat(event.after))
    if event.before is None or event.after is None:
        yield from (f"{name}: {word}" for name, word in {**old, **new}.items() if word != _NO or name == "inherit")
        return
    for name in {**old, **new}:
        nothing = "yes" if name == "inherit" else "none"  # only False is stored
        before, after = old.get(name, nothing), new.get(name, nothing)
        if before != after:
            yield f"{name}: {before} -> {after}"


def _flat(value: Mapping[str, Any] | None, of: str = "") -> Iterator[tuple[str, str]]:
    """The values as words, by name; nested values by the names of both."""
    for name, inner in (value or {}).items():
        if isinstance(inner, dict):
            yield from _flat(inner, of if name in ("", "limits") else f"{of}{name} ")
        elif inner is not None and name not in _NOT_SHOWN:
            yield f"{of}{name}", _word(inner)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else _NO
    return f"{value:,g}" if isinstance(value, float) else str(value)
