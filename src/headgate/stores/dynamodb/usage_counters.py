"""What was used, by the hour: counted in the items of buckets, and put away in items of a day.

    u_{limit}_{hour}    millitokens, in an item of buckets and in one of hours; hours are counted from 1970
    moves               of an item of buckets, how often something of it was put away

Whoever takes adds to the hour in the same write. An item of buckets must stay small, since a write costs by its size:
who gets to see too many hours in it that are over moves them to the items of their days, in one transaction, if they
are what was seen. Should it fail, another one was faster, or comes later: no count depends on it.

An item of buckets stays for as long as usage is wanted, even if it has no buckets any more (`emptied`). So whoever
knows all items of buckets knows where something was used.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any
from uuid import uuid4

from ...core.usage import DAY_MS, HOUR_MS, hour_of
from ...plan import Plan
from . import keys
from .attributes import attribute, item_of
from .conditional_writes import Place, time_to_live
from .deliver import Deliverer
from .exchange import Attributes, Exchange, Failed, Item, Send
from .rows import MOST_SHARDS, PREFIX, SUFFIXES, Row, counted, parse_used, used_names

MOVES = "moves"
# How many counts there is room for in a kilobyte, beside the limits.
_MOST, _LEAST, _FOR_A_LIMIT = 24, 8, 4
_AT_ONCE = 90  # a transaction may have 100 items, and each of them may be of another day
_SIDE_BY_SIDE = 25
_REMEMBERED = 20_000
_DAY_HOURS = DAY_MS // HOUR_MS


class UsageCounters:
    """`kept_ms`: how long usage is wanted; 0 if it is not."""

    def __init__(self, deliver: Deliverer) -> None:
        self.kept_ms = 0
        self._deliver = deliver
        self._due: dict[Place, tuple[Row, int]] = {}
        self._tried: dict[Place, int] = {}  # in which hour

    def notice(self, place: Place, row: Row, now_ms: int) -> None:
        """An item that was written just now. Each is put away at most once an hour by each client."""
        if not self.kept_ms or len(row.used) <= max(_MOST - _FOR_A_LIMIT * len(row.states), _LEAST):
            return
        hour = hour_of(now_ms)
        if self._tried.get(place) != hour and _over(row, hour):
            if len(self._tried) >= _REMEMBERED:
                self._tried.clear()
            self._tried[place] = hour
            self._due[place] = row, now_ms

    def put_away_plan(self) -> Plan[None]:
        """Once, whatever becomes of it: somebody waits for an answer, and has it only after this."""
        sends: list[Send] = []
        while len(sends) < _SIDE_BY_SIDE and (due := _any_of(self._due)) is not None:
            sends.append(self._move(*due))
        for reply in (yield from Exchange(sends)) if sends else ():
            if isinstance(reply, Failed) and reply.code == "AccessDenied":
                raise self._deliver.unusable(reply)

    def _move(self, place: Place, row: Row, now_ms: int) -> Send:
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

    def _left(self, place: Place, used: Mapping[str, int]) -> dict[str, Any]:
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

    def _added(self, place: Place, day: int, used: Mapping[str, int], now_ms: int) -> dict[str, Any]:
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
        self, place: Place, row: Row, count: int, condition: str, values: Mapping[str, Attributes]
    ) -> dict[str, Any]:
        """An Update that takes all buckets out of an item, one of `count` shards, and leaves what was counted."""
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

    def _left_behind(self, place: Place, row: Row, count: int) -> dict[str, int]:
        """What an item says that has no buckets."""
        says = {"shard_count": 0 if place.shard else 1}
        if ttl := time_to_live(row._replace(shard_count=1), self.kept_ms):
            says["ttl"] = ttl
        if count > 1 and not place.shard:
            says[MOST_SHARDS] = max(count, row.most_shards)
        return says


def shards_ever(item: Item) -> int:
    """How many shards there are, or were, of the buckets of which this is the first."""
    return max(1, counted(item, "shard_count"), counted(item, MOST_SHARDS))


def sk_of_day(resource: str, day: int) -> str:
    return keys.sk_hours(resource, datetime.fromtimestamp(day * DAY_MS // 1000, timezone.utc).date().isoformat())


def day_of(hour: int) -> int:
    return hour // _DAY_HOURS


def sums(items: Iterable[Item], hours: tuple[int, int]) -> dict[str, dict[int, int]]:
    """What all of them together have counted in these hours, by limit."""
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
    """Which of an item's counts are of hours before this one, the oldest first."""
    over = sorted((found, name) for name in row.used if (found := parse_used(name)[1]) < hour)
    return [name for _, name in over[:_AT_ONCE]]


def _any_of(due: dict[Place, tuple[Row, int]]) -> tuple[Place, Row, int] | None:
    """Take one, unless another thread has taken the last."""
    try:
        place, (row, now_ms) = due.popitem()
    except KeyError:
        return None
    return place, row, now_ms
