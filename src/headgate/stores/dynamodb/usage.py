"""Reading what was used of a resource by an entity: what its items of buckets count, and what was put away (hours.py).

What is moved from one to the other while it is read must be neither missed nor seen twice. An item says how often
something of it was put away: if that is the same before and after the items of the days were read, nothing was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.records import Page
from ...core.usage import UsageRow, hour_of
from ...plan import Plan
from . import keys
from .attributes import attribute
from .conditional_writes import Place
from .deliver import Deliverer
from .exchange import Failed, Item, MoreTime, Send
from .namespaces import Namespaces
from .places import places_plan
from .reads import read_items_plan
from .rows import counted as counted_by
from .usage_counters import MOVES, UsageCounters, day_of, shards_ever, sk_of_day, sums


class Usage:
    def __init__(self, deliver: Deliverer, namespaces: Namespaces, usage_counters: UsageCounters) -> None:
        self._deliver = deliver
        self._namespaces = namespaces
        self._usage_counters = usage_counters

    def list_plan(
        self,
        namespace: str,
        entity_id: str | None,
        resource: str | None,
        hours: tuple[int, int],
        cursor: str | None,
        now_ms: int,
    ) -> Plan[Page[UsageRow]]:
        ns = yield from self._namespaces.find_plan(namespace)
        if ns is None:
            return Page([])
        first, after = hours
        if self._usage_counters.kept_ms:
            first = max(first, hour_of(now_ms - self._usage_counters.kept_ms))
        found, cursor = yield from places_plan(self._deliver, ns, entity_id, resource, cursor)
        places = [place for place, kinds in found.items() if keys.STATE in kinds]
        rows = []
        if first < after:
            items = yield from self._items_plan(places, (first, after))
            for place, counted in items.items():
                if used := sums(counted, (first, after)):
                    rows.append(UsageRow(place.entity_id, place.resource, used))
        return Page(rows, cursor)

    def _items_plan(self, places: Sequence[Place], hours: tuple[int, int]) -> Plan[dict[Place, list[Item]]]:
        """All items that have counted for each of these places, of their days as well."""
        found = yield from self._buckets_plan(places)
        moved = [place for place, items in found.items() if _moves(items)]
        while moved:
            yield from MoreTime()
            days = yield from self._days_plan(moved, hours)
            again = yield from self._buckets_plan(moved)
            unsure = [place for place in moved if _moves(again[place]) != _moves(found[place])]
            found |= {place: items if place in unsure else [*items, *days[place]] for place, items in again.items()}
            moved = unsure
        return found

    def _buckets_plan(self, places: Sequence[Place]) -> Plan[dict[Place, list[Item]]]:
        """All shards of each place, those that there are no longer as well."""
        firsts = yield from self._read_plan(places)
        others = yield from self._read_plan(
            [place._replace(shard=shard) for place, item in firsts.items() for shard in range(1, shards_ever(item))]
        )
        found = {place: [firsts[place]] if place in firsts else [] for place in places}
        for place, item in others.items():
            found[place._replace(shard=0)].append(item)
        return found

    def _read_plan(self, places: Sequence[Place]) -> Plan[dict[Place, Item]]:
        by_key = {(place.pk, keys.STATE): place for place in places}
        items = yield from read_items_plan(self._deliver, by_key)
        return {by_key[key]: item for key, item in items.items()}

    def _days_plan(self, places: Sequence[Place], hours: tuple[int, int]) -> Plan[dict[Place, list[Item]]]:
        found: dict[Place, list[Item]] = {place: [] for place in places}
        left: dict[Place, Mapping[str, Any]] = {place: {} for place in places}
        while left:
            sends = [self._query(place, hours, start) for place, start in left.items()]
            replies = yield from self._deliver.all_plan(sends)
            starts: dict[Place, Mapping[str, Any]] = {}
            for place, reply in zip(left, replies):
                assert not isinstance(reply, Failed)
                found[place] += reply["Items"]
                if "LastEvaluatedKey" in reply:
                    starts[place] = {"ExclusiveStartKey": reply["LastEvaluatedKey"]}
            left = starts
        return found

    def _query(self, place: Place, hours: tuple[int, int], start: Mapping[str, Any]) -> Send:
        first, after = hours
        parameters = {
            "TableName": self._deliver.table,
            "KeyConditionExpression": "PK = :pk AND SK BETWEEN :first AND :last",
            "ExpressionAttributeValues": {
                ":pk": attribute(keys.pk_hours(place.ns, place.entity_id)),
                ":first": attribute(sk_of_day(place.resource, day_of(first))),
                ":last": attribute(sk_of_day(place.resource, day_of(after - 1))),
            },
            "ConsistentRead": True,
            **start,
        }
        return Send("Query", parameters, repeatable=True)


def _moves(items: Sequence[Item]) -> int:
    return sum(counted_by(item, MOVES) for item in items)
