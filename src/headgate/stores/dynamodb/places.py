"""The items of buckets and slots: their keys, and finding them through the indexes."""

from __future__ import annotations

from typing import NamedTuple

from ...core.errors import ValidationError
from ...plan import Plan
from . import keys
from .deliver import Deliverer
from .exchange import Attributes, Item
from .items import ItemKey, attribute, item_of, page_plan, query

_PAGE = 100


class ItemPlace(NamedTuple):
    """The key of an item: one shard of all buckets of an entity on a resource."""

    ns: str
    entity_id: str
    resource: str
    shard: int

    @property
    def pk(self) -> str:
        return keys.pk_bucket(*self)

    @property
    def item_key(self) -> ItemKey:
        return self.pk, keys.STATE

    @property
    def key(self) -> dict[str, Attributes]:
        return {"PK": {"S": self.pk}, "SK": {"S": keys.STATE}}

    def fixed(self) -> dict[str, Attributes]:
        """The attributes that follow from the key."""
        ns, entity_id, resource, shard = self
        return item_of(
            {
                "entity_id": entity_id,
                "resource": resource,
                "GSI2PK": keys.gsi2_pk(ns, resource),
                "GSI2SK": keys.gsi2_sk_bucket(entity_id, shard),
                "GSI3PK": keys.gsi3_pk_entity(ns, entity_id),
                "GSI3SK": keys.gsi3_sk_bucket(resource, shard),
                "GSI4PK": ns,
                "GSI4SK": self.pk,
            }
        )


class SlotPlace(ItemPlace):
    """The key of the item with the slots, beside the buckets."""

    __slots__ = ()

    @property
    def item_key(self) -> ItemKey:
        return self.pk, keys.SLOTS

    @property
    def key(self) -> dict[str, Attributes]:
        return {"PK": {"S": self.pk}, "SK": {"S": keys.SLOTS}}

    def fixed(self) -> dict[str, Attributes]:
        found = keys.gsi4_sk_slots(self.ns, self.entity_id, self.resource)
        return {**super().fixed(), "GSI4SK": attribute(found)}


def places_plan(
    deliver: Deliverer, ns: str, entity_id: str | None, resource: str | None, cursor: str | None
) -> Plan[tuple[dict[ItemPlace, set[str]], str | None]]:
    """The first shards, each with the items it has (STATE, SLOTS), and where the next page starts.

    The two items may be on different pages.
    """
    if entity_id is not None and resource is not None:
        return {ItemPlace(ns, entity_id, resource, 0): {keys.STATE, keys.SLOTS}}, None
    index, pk, sk = _index(ns, entity_id, resource)
    start = None if cursor is None else _start_at(cursor, ns, index)
    reply, last = yield from page_plan(deliver, {**query(pk, sk, index), "Limit": _PAGE}, start)
    found: dict[ItemPlace, set[str]] = {}
    for row in reply["Items"]:
        if (kind := row["SK"]["S"]) in (keys.STATE, keys.SLOTS):
            place = ItemPlace(*keys.parse_bucket_pk(row["PK"]["S"]))
            if place.shard == 0:
                found.setdefault(place, set()).add(kind)
    return found, _cursor(last) if last else None


def _index(ns: str, entity_id: str | None, resource: str | None) -> tuple[str, str, str]:
    """The index to query, its partition, and how the sort keys of buckets begin there."""
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
    """A cursor comes from outside, so it is checked."""
    kind = SlotPlace if cursor.endswith(keys.SLOTS) else ItemPlace
    try:
        place = kind(*keys.parse_bucket_pk(cursor.removesuffix(keys.SLOTS)))
    except ValueError:
        raise ValidationError(f"cursor {cursor!r} is not of this list: pass the cursor of the page before") from None
    if place.ns != ns:
        raise ValidationError(f"cursor {cursor!r} is of another namespace")
    fixed = place.fixed()
    return {**place.key, f"{index}PK": fixed[f"{index}PK"], f"{index}SK": fixed[f"{index}SK"]}
