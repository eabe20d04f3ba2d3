"""A bucket that is written too often for one item is split over several.

DynamoDB accepts about a thousand writes a second for one item. A hot item is split: it and its new sibling each have
half of what it had, so there are no more tokens than before. Shard 0 leads: it is split first, and its count is the
highest. Shard i of n is split into i and i + n.

A split is one write to the item. It changes the count and keeps V and the limit as they were; the sibling is created
from these. If the process dies in between, half of the tokens are missing, not doubled, until the next process that
misses the sibling creates it.

Most requests go to one random shard. A request that is too large for it, or that it refuses, is decided on all shards
and written in one transaction. Items with shards have no time to live, because all of them must be kept or none;
`sweep_plan` merges those that are full again. A merged shard may still exist because of the usage in it (usage.py); it
counts as absent.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ...core.decide import Part
from ...plan import Plan
from . import keys
from .cache import Cache, ItemSource
from .conditional_writes import Write
from .deliver import Deliverer
from .exchange import Attributes, Failed, Item, Send
from .items import attribute
from .ledger import BucketLedger, Ledger
from .places import ItemPlace
from .rows import (
    NEW,
    PREFIX,
    Row,
    begins_with_use,
    bucket_of,
    fullness,
    has_buckets,
    read_limit,
    read_row,
    written_limit,
)
from .usage import UsageCounters
from .writer import News

Condition: TypeAlias = "tuple[str, Mapping[str, Attributes]]"

PRESSURE = 800  # writes a second to one item: 80 % of what DynamoDB accepts
_TRIES = 5


class Shards(ItemSource):
    def __init__(self, deliver: Deliverer, cache: Cache, usage_counters: UsageCounters) -> None:
        super().__init__(cache)
        self._deliver = deliver
        self._usage_counters = usage_counters
        self._hot: dict[ItemPlace, None] = {}
        self._unfinished: dict[ItemPlace, None] = {}

    # In the rounds of settling

    def ledger(self, first: ItemPlace, now_ms: int, *, gives: bool = False) -> BucketLedger:
        """The item for a request: the only one, or the fuller of two random shards. A refund goes to the emptiest of
        all, because a full one would lose it.
        """
        place = first
        seen = self.cache.get(first)
        if seen is not None and seen.row.shard_count > 1:
            shards = [first._replace(shard=shard) for shard in range(seen.row.shard_count)]
            place = max(shards, key=self._used) if gives else min(random.sample(shards, 2), key=self._used)
            seen = self.cache.get(place)
        found = BucketLedger(place, seen.row if seen else None, now_ms, seen.at_ms if seen else None)
        found.source = self
        found.usage_ms = self._usage_counters.kept_ms
        return found

    def _used(self, place: ItemPlace) -> int:
        seen = self.cache.get(place)
        return max(map(fullness, seen.row.states.values()), default=0) if seen else 0

    def overflows(self, ledger: Ledger, parts: Sequence[Part]) -> bool:
        """More is given back than this shard lacks, and another may have room for it. Or more of a quota is charged
        than this shard has: it would be in debt while others have tokens to give away.

        If all are assumed to be full, they are read like empty ones, not too often: otherwise every release of a bucket
        that is hardly used would read all shards.
        """
        if ledger.shards == 1:
            return False
        assert isinstance(ledger, BucketLedger)
        for part in parts:
            left_milli = part.limit.capacity_milli - ledger.missing_milli(part)
            if part.limit.is_quota and part.amount_milli > 0 and left_milli < part.amount_milli * ledger.shards:
                return True
        too_much = [part for part in parts if ledger.missing_milli(part) < -part.amount_milli * ledger.shards]
        if not too_much:
            return False
        return any(self._lack(ledger, part) for part in too_much) or self.cache.may_look(_first(ledger.place))

    def _lack(self, ledger: Ledger, part: Part) -> bool:
        """Whether another shard of a bucket is not full, or nothing is known of it."""
        for shard in range(ledger.shards):
            place = ledger.place._replace(shard=shard)
            seen = self.cache.get(place)
            if seen is None:
                return True
            if place != ledger.place and seen.row.has(part.limit):
                bucket = bucket_of(seen.row.states[part.limit.name], ledger.now_ms)
                if bucket.limit.capacity_milli - bucket.tokens_milli >= ledger.shards:
                    return True
        return False

    def learn(self, ledger: Ledger, news: News | None, write: Write | None) -> None:
        place = ledger.place
        if news is not None and news.row is NEW and place.shard:
            ledger.throttled = False
            self._go_to_parent(ledger)
            return
        super().learn(ledger, news, write)
        if news is None:
            return
        row = news.row
        if row is not None and news.done:
            self._usage_counters.notice(place, row, ledger.now_ms)
        if news.throttled or (row is not None and self.cache.writes_per_second(place, row.writes) >= PRESSURE):
            self._hot[place] = None

    def _go_to_parent(self, ledger: Ledger) -> None:
        """A shard that does not exist yet: its tokens are still with the shard it will be split from."""
        self.cache.forget(ledger.place)
        ledger.place = parent(ledger.place)
        seen = self.cache.get(ledger.place)
        ledger.learn(seen.row if seen else None)
        ledger.fresh = False
        self._unfinished[ledger.place] = None

    def relieve_plan(self) -> Plan[None]:
        """Split hot items, and finish splits that others have begun."""
        while (place := _any_of(self._hot)) is not None:
            yield from self.split_plan(place)
        while (place := _any_of(self._unfinished)) is not None:
            yield from self.split_plan(place, following=True)

    # Splitting

    def split_plan(self, place: ItemPlace, *, following: bool = False, expected: int | None = None) -> Plan[int]:
        """Split an item in two, unless it has the most shards allowed. Returns the number of shards.

        `following`: only if shard 0 was split before. `expected`: only if it has this many shards.
        """
        row = yield from self._read_plan(place)
        if row is None:
            return 0
        count = row.shard_count
        most = count if following else self._deliver.settings.max_shards
        if place.shard:
            leader = yield from self._read_plan(place._replace(shard=0))
            most = leader.shard_count if leader else 0
        yield from self.finish_plan(place, count)
        if count * 2 > most or expected not in (None, count) or _is_one(row):
            return count
        split = yield from self._deliver.one_plan(self._split(place, row))
        if isinstance(split, Failed):  # another writer was faster
            return count
        self.cache.put(place, read_row(split["Attributes"]), {})
        self.cache.forget(place._replace(shard=place.shard + count))  # known from before a merge
        yield from self.finish_plan(place, count * 2)
        return count * 2

    def _split(self, place: ItemPlace, row: Row) -> Send:
        names = {"#sc": "shard_count", "#ttl": "ttl"}
        sets = ["#sc = :double"]
        for i, name in enumerate(row.states):
            for short, suffix in (("v", "vt"), ("s", "sv"), ("l", "lm"), ("m", "sl")):
                names[f"#{short}{i}"] = f"{PREFIX}{name}_{suffix}"
            sets += [f"#s{i} = #v{i}", f"#m{i} = #l{i}"]
        count = row.shard_count
        return Send(
            "UpdateItem",
            {
                "TableName": self._deliver.table,
                "Key": place.key,
                "UpdateExpression": f"SET {', '.join(sets)} REMOVE #ttl",
                "ConditionExpression": "#sc = :count",
                "ExpressionAttributeNames": names,
                "ExpressionAttributeValues": {":double": attribute(count * 2), ":count": attribute(count)},
                "ReturnValues": "ALL_NEW",
            },
        )

    def finish_plan(self, place: ItemPlace, count: int) -> Plan[None]:
        """Create the other half of an item that now has `count` shards, if there is none."""
        sibling = place._replace(shard=place.shard + count // 2)
        if place.shard >= count // 2:  # it is the sibling itself
            return
        if self.cache.get(sibling) is not None or (yield from self._read_plan(sibling)) is not None:
            return
        for _ in range(_TRIES):
            item = yield from self._item_plan(place)
            if item is None or read_row(item).shard_count != count:
                return
            made = yield from self._deliver.one_plan(self._sibling(place, sibling, item, count))
            if not isinstance(made, Failed) or any(reason.code == "ConditionalCheckFailed" for reason in made.reasons):
                return

    def _sibling(self, place: ItemPlace, sibling: ItemPlace, item: Item, count: int) -> Send:
        made = {
            **sibling.fixed(),
            "shard_count": attribute(count),
            "wcu": attribute(0),
            "at": item["at"],
        }
        for name, state in read_row(item).states.items():
            kept = item.get(f"{PREFIX}{name}_sv", item[f"{PREFIX}{name}_vt"])
            # V counts in units of its limit, which may have changed since. A penalty that came since is on all shards.
            limit, _, ends_ms = read_limit(name, item.get(f"{PREFIX}{name}_sl", item[f"{PREFIX}{name}_lm"])["S"])
            written = attribute(written_limit(limit, state.blocked_until_ms, ends_ms))
            made |= {f"{PREFIX}{name}_vt": kept, f"{PREFIX}{name}_lm": written, f"{PREFIX}{name}_tc": attribute(0)}
            made |= {key: item[key] for suffix in ("rv", "at") if (key := f"{PREFIX}{name}_{suffix}") in item}
        table = self._deliver.table
        unchanged = {
            "TableName": table,
            "Key": place.key,
            "ConditionExpression": "shard_count = :count",
            "ExpressionAttributeValues": {":count": attribute(count)},
        }
        absent = if_no_shard(table, sibling)
        new = {
            **absent,
            "UpdateExpression": f"SET {', '.join(f'#{i} = :{i}' for i in range(len(made)))} REMOVE #ttl",
            "ExpressionAttributeNames": {"#ttl": "ttl"} | {f"#{i}": name for i, name in enumerate(made)},
            "ExpressionAttributeValues": absent["ExpressionAttributeValues"]
            | {f":{i}": value for i, value in enumerate(made.values())},
        }
        listed = {"TableName": table, "Item": sharded_item(place)}
        items = [{"ConditionCheck": unchanged}, {"Update": new}, {"Put": listed}]
        return Send("TransactWriteItems", {"TransactItems": items}, repeatable=True)

    def _read_plan(self, place: ItemPlace) -> Plan[Row | None]:
        item = yield from self._item_plan(place)
        return None if item is None else read_row(item)

    def _item_plan(self, place: ItemPlace) -> Plan[Item | None]:
        reply = yield from self._deliver.read_plan("GetItem", Key=place.key, ConsistentRead=True)
        item: Item | None = reply.get("Item")
        return item if has_buckets(item) else None


def _any_of(places: dict[ItemPlace, None]) -> ItemPlace | None:
    """Take one, unless another thread has taken the last."""
    try:
        return places.popitem()[0]
    except KeyError:
        return None


def _is_one(row: Row) -> bool:
    """Whether it has a quota that shards cannot have (unite.py), which was used in this window or the one before."""
    latest_ms = max((state.at_ms for state in row.states.values()), default=0)
    return any(
        begins_with_use(limit) and latest_ms < state.ends_ms + limit.period_ms
        for state in row.states.values()
        if (limit := state.limit)
    )


def _first(place: ItemPlace) -> ItemPlace:
    return place._replace(shard=0)


def parent(place: ItemPlace) -> ItemPlace:
    """The shard that this one is split from."""
    return place._replace(shard=place.shard - (1 << (place.shard.bit_length() - 1)))


def if_unchanged(row: Row) -> Condition:
    values = {":count": attribute(row.shard_count), ":writes": attribute(row.writes)}
    return "shard_count = :count AND wcu = :writes", values


def if_no_shard(table: str, place: ItemPlace) -> dict[str, Any]:
    """The condition that there is no such item, or that it only holds usage from before a merge."""
    return {
        "TableName": table,
        "Key": place.key,
        "ConditionExpression": "attribute_not_exists(PK) OR shard_count = :none",
        "ExpressionAttributeValues": {":none": attribute(0)},
    }


def sharded_item(place: ItemPlace) -> dict[str, object]:
    """The note by which a sweep finds buckets with shards."""
    return {
        "PK": {"S": keys.pk_sharded(place.ns)},
        "SK": {"S": keys.sk_sharded(place.entity_id, place.resource)},
        "GSI4PK": {"S": place.ns},
        "GSI4SK": {"S": keys.pk_sharded(place.ns)},
    }
