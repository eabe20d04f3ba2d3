"""The records of the store: reading, writing and listing them.

Changes are written all or none, each on the condition that its record has the expected version. One change is a
conditional write. Several are a transaction, which costs twice as much, but has a token that makes it safe to send
again when the reply was lost. A Put for any version must know the current version, to count it up: it reads the
record and writes on the condition that it is unchanged. If another writer was faster, it reads again.

Lists of a partition of the table are consistent. DynamoDB's indexes follow the table with a delay, usually of some
milliseconds, so a list may miss a record that was just written. It never shows a record that is gone or has changed,
because the items that an index names are read from the table.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import uuid4

from ...core.errors import ValidationError, VersionConflict
from ...core.records import ABSENT, Change, Check, Delete, Page, Put, Record
from ...plan import Plan, Sleep
from ..contract import MAX_CHANGES
from .deliver import Deliverer, Denied
from .exchange import Failed, Item, Send
from .items import ItemKey, attribute, key_of, page_plan, query, read_items_plan, values_of
from .keys import REGISTRY
from .namespaces import Namespaces
from .record_items import EXPIRES, RecordItem, RecordList, namespace_of, record_item, record_list
from .record_kinds import NAMESPACE, REVISION

_LONGEST_PAUSE = 0.2


class Records:
    """Reading does not register a namespace: one that is not registered has no records."""

    def __init__(self, deliver: Deliverer, namespaces: Namespaces) -> None:
        self._deliver = deliver
        self._namespaces = namespaces
        self._revisions: dict[str, Item] = {}  # by namespace, as they were last seen

    def get_records_plan(self, keys: Sequence[str], now_ms: int) -> Plan[list[Record | None]]:
        if not keys:
            return []
        ns = yield from self._namespaces.find_plan(namespace_of(keys))
        if ns is None:
            return [None] * len(keys)
        items = [record_item(key, ns) for key in keys]
        if ns == REGISTRY:
            found = yield from self._namespaces.read_plan([item.item_key for item in items])
        else:
            found = yield from self._read_plan(items, ns)
        return [item.record(found.get(item.item_key), now_ms) for item in items]

    def _read_plan(self, items: Sequence[RecordItem], ns: str) -> Plan[dict[ItemKey, Item]]:
        """All items; the limits may be newer than the revision says, never older.

        DynamoDB reads in no order. If the revision is the one seen before, the limits were read after it. If it is
        another, they may have been read before it, and are read again.
        """
        known = self._revisions.get(ns)
        found = yield from read_items_plan(self._deliver, [item.item_key for item in items])
        revision = next((item.item_key for item in items if item.kind is REVISION), None)
        if revision is None or revision not in found:
            return found
        self._revisions[ns] = found[revision]
        if known == found[revision]:
            return found
        rest = yield from read_items_plan(self._deliver, [item.item_key for item in items if item.kind is not REVISION])
        return {**rest, revision: found[revision]}

    def write_records_plan(self, changes: Sequence[Change], now_ms: int) -> Plan[None]:
        if not changes:
            return
        ns = yield from self._namespaces.id_plan(namespace_of([change.key for change in changes]))
        items = [record_item(change.key, ns) for change in changes]
        names = [item.fields["namespace"] for item in items if item.kind is NAMESPACE]
        try:
            yield from self._write_plan(_to_write(changes, items), now_ms)
        except Denied as error:
            if names and changes[0].expected == ABSENT:
                raise self._namespaces.not_allowed(names[0], error) from None
            raise
        finally:
            for name in names:
                self._namespaces.forget(name)

    def _write_plan(self, wanted: Sequence[tuple[Change, RecordItem]], now_ms: int) -> Plan[None]:
        turn = 0
        while wanted:
            writes = yield from self._writes_plan(wanted, now_ms)
            result = yield from self._deliver.one_plan(_send(self._deliver.table, writes, now_ms))
            if not isinstance(result, Failed):
                return
            _raise_conflict(result, writes)
            turn += 1
            yield from Sleep(random.uniform(0.5, 1) * min(0.005 * 2**turn, _LONGEST_PAUSE))

    def _writes_plan(self, wanted: Sequence[tuple[Change, RecordItem]], now_ms: int) -> Plan[list[_Write]]:
        blind = {item.item_key for change, item in wanted if _counts_up(change, item)}
        found = yield from read_items_plan(self._deliver, blind)
        writes = []
        for change, item in wanted:
            expected = change.expected
            if item.item_key in blind:
                expected = item.known_version(values_of(found.get(item.item_key, {})), now_ms)
            writes.append(_Write(change, item, expected))
        return writes

    def list_records_plan(self, prefix: str, cursor: str | None, limit: int, now_ms: int) -> Plan[Page[Record]]:
        """A page is full unless it is the last one. The cursor is the key of its last record."""
        if limit < 1:
            raise ValidationError(f"limit must be a whole number above zero, not {limit!r}")
        namespace = namespace_of([prefix])
        ns = yield from self._namespaces.find_plan(namespace)
        if ns is None:
            return Page([])
        if ns == REGISTRY:
            yield from self._namespaces.read_plan([])
        listed = record_list(prefix, ns)
        start = None if cursor is None else listed.position(_of_cursor(cursor, prefix, ns))
        found: list[Record] = []
        while True:
            parameters = {**query(*listed.keys, listed.gsi), "Limit": limit + 1 - len(found)}
            reply, start = yield from page_plan(self._deliver, parameters, start)
            found += yield from self._listed_plan(listed, namespace, reply["Items"], now_ms)
            if len(found) > limit:
                return Page(found[:limit], found[limit - 1].key)
            if not start:
                return Page(found)

    def _listed_plan(self, listed: RecordList, namespace: str, rows: Sequence[Item], now_ms: int) -> Plan[list[Record]]:
        """The records of these rows that still exist."""
        items = [listed.item_of(row, namespace) for row in rows]
        stored: Mapping[ItemKey, Item] = {item.item_key: row for item, row in zip(items, rows)}
        if listed.gsi:
            stored = yield from read_items_plan(self._deliver, stored)
        records = [item.record(stored.get(item.item_key), now_ms) for item in items]
        return [record for record in records if record is not None]


def _of_cursor(cursor: str, prefix: str, ns: str) -> RecordItem:
    if cursor.startswith(prefix):
        with suppress(ValidationError):
            return record_item(cursor, ns)
    raise ValidationError(f"cursor {cursor!r} is not of this list: pass the cursor of the page before")


class _Write(NamedTuple):
    """`expected`: the version that is asked for, or for a blind Put the one that was found. None: any."""

    change: Change
    item: RecordItem
    expected: int | None

    @property
    def blind(self) -> bool:
        return self.change.expected is None

    def operation(self, table: str, now_ms: int) -> tuple[str, dict[str, Any]]:
        """What it is called in a transaction, and its parameters there or alone."""
        change, item = self.change, self.item
        parameters = {"TableName": table, **self._condition(now_ms)}
        if isinstance(change, Put):
            version = (self.expected or ABSENT) + 1
            return "Put", {**parameters, "Item": item.item(change.value, version, change.expires_at_ms, now_ms)}
        name = "Delete" if isinstance(change, Delete) else "ConditionCheck"
        return name, {**parameters, "Key": key_of(item.item_key)}

    def _condition(self, now_ms: int) -> dict[str, Any]:
        if self.expected is None:
            return {}
        condition = self.item.condition(self.expected)
        names = {"#version": self.item.kind.version, "#expires": EXPIRES}
        values = {":now": attribute(now_ms), ":version": attribute(self.expected)}
        return {
            "ConditionExpression": condition,
            **_used(condition, "ExpressionAttributeNames", names),
            **_used(condition, "ExpressionAttributeValues", values),
        }


def _used(condition: str, what: str, all_of: Mapping[str, Any]) -> dict[str, Any]:
    """DynamoDB refuses names and values that the condition does not use."""
    used = {name: value for name, value in all_of.items() if name in condition}
    return {what: used} if used else {}


def _to_write(changes: Sequence[Change], items: Sequence[RecordItem]) -> list[tuple[Change, RecordItem]]:
    """The changes that are written. Derived records change with the records they follow from."""
    if len(changes) > MAX_CHANGES:
        raise ValidationError(
            f"{len(changes)} changes are too many for one write: at most {MAX_CHANGES}, or write twice"
        )
    wanted: dict[ItemKey, tuple[Change, RecordItem]] = {}
    for change, item in zip(changes, items):
        if item.kind.derived:
            if change.expected is not None:
                pk, sk = item.item_key
                raise ValidationError(f"record {change.key!r} has no version: it follows from {pk!r} {sk!r}")
            continue
        if item.item_key in wanted:
            raise ValidationError(f"record {change.key!r} is changed twice in one write: change it once")
        wanted[item.item_key] = (change, item)
    return list(wanted.values())


def _counts_up(change: Change, item: RecordItem) -> bool:
    """Whether it needs the current version."""
    return isinstance(change, Put) and change.expected is None and not item.kind.written_once


def _send(table: str, writes: Sequence[_Write], now_ms: int) -> Send:
    operations = [write.operation(table, now_ms) for write in writes]
    if len(writes) == 1 and not isinstance(writes[0].change, Check):
        ((name, parameters),) = operations
        # After a lost reply, a condition may fail because the first attempt succeeded.
        return Send(f"{name}Item", parameters, repeatable=writes[0].expected is None)
    transaction = {
        "TransactItems": [{name: parameters} for name, parameters in operations],
        "ClientRequestToken": str(uuid4()),
    }
    return Send("TransactWriteItems", transaction, repeatable=True)


def _raise_conflict(failed: Failed, writes: Sequence[_Write]) -> None:
    """For the first version that was not the expected one. Otherwise it was a race, and can be tried again."""
    reasons = failed.reasons or [failed] * len(writes)
    for reason, write in zip(reasons, writes):
        if reason.code == "ConditionalCheckFailed" and not write.blind:
            raise VersionConflict(write.change.key)
        if reason.code not in ("None", "ConditionalCheckFailed", "TransactionConflict"):
            raise ValidationError(f"record {write.change.key!r} cannot be written: {reason.code}: {reason.message}")
