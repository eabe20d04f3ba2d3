"""Splitting what `pressure` asks for, as the store itself does it."""

from __future__ import annotations

from ...plan import Plan
from ...stores.dynamodb import keys
from ...stores.dynamodb.cache import Cache
from ...stores.dynamodb.deliver import Deliverer
from ...stores.dynamodb.exchange import Failed, Send
from ...stores.dynamodb.places import ItemPlace
from ...stores.dynamodb.rows import read_row
from ...stores.dynamodb.shards import Shards
from ...stores.dynamodb.usage import UsageCounters
from .pressure import Split


def split_plan(deliverer: Deliverer, split: Split) -> Plan[bool]:
    """Whether it is split now. The stream tells of the past: who has more shards by now has been relieved."""
    place = ItemPlace(*keys.parse_bucket_pk(split.pk))
    read = {"TableName": deliverer.table, "Key": place.key, "ConsistentRead": True}
    reply = yield from deliverer.one_plan(Send("GetItem", read, repeatable=True))
    assert not isinstance(reply, Failed)
    if "Item" not in reply or read_row(reply["Item"]).shard_count != split.shards:
        return False
    shards = Shards(deliverer, Cache(), UsageCounters(deliverer))
    return (yield from shards.split_plan(place, expected=split.shards)) > split.shards
