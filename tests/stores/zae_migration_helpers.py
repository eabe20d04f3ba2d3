"""Tables as releases of zae-limiter have made them (zae_tables/), put into an engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dynamodb_tables import Driven, a_table

from headgate.plan import Plan
from headgate.stores.dynamodb.exchange import Exchange
from headgate.stores.dynamodb.migrations import MigrationReport, Migrator
from headgate.stores.dynamodb.table import STREAM, TABLE
from local_servers.dynamodb import Engine

FOLDER = Path(__file__).parent / "zae_tables"
NEWER = "0.17.0-newer"
RELEASES = sorted(path.stem for path in FOLDER.glob("*.json") if path.stem != NEWER)
BEFORE_CASCADE = ("0.3.0", "0.5.0")  # whose entities do not say it


class Made:
    """A table as it was made: its items, and what the release said of them."""

    def __init__(self, release: str) -> None:
        made = json.loads((FOLDER / f"{release}.json").read_text())
        self.release = release
        self.items: list[dict[str, Any]] = made["items"]
        self.now_ms: int = made["made_at_ms"]
        self.answers: dict[str, Any] = {name or "default": answers for name, answers in made["answers"].items()}
        self.cascade = True if release in BEFORE_CASCADE else None


def fill(driven: Driven, items: list[dict[str, Any]]) -> None:
    for start in range(0, len(items), 25):
        requests = [{"PutRequest": {"Item": item}} for item in items[start : start + 25]]
        undone = driven.client.batch_write_item(RequestItems={driven.table: requests})
        assert not undone.get("UnprocessedItems")


@contextmanager
def source_table(engine: Engine, items: list[dict[str, Any]]) -> Iterator[Driven]:
    """With indexes as zae-limiter makes them."""
    with a_table(engine, made=False) as driven:
        indexes = [index | {"Projection": {"ProjectionType": "ALL"}} for index in TABLE["GlobalSecondaryIndexes"][:2]]
        indexes += TABLE["GlobalSecondaryIndexes"][2:]
        driven.client.create_table(
            TableName=driven.table, **{**TABLE, "GlobalSecondaryIndexes": indexes}, StreamSpecification=STREAM
        )
        fill(driven, items)
        yield driven


@contextmanager
def both_tables(engine: Engine, items: list[dict[str, Any]]) -> Iterator[tuple[Driven, Driven]]:
    """The source, and the name of a table to copy into."""
    with source_table(engine, items) as source, a_table(engine, made=False) as target:
        yield source, target


def migrator(source: Driven, target: Driven, now_ms: int, page_size: int = 100) -> Migrator:
    return Migrator(source.deliver, target.deliver, lambda: now_ms, page_size)


def migrate(source: Driven, target: Driven, made: Made, **options: Any) -> MigrationReport | None:
    page_size, later_ms = options.pop("page_size", 100), options.pop("later_ms", 0)
    plan = migrator(source, target, made.now_ms + later_ms, page_size).run_plan(cascade=made.cascade, **options)
    return target.run(plan)


def exists(driven: Driven) -> bool:
    return driven.table in driven.client.list_tables()["TableNames"]


READS = {"BatchGetItem", "DescribeTable", "DescribeTimeToLive", "Query", "Scan"}


def run_until(driven: Driven, plan: Plan[Any], writes: int) -> bool:
    """Run a plan, and let it die after so many writes: if odd, with the last ones first of what goes out at once.

    Whether it came to its end.
    """
    left = writes
    answer: Any = None
    try:
        while True:
            call = plan.send(answer)
            if isinstance(call, Exchange) and call.sends[0].operation not in READS:
                if len(call.sends) > left:
                    for send in (call.sends[::-1] if writes % 2 else call.sends)[:left]:
                        driven.reply(send)
                    return False
                left -= len(call.sends)
            answer = driven.perform(call)
    except StopIteration:
        return True


def without_chance(items: Mapping[tuple[str, str], Any], made: Made) -> dict[tuple[str, str], Any]:
    """What was made, without ids that are by chance, and what says when and by whom."""
    names = {
        item["namespace_id"]["S"]: f"<{item['namespace']['S']}>"
        for item in items.values()
        if "namespace" in item and "namespace_id" in item
    }
    text = json.dumps(list(items.values()))
    for ns, name in names.items():
        text = text.replace(ns, name)
    found = {(item["PK"]["S"], item["SK"]["S"]): item for item in json.loads(text)}
    for item in found.values():
        for attribute in ("ttl", "created_at_ms"):
            item.pop(attribute, None)
    return {key: item for key, item in found.items() if not key[1].startswith("#MIGRATION#")}
