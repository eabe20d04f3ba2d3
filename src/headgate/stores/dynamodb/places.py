"""Where there are buckets: of an entity, of a resource, or all of a namespace, by the indexes."""

from __future__ import annotations

from typing import Any

from ...core.errors import ValidationError
from ...plan import Plan
from . import keys
from .attributes import attribute
from .conditional_writes import Place
from .deliver import Deliverer
from .exchange import Attributes, Failed, Item, Send
from .slot_items import SlotPlace

_PAGE = 100


def places_plan(
    deliver: Deliverer, ns: str, entity_id: str | None, resource: str | None, cursor: str | None
) -> Plan[tuple[dict[Place, set[str]], str | None]]:
    """The first shards, each with what there is of it (STATE, SLOTS), and where the next page starts.

    Both may be on different pages.
    """
    if entity_id is not None and resource is not None:
        return {Place(ns, entity_id, resource, 0): {keys.STATE, keys.SLOTS}}, None
    index, pk, start = _index(ns, entity_id, resource)
    parameters: dict[str, Any] = {
        "TableName": deliver.table,
        "IndexName": index,
        "KeyConditionExpression": "#pk = :pk AND begins_with(#sk, :sk)",
        "ExpressionAttributeNames": {"#pk": f"{index}PK", "#sk": f"{index}SK"},
        "ExpressionAttributeValues": {":pk": attribute(pk), ":sk": attribute(start)},
        "Limit": _PAGE,
    }
    if cursor is not None:
        parameters["ExclusiveStartKey"] = _start_at(cursor, ns, index)
    reply = yield from deliver.one_plan(Send("Query", parameters, repeatable=True))
    assert not isinstance(reply, Failed)
    found: dict[Place, set[str]] = {}
    for row in reply["Items"]:
        if (kind := row["SK"]["S"]) in (keys.STATE, keys.SLOTS):
            place = Place(*keys.parse_bucket_pk(row["PK"]["S"]))
            if place.shard == 0:
                found.setdefault(place, set()).add(kind)
    last = reply.get("LastEvaluatedKey")
    return found, _cursor(last) if last else None


def _index(ns: str, entity_id: str | None, resource: str | None) -> tuple[str, str, str]:
    """Which index to ask, its partition, and how the sort keys of buckets begin there."""
    if entity_id is not None:
        return keys.GSI3, keys.gsi3_pk_entity(ns, entity_id), "BUCKET#"
    if resource is not None:
        return keys.GSI2, keys.gsi2_pk(ns, resource), "BUCKET#"
    return keys.GSI4, ns, f"{ns}/BUCKET#"


def _cursor(last: Item) -> str:
    """The key of the last bucket of a page, or of the slots beside it."""
    pk: str = last["PK"]["S"]
    return f"{pk}{keys.SLOTS}" if last["SK"]["S"] == keys.SLOTS else pk


def _start_at(cursor: str, ns: str, index: str) -> dict[str, Attributes]:
    """A cursor comes from outside."""
    kind = SlotPlace if cursor.endswith(keys.SLOTS) else Place
    try:
        place = kind(*keys.parse_bucket_pk(cursor.removesuffix(keys.SLOTS)))
    except ValueError:
        raise ValidationError(f"cursor {cursor!r} is none that this listing has given") from None
    if place.ns != ns:
        raise ValidationError(f"cursor {cursor!r} is of another namespace")
    fixed = place.fixed()
    return {**place.key, f"{index}PK": fixed[f"{index}PK"], f"{index}SK": fixed[f"{index}SK"]}
