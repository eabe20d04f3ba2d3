"""Running migrations: one page after the other, so that a run may be killed at any point and another one goes on.

A migration has an item of its own in the registry. It says how far it has come and who is at it, until when; whoever
has saved a page has it for a minute more. A page is done again if its run was killed before it could say so, therefore
a migration may write only what is not there yet, and delete only what it has written elsewhere. The table's version
changes in the same transaction as the end is noted; until then no client of the new layout uses the table.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from ....core.errors import ValidationError
from ....plan import Plan, Sleep
from .. import keys
from ..attributes import item_of, values_of
from ..deliver import Deliverer
from ..documents import ItemKey
from ..exchange import Failed, MoreTime, Send
from ..namespaces import Namespaces
from ..reads import key_of
from ..table import Table
from ..versions import VERSION_KEY, Versions, version_item

LEASE_MS = 60_000
PAGE = 100
_SHOWN = 20
_PAUSE = 0.05


@dataclass(frozen=True)
class Run:
    """What a migration works with. `ns`: the id of the namespace for what had none. `dry`: only count."""

    deliver: Deliverer
    ns: str
    now_ms: int
    page_size: int
    dry: bool


class PageDone(NamedTuple):
    """`after`: where the next page starts, None if this was the last one. `left`: keys of what could not be moved."""

    after: ItemKey | None
    counts: Mapping[str, int]
    left: Sequence[str] = ()


class Migration(Protocol):
    """From the layout before to the one with this number. Doing a page again must do nothing more.

    A page may take longer than a call of the store: its plan yields MoreTime.
    """

    number: int
    title: str

    def page_plan(self, run: Run, start: ItemKey | None) -> Plan[PageDone]: ...

    def last_changes(self, table: str) -> list[dict[str, Any]]:
        """What goes into the transaction that ends it."""


@dataclass
class Report:
    """`counts`: items by kind. `left`: some of those that had to be left as they are, and why."""

    number: int
    title: str
    counts: Counter[str] = field(default_factory=Counter)
    left: list[str] = field(default_factory=list)

    def add(self, page: PageDone) -> None:
        self.counts.update(page.counts)
        self.counts.update({"left": len(page.left)} if page.left else {})
        self.left = [*self.left, *page.left][:_SHOWN]


class Migrator:
    """`now_ms` is the clock: a run takes longer than a moment."""

    def __init__(
        self,
        deliver: Deliverer,
        migrations: Sequence[Migration],
        now_ms: Callable[[], int],
        page_size: int = PAGE,
    ) -> None:
        self._deliver = deliver
        self._migrations = sorted(migrations, key=lambda migration: migration.number)
        self._now_ms = now_ms
        self._page_size = page_size
        self._owner = str(uuid4())

    def run_plan(self, namespace: str = "default", *, dry: bool = False) -> Plan[list[Report]]:
        """Everything that is pending. `namespace`: of what had none. With `dry`, count and change nothing.

        Clients of the older layout have to be stopped before.
        """
        version = yield from Versions(self._deliver).look_plan()
        if version is None:
            return []
        pending = [migration for migration in self._migrations if migration.number > version.schema]
        ns = (yield from self._prepare_plan(version.schema, namespace)) if pending and not dry else ""
        reports = []
        for migration in pending:
            report = Report(migration.number, migration.title)
            plan = self._count_plan(migration, report) if dry else self._migrate_plan(migration, report, ns)
            yield from plan
            reports.append(report)
        return reports

    def _prepare_plan(self, schema: int, namespace: str) -> Plan[str]:
        """What the new items need. The table says what it was, should it have been known by its items only."""
        yield from Versions(self._deliver).write_plan(schema)
        yield from Table(self._deliver).create_missing_plan()
        namespaces = Namespaces(self._deliver, now_ms=self._now_ms)
        return (yield from namespaces.register_plan(namespace, migrating=True)).id

    def _run(self, ns: str, *, dry: bool) -> Run:
        return Run(self._deliver, ns, self._now_ms(), self._page_size, dry)

    def _count_plan(self, migration: Migration, report: Report) -> Plan[None]:
        start = None
        while True:
            page = yield from migration.page_plan(self._run("", dry=True), start)
            report.add(page)
            start = page.after
            if start is None:
                return

    def _migrate_plan(self, migration: Migration, report: Report, ns: str) -> Plan[None]:
        start = yield from self._begin_plan(migration, report, ns)
        while True:
            page = yield from migration.page_plan(self._run(ns, dry=False), start)
            report.add(page)
            start = page.after
            if start is None:
                break
            yield from self._save_plan(migration, report, start)
        yield from self._end_plan(migration, report)

    # The migration's own item

    def _begin_plan(self, migration: Migration, report: Report, ns: str) -> Plan[ItemKey | None]:
        """Take the lock, and see how far it has come."""
        update = {
            **self._place(migration),
            "UpdateExpression": "SET #owner = :owner, lock_until_ms = :until, namespace_id = :ns, GSI4PK = :registry,"
            " GSI4SK = :system",
            "ConditionExpression": "(attribute_not_exists(#owner) OR #owner = :owner OR lock_until_ms <= :now)"
            " AND (attribute_not_exists(namespace_id) OR namespace_id = :ns)",
            "ExpressionAttributeNames": {"#owner": "owner"},
            "ExpressionAttributeValues": item_of(
                {
                    ":owner": self._owner,
                    ":until": self._now_ms() + LEASE_MS,
                    ":now": self._now_ms(),
                    ":ns": ns,
                    ":registry": keys.REGISTRY,
                    ":system": keys.pk_system(keys.REGISTRY),
                }
            ),
            "ReturnValues": "ALL_NEW",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        yield from MoreTime()
        result = yield from self._deliver.one_plan(Send("UpdateItem", update, repeatable=True))
        if isinstance(result, Failed):
            raise self._refused(migration, values_of(result.item or {}), ns)
        found = values_of(result["Attributes"])
        report.counts.update(json.loads(found.get("counts", "{}")))
        report.left += json.loads(found.get("left", "[]"))
        start = json.loads(found.get("start", "null"))
        return None if start is None else (start[0], start[1])

    def _refused(self, migration: Migration, found: Mapping[str, Any], ns: str) -> ValidationError:
        what = f"migration {migration.number} of table {self._deliver.table!r}"
        if found.get("namespace_id", ns) != ns:
            return ValidationError(
                f"{what} was begun for another namespace, with the id {found['namespace_id']!r}: run it for that one"
            )
        seconds = (int(found.get("lock_until_ms", 0)) - self._now_ms()) / 1000
        return ValidationError(
            f"{what} is being run by somebody else; if that run was stopped, try again in {seconds:.0f} seconds"
        )

    def _save_plan(self, migration: Migration, report: Report, start: ItemKey) -> Plan[None]:
        values = {**self._saved(report), ":start": json.dumps(start), ":until": self._now_ms() + LEASE_MS}
        update = {
            **self._place(migration),
            "UpdateExpression": "SET #start = :start, #counts = :counts, #left = :left, lock_until_ms = :until",
            "ConditionExpression": "#owner = :owner",
            "ExpressionAttributeNames": {"#start": "start", **_SAVED},
            "ExpressionAttributeValues": item_of(values),
        }
        yield from self._note_plan(migration, Send("UpdateItem", update, repeatable=True))

    def _end_plan(self, migration: Migration, report: Report) -> Plan[None]:
        """The end is noted, and the table has its new version, at once."""
        note = {
            **self._place(migration),
            "UpdateExpression": "SET finished_at_ms = :now, #counts = :counts, #left = :left REMOVE #start",
            "ConditionExpression": "#owner = :owner",
            "ExpressionAttributeNames": {"#start": "start", **_SAVED},
            "ExpressionAttributeValues": item_of({**self._saved(report), ":now": self._now_ms()}),
        }
        changes = [
            {"Update": note},
            {"Put": {"TableName": self._deliver.table, "Item": version_item(migration.number)}},
            *migration.last_changes(self._deliver.table),
        ]
        transaction = {"TransactItems": changes, "ClientRequestToken": str(uuid4())}
        yield from self._note_plan(migration, Send("TransactWriteItems", transaction, repeatable=True))

    def _note_plan(self, migration: Migration, send: Send) -> Plan[None]:
        while True:
            yield from MoreTime()
            result = yield from self._deliver.one_plan(send)
            if not isinstance(result, Failed):
                return
            if not any(reason.code == "TransactionConflict" for reason in (result, *result.reasons)):
                raise ValidationError(
                    f"migration {migration.number} of table {self._deliver.table!r} was taken over by another run, "
                    "since this one was too slow: let that one end, or try again"
                )
            yield from Sleep(_PAUSE)

    def _place(self, migration: Migration) -> dict[str, Any]:
        return {"TableName": self._deliver.table, "Key": key_of((VERSION_KEY[0], keys.sk_migration(migration.number)))}

    def _saved(self, report: Report) -> dict[str, str | int]:
        return {":owner": self._owner, ":counts": json.dumps(report.counts), ":left": json.dumps(report.left)}


_SAVED = {"#owner": "owner", "#counts": "counts", "#left": "left"}
