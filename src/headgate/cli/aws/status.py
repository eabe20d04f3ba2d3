"""`headgate aws status`."""

from __future__ import annotations

import click

from ...aws.stack import StackStatus
from ...aws.stack.status import FunctionStatus, TableStatus
from ..command import CliCommand
from ..errors import REFUSED
from ..output import TextTable, answer, answer_json, number
from .target import StackTarget, target_options

_NAMESPACES = 5


@click.command(
    cls=CliCommand,
    short_help="Show the status of the stack.",
    examples=["headgate aws status", "headgate aws status --name limits --json"],
)
@target_options
def status(target: StackTarget) -> int | None:
    """Show the status of the stack: its table, its functions and their last errors, and the alarms.

    The exit code is 1 if something is wrong.
    """
    with target.stack() as stack:
        found = stack.status()
    if target.as_json:
        answer_json(found.as_dict())
    else:
        answer(_headline(found), TextTable(["", ""], [row for row in _rows(found) if row[1]]))
        for problem in found.problems:
            answer(f"problem: {problem}")
    return REFUSED if found.problems else None


def _headline(found: StackStatus) -> str:
    return f"{found.name}: {'something is wrong' if found.problems else 'all is well'}"


def _rows(found: StackStatus) -> list[list[str]]:
    version = f", made by headgate {found.version}" if found.version else ""
    rows = [["stack", f"{found.status}{version}"]]
    if found.table is not None:
        rows += _table_rows(found.table)
    for function in found.functions:
        rows.append([function.name, _function(function)])
        rows.append(["last error", function.last_error])
    if found.dead_letters is not None:
        rows.append(["dead letters", number(found.dead_letters)])
    if found.alarms:
        rows.append(["alarms", _alarms(found)])
    rows.append(["archive", found.outputs.get("ArchiveBucketName", "")])
    return rows


def _table_rows(table: TableStatus) -> list[list[str]]:
    names = [*table.namespaces[:_NAMESPACES], *(["..."] if len(table.namespaces) > _NAMESPACES else [])]
    switches = {
        "expiry": table.expiry,
        "stream": table.stream,
        "backups": table.backups,
        "deletion protection": table.protected,
    }
    return [
        ["table", f"{table.status}, about {number(table.items)} items, {_size(table.size_bytes)}"],
        ["settings", ", ".join(f"{name} {'on' if on else 'off'}" for name, on in switches.items())],
        ["layout", "" if table.layout is None else str(table.layout)],
        ["namespaces", ", ".join(names)],
    ]


def _function(function: FunctionStatus) -> str:
    counts = f"{number(function.invocations)} runs and {number(function.errors)} errors in 24 h"
    return f"{function.state.lower()}, {function.runs}, {counts}"


def _alarms(found: StackStatus) -> str:
    on = [alarm.name for alarm in found.alarms if alarm.state == "ALARM"]
    return f"{', '.join(on)} of {len(found.alarms)}" if on else f"none of {len(found.alarms)} is on"


def _size(count: int) -> str:
    units = ("bytes", "KB", "MB", "GB", "TB")
    power = min((len(str(count)) - 1) // 3, len(units) - 1)
    return f"{count / 1000**power:,.0f} {units[power]}"
