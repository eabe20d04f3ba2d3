"""Which namespaces have data, how much, and purging one.

All items of a namespace are found by its id in GSI4, which follows the table with a delay of some milliseconds. So a
list may show items that were just removed, and a purge that finds nothing looks once more.
"""

from __future__ import annotations

import random
from typing import Any

from ...plan import Plan, Sleep
from . import keys
from .deliver import Deliverer
from .exchange import Failed, MoreTime, Send
from .items import all_pages_plan, page_plan, query
from .namespaces import Namespaces

_STEP = 500
_AT_ONCE = 25  # the most that one BatchWriteItem takes
_DELAY_SECONDS = 0.2
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.2


class StoredNamespaces:
    def __init__(self, deliver: Deliverer, namespaces: Namespaces) -> None:
        self._deliver = deliver
        self._namespaces = namespaces

    def list_plan(self) -> Plan[list[str]]:
        """By name, or by the id after an underscore if there is no name. The whole index is read."""
        yield from self._namespaces.read_plan([])
        scan = {"IndexName": keys.GSI4, "ProjectionExpression": "GSI4PK"}
        replies = yield from all_pages_plan(self._deliver, scan, "Scan", more_time=True)
        ids = {row["GSI4PK"]["S"] for reply in replies for row in reply["Items"]}
        names = {namespace.id: namespace.name for namespace in (yield from self._namespaces.all_plan())}
        return sorted(names.get(ns, f"{keys.REGISTRY}{ns}") for ns in ids - {keys.REGISTRY})

    def count_plan(self, namespace: str) -> Plan[int]:
        ns = yield from self._namespaces.find_any_plan(namespace)
        if ns is None:
            return 0
        counts = {**query(ns, index=keys.GSI4), "Select": "COUNT"}
        replies = yield from all_pages_plan(self._deliver, counts, more_time=True)
        return sum(reply["Count"] for reply in replies)

    def purge_plan(self, namespace: str) -> Plan[int]:
        """Remove some hundred items; returns how many."""
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
        reply, _ = yield from page_plan(self._deliver, {**query(ns, index=keys.GSI4), "Limit": _STEP})
        return [{"PK": row["PK"], "SK": row["SK"]} for row in reply["Items"]]

    def _delete_plan(self, left: list[Any]) -> Plan[None]:
        """Items that DynamoDB leaves out for lack of capacity are requested again."""
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
