"""Usage by the hour: counted in the items of buckets, moved to one item per day, and read from both.

    u_{limit}_{hour}    millitokens, in an item of buckets and in one of a day; hours are counted from 1970
    moves               in an item of buckets, how often hours were moved from it

A take adds to its hour in the same write. An item of buckets must stay small, because a write costs by its size. A
client that sees too many past hours in an item moves them to the items of their days, in one transaction, on the
condition that they are unchanged. If that fails, another client did it or will do it: no count depends on it.

A reader must neither miss a move nor see it twice. If `moves` is the same before and after the items of the days were
read, there was none.

An item of buckets stays for as long as usage is kept, even without buckets (`emptied`). So the items of buckets show
where there is usage.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any
from uuid import uuid4

from ...core.records import Page
from ...core.usage import DAY_MS, HOUR_MS, UsageRow, hour_of
from ...plan import Plan
from . import keys
from .conditional_writes import time_to_live
from .deliver import Deliverer
from .exchange import Attributes, Exchange, Failed, Item, MoreTime, Send
from .items import attribute, item_of, read_items_plan
from .namespaces import Namespaces
from .places import ItemPlace, places_plan
from .rows import MOST_SHARDS, PREFIX, SUFFIXES, Row, counted, parse_used, used_names
from .rows import counted as counted_by

MOVES = "moves"
# How many counts fit into a kilobyte, beside the limits.
_MOST, _LEAST, _FOR_A_LIMIT = 24, 8, 4
_AT_ONCE = 90  # a transaction has at most 100 items, and each count may be of another day
_SIDE_BY_SIDE = 25
_REMEMBERED = 20_000
_DAY_HOURS = DAY_MS // HOUR_MS


class UsageCounters:
    """`kept_ms`: how long usage is kept; 0 if it is not counted."""

    def __init__(self, deliver: Deliverer) -> None:
        self.kept_ms = 0
        self._deliver = deliver
        self._due: dict[ItemPlace, tuple[Row, int]] = {}
        self._tried: dict[ItemPlace, int] = {}  # the hour of the last attempt

    def notice(self, place: ItemPlace, row: Row, now_ms: int) -> None:
        """An item was written. Each client moves the hours of an item at most once an hour."""
        if not self.kept_ms or len(row.used) <= max(_MOST - _FOR_A_LIMIT * len(row.states), _LEAST):
            return
        hour = hour_of(now_ms)
        if self._tried.get(place) != hour and _over(row, hour):
            if len(self._tried) >= _REMEMBERED:
                self._tried.clear()
            self._tried[place] = hour
            self._due[place] = row, now_ms

    def put_away_plan(self) -> Plan[None]:
        """Move past hours. Tried once, because a caller waits for its answer meanwhile."""
        sends: list[Send] = []
        while len(sends) < _SIDE_BY_SIDE and (due := _any_of(self._due)) is not None:
            sends.append(self._move(*due))
        for reply in (yield from Exchange(sends)) if sends else ():
            if isinstance(reply, Failed) and reply.code == "AccessDenied":
                raise self._deliver.unusable(reply)

    def _move(self, place: ItemPlace, row: Row, now_ms: int) -> Send:
        moved = _over(row, hour_of(now_ms))
        first = hour_of(now_ms - self.kept_ms)
        days: dict[int, dict[str, int]] = {}
        for name in moved:
            hour = parse_used(name)[1]
            if hour >= first:
                days.setdefault(day_of(hour), {})[name] = row.used[name]
        items = [self._left(place, {name: row.used[name] for name in moved})]
        items += [self._added(place, day, used, now_ms) for day, used in days.items()]
        transaction = {"TransactItems": [{"Update": item} for item in items], "ClientRequestToken": str(uuid4())}
        return Send("TransactWriteItems", transaction, repeatable=True)

    def _left(self, place: ItemPlace, used: Mapping[str, int]) -> dict[str, Any]:
        names = {f"#{i}": name for i, name in enumerate(used)}
        values = {f":{i}": attribute(milli) for i, milli in enumerate(used.values())}
        return {
            "TableName": self._deliver.table,
            "Key": place.key,
            "UpdateExpression": f"REMOVE {', '.join(names)} ADD #moves :one",
            "ConditionExpression": " AND ".join(f"#{i} = :{i}" for i in range(len(used))),
            "ExpressionAttributeNames": {**names, "#moves": MOVES},
            "ExpressionAttributeValues": {**values, ":one": attribute(1)},
        }

    def _added(self, place: ItemPlace, day: int, used: Mapping[str, int], now_ms: int) -> dict[str, Any]:
        ns, entity_id, resource, _ = place
        left_ms = (day + 1) * DAY_MS + self.kept_ms - now_ms
        fixed = item_of(
            {
                "entity_id": entity_id,
                "resource": resource,
                "ttl": int(time.time()) + -(-left_ms // 1000),  # DynamoDB goes by its own clock
                "GSI4PK": ns,
                "GSI4SK": keys.gsi4_sk_hours(ns, entity_id),
            }
        )
        counted = {name: attribute(milli) for name, milli in used.items()}
        named = {f"{i}": name for i, name in enumerate((*fixed, *counted))}
        sets = [f"#{i} = :{i}" for i, name in named.items() if name in fixed]
        adds = [f"#{i} :{i}" for i, name in named.items() if name in counted]
        return {
            "TableName": self._deliver.table,
            "Key": {"PK": attribute(keys.pk_hours(ns, entity_id)), "SK": attribute(sk_of_day(resource, day))},
            "UpdateExpression": f"SET {', '.join(sets)} ADD {', '.join(adds)}",
            "ExpressionAttributeNames": {f"#{i}": name for i, name in named.items()},
            "ExpressionAttributeValues": {f":{i}": {**fixed, **counted}[name] for i, name in named.items()},
        }

    def emptied(
        self, place: ItemPlace, row: Row, count: int, condition: str, values: Mapping[str, Attributes]
    ) -> dict[str, Any]:
        """An Update that removes all buckets from an item, one of `count` shards, and keeps its usage."""
        gone = [f"{PREFIX}{name}_{suffix}" for name in row.states for suffix in SUFFIXES]
        sets = self._left_behind(place, row, count)
        names = {f"#{i}": name for i, name in enumerate((*sets, *gone))}
        removes = list(names)[len(sets) :]
        written = ", ".join(f"#{i} = :{i}" for i in range(len(sets)))
        return {
            "TableName": self._deliver.table,
            "Key": place.key,
            "UpdateExpression": f"SET {written} ADD wcu :one" + (f" REMOVE {', '.join(removes)}" if removes else ""),
            "ConditionExpression": condition,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": {
                **values,
                **{f":{i}": attribute(value) for i, value in enumerate(sets.values())},
                ":one": attribute(1),
            },
        }

    def _left_behind(self, place: ItemPlace, row: Row, count: int) -> dict[str, int]:
        """The attributes of an item without buckets."""
        says = {"shard_count": 0 if place.shard else 1}
        if ttl := time_to_live(row._replace(shard_count=1), self.kept_ms):
            says["ttl"] = ttl
        if count > 1 and not place.shard:
            says[MOST_SHARDS] = max(count, row.most_shards)
        return says


def shards_ever(item: Item) -> int:
    """The most shards that the buckets have, or had before a merge. `item` is the first shard."""
    return max(1, counted(item, "shard_count"), counted(item, MOST_SHARDS))


def sk_of_day(resource: str, day: int) -> str:
    return keys.sk_hours(resource, datetime.fromtimestamp(day * DAY_MS // 1000, timezone.utc).date().isoformat())


def day_of(hour: int) -> int:
    return hour // _DAY_HOURS


def sums(items: Iterable[Item], hours: tuple[int, int]) -> dict[str, dict[int, int]]:
    """The usage in these hours that all items have counted, by limit."""
    first, after = hours
    used: dict[str, dict[int, int]] = {}
    for item in items:
        for name in used_names(item):
            limit, hour = parse_used(name)
            milli = counted(item, name)
            if milli and first <= hour < after:
                of_limit = used.setdefault(limit, {})
                of_limit[hour] = of_limit.get(hour, 0) + milli
    return used


def _over(row: Row, hour: int) -> list[str]:
    """The counts of hours before this one, the oldest first."""
    over = sorted((found, name) for name in row.used if (found := parse_used(name)[1]) < hour)
    return [name for _, name in over[:_AT_ONCE]]


def _any_of(due: dict[ItemPlace, tuple[Row, int]]) -> tuple[ItemPlace, Row, int] | None:
    """Take one, unless another thread has taken the last."""
    try:
        place, (row, now_ms) = due.popitem()
    except KeyError:
        return None
    return place, row, now_ms


class HourlyUsage:
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

    def _items_plan(self, places: Sequence[ItemPlace], hours: tuple[int, int]) -> Plan[dict[ItemPlace, list[Item]]]:
        """All items with usage of these places, including the items of their days."""
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

    def _buckets_plan(self, places: Sequence[ItemPlace]) -> Plan[dict[ItemPlace, list[Item]]]:
        """All shards of each place, including merged ones."""
        firsts = yield from self._read_plan(places)
        others = yield from self._read_plan(
            [place._replace(shard=shard) for place, item in firsts.items() for shard in range(1, shards_ever(item))]
        )
        found = {place: [firsts[place]] if place in firsts else [] for place in places}
        for place, item in others.items():
            found[place._replace(shard=0)].append(item)
        return found

    def _read_plan(self, places: Sequence[ItemPlace]) -> Plan[dict[ItemPlace, Item]]:
        by_key = {place.item_key: place for place in places}
        items = yield from read_items_plan(self._deliver, by_key)
        return {by_key[key]: item for key, item in items.items()}

    def _days_plan(self, places: Sequence[ItemPlace], hours: tuple[int, int]) -> Plan[dict[ItemPlace, list[Item]]]:
        found: dict[ItemPlace, list[Item]] = {place: [] for place in places}
        left: dict[ItemPlace, Mapping[str, Any]] = {place: {} for place in places}
        while left:
            sends = [self._query(place, hours, start) for place, start in left.items()]
            replies = yield from self._deliver.all_plan(sends)
            starts: dict[ItemPlace, Mapping[str, Any]] = {}
            for place, reply in zip(left, replies):
                assert not isinstance(reply, Failed)
                found[place] += reply["Items"]
                if "LastEvaluatedKey" in reply:
                    starts[place] = {"ExclusiveStartKey": reply["LastEvaluatedKey"]}
            left = starts
        return found

    def _query(self, place: ItemPlace, hours: tuple[int, int], start: Mapping[str, Any]) -> Send:
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
