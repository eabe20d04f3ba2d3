"""Items as DynamoDB spells them, and reading them: by their keys, or by a query."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, TypeAlias

from ...plan import Plan, Sleep
from .deliver import Deliverer
from .exchange import Attributes, Failed, Item, MoreTime, Send

ItemKey: TypeAlias = "tuple[str, str]"  # PK and SK
Values: TypeAlias = "Mapping[str, str | int | Decimal | bool | None]"

_AT_ONCE = 100  # the most that one BatchGetItem takes
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.2


# Spelling. JSON from users is stored as text.


def attribute(value: str | int | Decimal | bool) -> Attributes:
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, str):
        return {"S": value}
    return {"N": str(value) if isinstance(value, int) else f"{value:f}"}


def item_of(values: Values) -> dict[str, Attributes]:
    """Values that are None are left out."""
    return {name: attribute(value) for name, value in values.items() if value is not None}


def value_of(found: Attributes) -> Any:
    ((kind, value),) = found.items()
    if kind == "N":
        number = Decimal(value)
        return int(number) if number == number.to_integral_value() else number
    return value


def values_of(item: Item) -> dict[str, Any]:
    return {name: value_of(found) for name, found in item.items()}


def key_of(item_key: ItemKey) -> dict[str, Attributes]:
    pk, sk = item_key
    return {"PK": {"S": pk}, "SK": {"S": sk}}


def item_key_of(item: Item) -> ItemKey:
    return item["PK"]["S"], item["SK"]["S"]


# Reading


def read_items_plan(deliver: Deliverer, wanted: Iterable[ItemKey]) -> Plan[dict[ItemKey, Item]]:
    """The items that exist, each read consistently, but not all at one moment.

    Items that DynamoDB leaves out for lack of capacity are requested again.
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
                found[item_key_of(item)] = item
            left += reply.get("UnprocessedKeys", {}).get(deliver.table, {}).get("Keys", [])
        if left:
            yield from Sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, _LONGEST_PAUSE)
    return found


def _batch(table: str, piece: list[Any]) -> Send:
    return Send("BatchGetItem", {"RequestItems": {table: {"Keys": piece, "ConsistentRead": True}}}, repeatable=True)


def query(pk: str, sk: str = "", index: str = "") -> dict[str, Any]:
    """The parameters that find the items of a partition whose sort key begins with `sk`.

    Without an index, it is a partition of the table, and the read is consistent.
    """
    names = {"#pk": f"{index}PK"}
    values = {":pk": attribute(pk)}
    condition = "#pk = :pk"
    if sk:  # a key is never empty
        names["#sk"], values[":sk"] = f"{index}SK", attribute(sk)
        condition += " AND begins_with(#sk, :sk)"
    return {
        **({"IndexName": index} if index else {"ConsistentRead": True}),
        "KeyConditionExpression": condition,
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def page_plan(
    deliver: Deliverer, parameters: Mapping[str, Any], start: Any = None, operation: str = "Query"
) -> Plan[tuple[Mapping[str, Any], Any]]:
    """One reply, and where the next page starts, if there is one."""
    begin = {"ExclusiveStartKey": start} if start else {}
    reply = yield from deliver.read_plan(operation, **parameters, **begin)
    return reply, reply.get("LastEvaluatedKey")


def all_pages_plan(
    deliver: Deliverer, parameters: Mapping[str, Any], operation: str = "Query", *, more_time: bool = False
) -> Plan[list[Mapping[str, Any]]]:
    """All replies. `more_time`: the deadline starts again with each page."""
    replies: list[Mapping[str, Any]] = []
    start: Any = None
    while start or not replies:
        if more_time:
            yield from MoreTime()
        reply, start = yield from page_plan(deliver, parameters, start, operation)
        replies.append(reply)
    return replies


def query_plan(deliver: Deliverer, parameters: Mapping[str, Any], *, more_time: bool = False) -> Plan[list[Item]]:
    """The items of all pages."""
    replies = yield from all_pages_plan(deliver, parameters, more_time=more_time)
    return [item for reply in replies for item in reply["Items"]]
