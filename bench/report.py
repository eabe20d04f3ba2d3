"""The result for people: on the terminal, and as Markdown for the docs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from . import dynamodb_scenes as dynamodb
from . import http_scenes as http
from . import operating
from . import prefetch_scenes as prefetch
from .must import goals
from .readme import summary
from .run import Result

POSTGRES = {
    "one task": "one limit, one task (async)",
    "one thread": "one limit, one thread",
    "64 tasks, a key each": "64 tasks in one process, a key each",
    "64 tasks, one key": "64 tasks in one process, one key",
    "16 threads, a key each": "16 threads in one process, a key each",
    "16 threads, one key": "16 threads in one process, one key",
}
TITLES = {
    "memory": "In memory, one limit, one thread",
    "async": "In memory, one limit, one task (async)",
    "sqlite": "In an SQLite file, one limit, one process",
    "threads": "In an SQLite file, many callers in one process",
    "redis, one task": "On Redis, one limit, one task (async)",
    "redis, one thread": "On Redis, one limit, one thread",
    "redis, 64 tasks, a key each": "On Redis, 64 tasks in one process, a key each",
    "redis, 64 tasks, one key": "On Redis, 64 tasks in one process, one key",
    "redis, 16 threads, a key each": "On Redis, 16 threads in one process, a key each",
    "redis, 16 threads, one key": "On Redis, 16 threads in one process, one key",
    **{f"postgres, {where}": f"On PostgreSQL, {words}" for where, words in POSTGRES.items()},
    dynamodb.LONE: "On DynamoDB, one limit, one task",
    dynamodb.CASCADE: "On DynamoDB, one task, an entity and its parent (cascade of two)",
    dynamodb.HOT: "On DynamoDB, 64 tasks in one process, one entity",
    dynamodb.SPREAD: "On DynamoDB, 64 tasks in one process, an entity each",
    prefetch.HOT: f"With prefetch={prefetch.PREFETCH:g}: on Redis, 64 tasks in one process, one key",
    prefetch.THREADS: f"With prefetch={prefetch.PREFETCH:g}: on Redis, 16 threads in one process, one key",
    prefetch.PROCESSES: f"With prefetch={prefetch.PREFETCH:g}: in an SQLite file, four processes, one key",
    http.ADDED: "A FastAPI application in memory, one request, no server",
    http.SERVED: f"A FastAPI application served by uvicorn, limits in Redis, {http.CONNECTIONS} connections",
    http.SERVICE: f"headgate serve, limits in memory, {http.SERVICE_CONNECTIONS} connections",
    http.WORKERS: f"headgate serve --workers, limits in Redis, {http.LOADS} x {http.WORKERS_CONNECTIONS} connections",
    **{f"apply, {place}": f"headgate apply: {place}" for place in ("sqlite", "redis")},
    operating.DASHBOARD: "The dashboard over an SQLite file with 100,000 entities",
    **{operating.USAGE.format(place=place): f"Usage and audit on and off: {place}" for place in operating.PLACES},
    "limits, memory": "In memory, limits per acquire",
    "limits, sqlite": "In an SQLite file, limits per acquire",
    "entities, memory": "In memory, a random one of many entities",
    "entities, sqlite": "In an SQLite file, a random one of many entities",
}
SIZES = {
    "memory": "Memory of an idle bucket",
    "disk": "Disk space of an idle bucket",
    "redis": "Redis memory (used_memory) of an idle bucket",
    "postgres": "PostgreSQL: the whole table of buckets",
}
COSTS = {
    "dynamodb": "What an acquire costs on DynamoDB, on average",
    "prefetch": "What an acquire costs with and without prefetch, on average",
}
TIME_COLUMNS = ("", "µs per decision", "decisions/s", "ratio", "")
SIZE_COLUMNS = ("", "bytes", "")
COST_COLUMNS = ("", "requests", "WCU", "RCU", "at once", "")
START, END = "<!-- results: start -->", "<!-- results: end -->"

Cells = tuple[str, ...]


def _time_cells(row: dict[str, Any]) -> Cells:
    return (row["name"], f"{row['best_us']:,.2f}", f"{row['per_second']:,}", f"{row['ratio']:.2f}x", row["note"])


def _size_cells(row: dict[str, Any]) -> Cells:
    return (row["name"], f"{row['bytes_each']:,.0f}", row["note"])


def _cost_cells(row: dict[str, Any]) -> Cells:
    averages = (f"{row[column]:.2f}" for column in ("requests", "write_units", "read_units"))
    library, scene = row["name"].removesuffix(" acquire"), row["scene"].split(", ", 1)[1]
    return (f"{library}, {scene}", *averages, str(row["at_once"]), f"of {row['hits']}")


def _tables(result: Result) -> Iterator[tuple[str, Cells, list[Cells]]]:
    for section, rows in result["times"].items():
        yield TITLES[section], TIME_COLUMNS, [_time_cells(row) for row in rows]
    for section, rows in result["sizes"].items():
        yield SIZES[section], SIZE_COLUMNS, [_size_cells(row) for row in rows]
    for section, rows in result.get("costs", {}).items():
        yield COSTS[section], COST_COLUMNS, [_cost_cells(row) for row in rows]


def _about(result: Result) -> str:
    machine, rounds = result["machine"], result["rounds"]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    server, turns = "", f"{rounds['memory']} turns in memory, {rounds['sqlite']} in a file"
    if "redis" in machine:
        server, turns = f"Redis {machine['redis']}, ", f"{turns}, {rounds['redis']} on Redis"
    if "ministack" in machine:
        server, turns = f"{server}ministack {machine['ministack']}, ", f"{turns}, {rounds['dynamodb']} on DynamoDB"
    return (
        f"{result['date']}, {machine['python']}, SQLite {machine['sqlite']}, {server}{machine['system']} "
        f"{machine['architecture']}, {machine['cpus']} CPUs, best of {turns}"
        f"{', quick' if result['quick'] else ''}. {versions}."
    )


def show(result: Result, console: Console) -> None:
    for title, columns, rows in _tables(result):
        table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for index, column in enumerate(columns):
            numeric, last = 0 < index < len(columns) - 1, index == len(columns) - 1
            table.add_column(column, justify="right" if numeric else "left", header_style="dim", no_wrap=not last)
        for row in rows:
            table.add_row(*row, style="green" if row[0].startswith("headgate") else None)
        console.print(table)
        console.print()
    for goal in goals(result):
        mark = "[green]ok    [/]" if goal.reached else "[red]missed[/]"
        console.print(f"{mark} {goal}", highlight=False)
    console.print(f"\n[dim]{_about(result)}[/]", highlight=False)


def markdown(result: Result) -> str:
    parts = [_about(result)]
    for title, columns, rows in _tables(result):
        parts.append(f"### {title}\n\n{_markdown_table(columns, rows)}")
    reached = [("yes" if goal.reached else "**no**", str(goal)) for goal in goals(result)]
    parts.append(f"### Goals\n\n{_markdown_table(('reached', 'goal'), reached)}")
    return "\n\n".join(parts) + "\n"


def _markdown_table(columns: Sequence[str], rows: Sequence[Cells]) -> str:
    rule = ["---:" if 0 < index < len(columns) - 1 else "---" for index in range(len(columns))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (columns, rule, *rows))


def write_into(document: Path, result: Result) -> None:
    """Put the tables between the two marks of a document, or a summary if it is the README."""
    text = summary(result) if document.name == "README.md" else markdown(result)
    before, rest = document.read_text().split(START)
    _, after = rest.split(END)
    document.write_text(f"{before}{START}\n\n{text}\n{END}{after}")
