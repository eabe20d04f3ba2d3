"""From the layout without namespaces: one item for each bucket and for each limit (read in older_items.py).

Several of those become one item. They are read together, from the table, however a page cuts them: the new item is
complete when it is first written, and is then not written again. Old items are deleted when everything that was made of
a page is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ....core.errors import ValidationError
from ....plan import Plan
from ..documents import ItemKey
from ..exchange import Failed, Item, MoreTime, Send
from ..reads import key_of
from ..versions import OLDER_KEYS, OLDER_VERSION_KEY
from .older_items import Group, convert, group_of
from .runner import PageDone, Run

_AT_ONCE = 25


class FromOlder:
    number = 2
    title = "namespaces, and one item for all buckets of an entity on a resource"

    def page_plan(self, run: Run, start: ItemKey | None) -> Plan[PageDone]:
        scan: dict[str, Any] = {"TableName": run.deliver.table, "Limit": run.page_size, "ConsistentRead": True}
        if start is not None:
            scan["ExclusiveStartKey"] = key_of(start)
        yield from MoreTime()
        reply = yield from run.deliver.one_plan(Send("Scan", scan, repeatable=True))
        assert not isinstance(reply, Failed)
        page = [item for item in reply["Items"] if _is_older(item)]
        counts: Counter[str] = Counter()
        left: list[str] = []
        new: list[Mapping[str, Any]] = []
        done: list[ItemKey] = []
        for group, of_page in _grouped(page).items():
            items = (yield from _query_plan(run, group)) if group.several else of_page
            try:
                new += convert(group, items, run.ns, run.now_ms)
            except (ValidationError, KeyError, ValueError, ArithmeticError) as error:
                left += [f"{_key(item)}: {error}" for item in of_page]
                continue
            counts[group.kind] += len(of_page if run.dry else items)
            done += [_key(item) for item in items]
        if not run.dry:
            yield from _put_plan(run, new)
            yield from _delete_plan(run, done)
        after = reply.get("LastEvaluatedKey")
        return PageDone(None if not after else _key(after), counts, left)

    def last_changes(self, table: str) -> list[dict[str, Any]]:
        return [{"Delete": {"TableName": table, "Key": key_of(OLDER_VERSION_KEY)}}]


def _key(item: Item) -> ItemKey:
    return item["PK"]["S"], item["SK"]["S"]


def _is_older(item: Item) -> bool:
    """The version stays to the end: it is what keeps clients of the new layout away."""
    return item["PK"]["S"].startswith(OLDER_KEYS) and _key(item) != OLDER_VERSION_KEY


def _grouped(page: Iterable[Item]) -> dict[Group, list[Item]]:
    groups: dict[Group, list[Item]] = {}
    for item in page:
        groups.setdefault(group_of(*_key(item)), []).append(item)
    return groups


def _query_plan(run: Run, group: Group) -> Plan[list[Item]]:
    """All items of a group, those on other pages too."""
    found: list[Item] = []
    for begin in group.begins:
        query: dict[str, Any] = {
            "TableName": run.deliver.table,
            "KeyConditionExpression": "PK = :pk AND begins_with(SK, :sk)",
            "ExpressionAttributeValues": {":pk": {"S": group.pk}, ":sk": {"S": begin}},
            "ConsistentRead": True,
        }
        while True:
            yield from MoreTime()
            reply = yield from run.deliver.one_plan(Send("Query", query, repeatable=True))
            assert not isinstance(reply, Failed)
            found += reply["Items"]
            if not reply.get("LastEvaluatedKey"):
                break
            query["ExclusiveStartKey"] = reply["LastEvaluatedKey"]
    return found


def _put_plan(run: Run, new: Sequence[Mapping[str, Any]]) -> Plan[None]:
    """What is there already was written by a run that was stopped, and is complete."""
    absent = "attribute_not_exists(PK)"
    puts = [{"TableName": run.deliver.table, "Item": item, "ConditionExpression": absent} for item in new]
    yield from _all_plan(run, [Send("PutItem", put, repeatable=True) for put in puts])


def _delete_plan(run: Run, done: Sequence[ItemKey]) -> Plan[None]:
    deletes = [{"TableName": run.deliver.table, "Key": key_of(item_key)} for item_key in done]
    yield from _all_plan(run, [Send("DeleteItem", delete, repeatable=True) for delete in deletes])


def _all_plan(run: Run, sends: Sequence[Send]) -> Plan[None]:
    for start in range(0, len(sends), _AT_ONCE):
        yield from MoreTime()
        yield from run.deliver.all_plan(sends[start : start + _AT_ONCE])
