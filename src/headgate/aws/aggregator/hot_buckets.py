"""Finding buckets that are written too often for one item, and splitting them before DynamoDB throttles them.

One item accepts 1,000 write units a second. An item counts its own writes, so the difference between two records is
exact even if records are delivered twice. An item with 800 units in a second is hot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from ...plan import Plan
from ...stores.dynamodb import keys
from ...stores.dynamodb.cache import Cache
from ...stores.dynamodb.deliver import Deliverer
from ...stores.dynamodb.exchange import Failed, Send
from ...stores.dynamodb.places import ItemPlace
from ...stores.dynamodb.rows import read_row
from ...stores.dynamodb.shards import Shards
from ...stores.dynamodb.usage import UsageCounters
from .records import BucketChange

HOT_UNITS_PER_SECOND = 800
_REMEMBERED = 10_000  # items; forgetting one delays its split by a second


class Split(NamedTuple):
    """Double the shards of the item at `pk`, if there are still `shards`."""

    pk: str
    shards: int


Splitter: TypeAlias = Callable[[Split], bool]  # returns whether it was split


class _Second(NamedTuple):
    at: int
    writes: int
    at_ms: int


class HotBuckets:
    """It remembers the start of the current second between batches. Without that it only notices later."""

    def __init__(self) -> None:
        self._seconds: dict[str, _Second] = {}

    def is_hot(self, change: BucketChange) -> bool:
        writes = change.writes
        began = self._seconds.get(change.pk)
        if began is None or began.at != change.position.at or writes.after < began.writes:
            if len(self._seconds) >= _REMEMBERED:
                self._seconds.clear()
            began = self._seconds[change.pk] = _Second(change.position.at, writes.before, writes.before_ms)
        # The stream's times may be as coarse as a minute. Only then the writers' clocks count, which differ.
        seconds = max(1.0, (writes.after_ms - began.at_ms) / 1000)
        return (writes.after - began.writes) * writes.units >= HOT_UNITS_PER_SECOND * seconds


def wanted_splits(changes: Iterable[BucketChange], pressure: HotBuckets) -> list[Split]:
    """The splits to make, each once, in this order. Shard 0 is split first, and the others follow."""
    wanted: dict[Split, None] = {}
    for change in changes:
        writes = change.writes
        if change.shard == 0:
            shards = writes.shards_before
            while shards < writes.shards:
                wanted |= {_split(change, shard, shards): None for shard in range(1, shards)}
                shards *= 2
        if pressure.is_hot(change):
            wanted |= {_split(change, 0, writes.shards): None, _split(change, change.shard, writes.shards): None}
    return list(wanted)


def _split(change: BucketChange, shard: int, shards: int) -> Split:
    return Split(keys.pk_bucket(change.ns, change.entity_id, change.resource, shard), shards)


def split_plan(deliverer: Deliverer, split: Split) -> Plan[bool]:
    """Split as the store does; whether it was done. Stream records are old: an item with more shards by now is left as
    it is.
    """
    place = ItemPlace(*keys.parse_bucket_pk(split.pk))
    read = {"TableName": deliverer.table, "Key": place.key, "ConsistentRead": True}
    reply = yield from deliverer.one_plan(Send("GetItem", read, repeatable=True))
    assert not isinstance(reply, Failed)
    if "Item" not in reply or read_row(reply["Item"]).shard_count != split.shards:
        return False
    shards = Shards(deliverer, Cache(), UsageCounters(deliverer))
    return (yield from shards.split_plan(place, expected=split.shards)) > split.shards
