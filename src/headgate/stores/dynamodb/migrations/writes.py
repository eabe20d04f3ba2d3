"""The input and output of a conversion: its context, and the items to write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

from ..exchange import Attributes, Send


class Context(NamedTuple):
    """`ns` is the new id of the namespace `name`. `cascade`: for entities that do not say. `parents`: the stored
    parents of entities, by id.
    """

    ns: str
    name: str
    now_ms: int
    cascade: bool | None = None
    parents: Mapping[str, Mapping[str, Any]] = {}


class NewItem(NamedTuple):
    """An item that does not exist yet."""

    item: Mapping[str, Attributes]

    def send(self, table: str) -> Send:
        put = {"TableName": table, "Item": self.item, "ConditionExpression": "attribute_not_exists(PK)"}
        return Send("PutItem", put, repeatable=True)


class Addition(NamedTuple):
    """Attributes of an item that may exist. It must lack the attribute `absent`; if that is None, only missing
    attributes are added.
    """

    item: Mapping[str, Attributes]
    absent: str | None = None

    def send(self, table: str) -> Send:
        named = [name for name in self.item if name not in ("PK", "SK")]
        value = "#{0} = :{0}" if self.absent else "#{0} = if_not_exists(#{0}, :{0})"
        update: dict[str, Any] = {
            "TableName": table,
            "Key": {name: self.item[name] for name in ("PK", "SK")},
            "UpdateExpression": "SET " + ", ".join(value.format(i) for i in range(len(named))),
            "ExpressionAttributeNames": {f"#{i}": name for i, name in enumerate(named)},
            "ExpressionAttributeValues": {f":{i}": self.item[name] for i, name in enumerate(named)},
        }
        if self.absent:
            update["ConditionExpression"] = f"attribute_not_exists({self.absent})"
        return Send("UpdateItem", update, repeatable=True)


def moment_ms(text: str) -> int:
    """zae-limiter's format of times: 2026-11-18T06:00:00Z."""
    moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    return int(moment.timestamp()) * 1000


def plain_json(value: Any) -> Any:
    """DynamoDB's numbers are decimals, which JSON does not have."""
    return json.loads(json.dumps(value, default=float))
