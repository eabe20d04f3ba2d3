"""Of which namespaces something is stored, how much, and removing all of one.

Everything of a namespace is found by its id in GSI4, which follows the table with a delay of some milliseconds. So a
list may have what was removed just now, and whoever finds nothing looks once more.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from ...plan import Plan, Sleep
from . import keys
from .attributes import attribute
from .deliver import Deliverer
from .exchange import Failed, MoreTime, Send
from .namespaces import Namespaces

_STEP = 500
_AT_ONCE = 25  # what one BatchWriteItem takes
_DELAY_SECONDS = 0.2
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.2


class Stored:
    def __init__(self, deliver: Deliverer, namespaces: Namespaces) -> None:
        self._deliver = deliver
        self._namespaces = namespaces

    def list_plan(self) -> Plan[list[str]]:
        """By name; those that have none, by their id after an underscore. All of the index is read."""
        scan = {"TableName": self._deliver.table, "IndexName": keys.GSI4, "ProjectionExpression": "GSI4PK"}
        yield from self._namespaces.read_plan([])
        ids: set[str] = set()
        start: Mapping[str, Any] = {}
        while True:
            yield from MoreTime()
            reply = yield from self._deliver.one_plan(Send("Scan", {**scan, **start}, repeatable=True))
            assert not isinstance(reply, Failed)
            ids |= {row["GSI4PK"]["S"] for row in reply["Items"]}
            if "LastEvaluatedKey" not in reply:
                break
            start = {"ExclusiveStartKey": reply["LastEvaluatedKey"]}
        names = yield from self._names_plan()
        return sorted(names.get(ns, f"{keys.REGISTRY}{ns}") for ns in ids - {keys.REGISTRY})

    def _names_plan(self) -> Plan[dict[str, str]]:
        """By id."""
        names: dict[str, str] = {}
        cursor: str | None = None
        while True:
            page = yield from self._namespaces.list_plan(cursor)
            names |= {namespace.id: namespace.name for namespace in page}
            cursor = page.cursor
            if cursor is None:
                return names

    def count_plan(self, namespace: str) -> Plan[int]:
        ns = yield from self._namespaces.find_any_plan(namespace)
        count = 0
        start: Mapping[str, Any] = {}
        while ns is not None:
            yield from MoreTime()
            reply = yield from self._deliver.one_plan(self._query(ns, Select="COUNT", **start))
            assert not isinstance(reply, Failed)
            count += reply["Count"]
            if "LastEvaluatedKey" not in reply:
                break
            start = {"ExclusiveStartKey": reply["LastEvaluatedKey"]}
        return count

    def purge_plan(self, namespace: str) -> Plan[int]:
        """Remove some hundred items, and say how many."""
        ns = yield from self._namespaces.find_any_plan(namespace)
        self._namespaces.forget(namespace)
        if ns is None:
            return 0
        found = yield from self._some_plan(ns)
        if not found:
            yield from Sleep(_DELAY_SECONDS)
            found = yield from self._some_plan(ns)
        if found:
            yield from self._delete_plan(found)
        return len(found)

    def _some_plan(self, ns: str) -> Plan[list[Any]]:
        """Keys of items of a namespace."""
        reply = yield from self._deliver.one_plan(self._query(ns, Limit=_STEP))
        assert not isinstance(reply, Failed)
        return [{"PK": row["PK"], "SK": row["SK"]} for row in reply["Items"]]

    def _delete_plan(self, left: list[Any]) -> Plan[None]:
        """What DynamoDB leaves undone for lack of capacity is done again."""
        pause = _FIRST_PAUSE
        while True:
            pieces = [left[start : start + _AT_ONCE] for start in range(0, len(left), _AT_ONCE)]
            replies = yield from self._deliver.all_plan([self._deletes(piece) for piece in pieces])
            left = []
            for reply in replies:
                assert not isinstance(reply, Failed)
                undone = reply.get("UnprocessedItems", {}).get(self._deliver.table, ())
                left += [one["DeleteRequest"]["Key"] for one in undone]
            if not left:
                return
            yield from MoreTime()
            yield from Sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _deletes(self, piece: list[Any]) -> Send:
        requests = [{"DeleteRequest": {"Key": key}} for key in piece]
        return Send("BatchWriteItem", {"RequestItems": {self._deliver.table: requests}}, repeatable=True)

    def _query(self, ns: str, **more: Any) -> Send:
        parameters = {
            "TableName": self._deliver.table,
            "IndexName": keys.GSI4,
            "KeyConditionExpression": "GSI4PK = :pk",
            "ExpressionAttributeValues": {":pk": attribute(ns)},
            **more,
        }
        return Send("Query", parameters, repeatable=True)
