"""Reading items by their keys, any number of them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from ...plan import Plan, Sleep
from .deliver import Deliverer
from .documents import ItemKey
from .exchange import Attributes, Failed, Item, Send

_AT_ONCE = 100  # what one BatchGetItem takes
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.2


def key_of(item_key: ItemKey) -> dict[str, Attributes]:
    pk, sk = item_key
    return {"PK": {"S": pk}, "SK": {"S": sk}}


def read_items_plan(deliver: Deliverer, wanted: Iterable[ItemKey]) -> Plan[dict[ItemKey, Item]]:
    """The items that exist, each as it is now. What DynamoDB leaves out for lack of capacity is asked for again.

    Each is read consistently, but not all at one moment.
    """
    found: dict[ItemKey, Item] = {}
    left: list[Any] = [key_of(item_key) for item_key in dict.fromkeys(wanted)]
    pause = _FIRST_PAUSE
    while left:
        pieces = [left[start : start + _AT_ONCE] for start in range(0, len(left), _AT_ONCE)]
        replies = yield from deliver.all_plan([_batch(deliver.table, piece) for piece in pieces])
        left = []
        for reply in replies:
            assert not isinstance(reply, Failed)
            for item in reply.get("Responses", {}).get(deliver.table, []):
                found[item["PK"]["S"], item["SK"]["S"]] = item
            left += reply.get("UnprocessedKeys", {}).get(deliver.table, {}).get("Keys", [])
        if left:
            yield from Sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, _LONGEST_PAUSE)
    return found


def _batch(table: str, piece: list[Any]) -> Send:
    return Send("BatchGetItem", {"RequestItems": {table: {"Keys": piece, "ConsistentRead": True}}}, repeatable=True)
