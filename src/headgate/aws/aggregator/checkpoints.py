"""Up to where a process has read each shard of the stream, so that the next one need not begin at the beginning.

Nothing depends on it but time: what is read twice is counted once (usage_items.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ...plan import Plan
from ...stores.dynamodb import keys
from ...stores.dynamodb.deliver import Deliverer
from ...stores.dynamodb.exchange import Failed, Send
from ...stores.dynamodb.items import attribute, item_of

END = "end"  # instead of a sequence number: the shard is closed and read
_PK = keys.pk_record(keys.REGISTRY)
_KEPT_SECONDS = 8 * 86400  # a shard is gone after a day


def is_checkpoint(record: Any) -> bool:
    """A record of the stream about a checkpoint: to note that it was read would make another one."""
    found = record.get("dynamodb", {}).get("Keys", {}) if isinstance(record, Mapping) else {}
    return bool(found.get("PK") == {"S": _PK} and found.get("SK", {}).get("S", "").startswith(_sk("")))


def load_plan(deliverer: Deliverer, label: str) -> Plan[dict[str, str]]:
    """Sequence number, or END, by shard."""
    parameters: dict[str, Any] = {
        "TableName": deliverer.table,
        "KeyConditionExpression": "PK = :pk AND begins_with(SK, :sk)",
        "ExpressionAttributeValues": {":pk": attribute(_PK), ":sk": attribute(_sk(label + "/"))},
        "ConsistentRead": True,
    }
    found: dict[str, str] = {}
    while True:
        reply = yield from deliverer.one_plan(Send("Query", parameters, repeatable=True))
        assert not isinstance(reply, Failed)  # a query has no condition
        for item in reply["Items"]:
            found[item["SK"]["S"].rpartition("/")[2]] = item["position"]["S"]
        if "LastEvaluatedKey" not in reply:
            return found
        parameters["ExclusiveStartKey"] = reply["LastEvaluatedKey"]


def save_plan(deliverer: Deliverer, label: str, positions: Mapping[str, str]) -> Plan[None]:
    now = int(time.time())
    yield from deliverer.all_plan(
        [
            Send(
                "PutItem",
                {
                    "TableName": deliverer.table,
                    "Item": item_of(
                        {
                            "PK": _PK,
                            "SK": _sk(f"{label}/{shard}"),
                            "position": position,
                            "updated_at_ms": now * 1000,
                            "ttl": now + _KEPT_SECONDS,
                            "GSI4PK": keys.REGISTRY,
                            "GSI4SK": _PK,
                        }
                    ),
                },
                repeatable=True,
            )
            for shard, position in positions.items()
        ]
    )


def _sk(rest: str) -> str:
    return keys.sk_record(f"aggregator/{rest}")
