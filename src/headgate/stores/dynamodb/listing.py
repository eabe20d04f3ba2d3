"""Listing records by a prefix: in which partition of the table, or of which index, they are.

Queries of the table are consistent. DynamoDB's indexes follow it with a delay, of some milliseconds as a rule: a record
that was written just now may be missing in a list. It is never listed when it is gone, or as it was before, since what
an index names is read from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ...core.errors import ValidationError
from ...core.records import Page, Record
from ...plan import Plan
from . import keys
from .deliver import Deliverer
from .documents import Home, ItemKey, home_of, name_in, namespace_of
from .exchange import Attributes, Failed, Item, Send
from .reads import read_items_plan


class Partition(NamedTuple):
    """One of an index or (gsi "") of the table itself, and how the sort key begins.

    `name` makes a record's name of an item's PK and SK.
    """

    gsi: str
    pk: str
    sk: str
    name: Callable[[str, str], str]

    def parameters(self, table: str, start: Mapping[str, Any] | None, limit: int) -> dict[str, Any]:
        names = {"#pk": f"{self.gsi}PK"}
        values: dict[str, Attributes] = {":pk": {"S": self.pk}}
        condition = "#pk = :pk"
        if self.sk:  # no value of a key is empty
            names["#sk"], values[":sk"] = f"{self.gsi}SK", {"S": self.sk}
            condition += " AND begins_with(#sk, :sk)"
        where = {"IndexName": self.gsi} if self.gsi else {"ConsistentRead": True}
        return {
            "TableName": table,
            **where,
            "KeyConditionExpression": condition,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
            "Limit": limit,
            **({"ExclusiveStartKey": start} if start else {}),
        }

    def position(self, home: Home) -> dict[str, Attributes]:
        """Where a record stands in it, whether it is still there or not."""
        places = {"PK": home.pk, "SK": home.sk, **home.indexes()}
        wanted = {"PK", "SK", f"{self.gsi}PK", f"{self.gsi}SK"}
        return {attribute: {"S": place} for attribute, place in places.items() if attribute in wanted}


def partition_of(prefix: str, ns: str) -> Partition:
    words = name_in(prefix).split("#")
    found = _of_limits(ns, words) or _of_entities(ns, words)
    if found is not None:
        return found
    match words:
        case ["namespace", start] if ns == keys.REGISTRY:
            return Partition("", keys.pk_system(ns), keys.sk_namespace(start), lambda pk, sk: f"namespace#{_last(sk)}")
        case ["entity" | "child" | "custom" | "limits" | "audit" | "audited", _, *_]:
            raise ValidationError(f"records cannot be listed by the prefix {prefix!r} on this store")
    start = keys.sk_record(name_in(prefix))
    return Partition("", keys.pk_record(ns), start, lambda pk, sk: sk.partition("#RECORD#")[2])


def _of_limits(ns: str, words: list[str]) -> Partition | None:
    match words:
        case ["custom", resource, start]:
            with_limits = keys.gsi3_pk_config(ns, resource or keys.DEFAULT)
            return Partition(keys.GSI3, with_limits, start, lambda pk, sk: f"custom#{resource}#{_id(pk)}")
        case ["limits", "resource", start]:
            return Partition(keys.GSI4, ns, keys.pk_resource(ns, start), lambda pk, sk: f"limits#resource#{_id(pk)}")
        case ["limits", "entity", start]:
            return Partition(keys.GSI2, keys.gsi2_pk_configs(ns), start, _entity_limits)
        case ["limits", "entity", entity_id, start] if entity_id:
            return Partition("", keys.pk_entity(ns, entity_id), keys.sk_config(start), _entity_limits)
    return None


def _of_entities(ns: str, words: list[str]) -> Partition | None:
    match words:
        case ["entity", start]:
            return Partition(keys.GSI2, keys.gsi2_pk_entities(ns), start, lambda pk, sk: f"entity#{_id(pk)}")
        case ["child", parent_id, start] if parent_id:
            children = keys.gsi1_sk(start)
            return Partition(
                keys.GSI1, keys.gsi1_pk(ns, parent_id), children, lambda pk, sk: f"child#{parent_id}#{_id(pk)}"
            )
        case ["audit", start]:
            return Partition("", keys.pk_audit(ns), keys.sk_audit(start), lambda pk, sk: f"audit#{_last(sk)}")
        case ["audited", entity_id, start] if entity_id:
            of_entity = keys.pk_audit(ns, entity_id)
            return Partition("", of_entity, keys.sk_audited(start), lambda pk, sk: f"audited#{entity_id}#{_last(sk)}")
    return None


def _id(pk: str) -> str:
    return keys.parse_pk(pk)[2]


def _last(sk: str) -> str:
    return sk.rpartition("#")[2]


def _entity_limits(pk: str, sk: str) -> str:
    resource = sk.removeprefix(keys.sk_config(""))
    return f"limits#entity#{_id(pk)}#{'' if resource == keys.DEFAULT else resource}"


def list_plan(
    deliver: Deliverer, ns: str, prefix: str, cursor: str | None, limit: int, now_ms: int
) -> Plan[Page[Record]]:
    """A page is full unless it is the last one. The cursor is the key of its last record."""
    partition = partition_of(prefix, ns)
    start = None if cursor is None else partition.position(_home_of_cursor(cursor, prefix, ns))
    found: list[Record] = []
    while True:
        wanted = limit + 1 - len(found)
        reply = yield from deliver.one_plan(
            Send("Query", partition.parameters(deliver.table, start, wanted), repeatable=True)
        )
        assert not isinstance(reply, Failed)
        homes = [_home_of_row(row, partition, prefix, ns) for row in reply["Items"]]
        items = {home.item_key: row for home, row in zip(homes, reply["Items"])}
        if partition.gsi:
            items = yield from read_items_plan(deliver, items)
        found += _records(homes, items, now_ms)
        if len(found) > limit:
            return Page(found[:limit], found[limit - 1].key)
        start = reply.get("LastEvaluatedKey")
        if not start:
            return Page(found)


def _records(homes: Sequence[Home], items: Mapping[ItemKey, Item], now_ms: int) -> list[Record]:
    """Those that there are."""
    records = [home.record(items.get(home.item_key), now_ms) for home in homes]
    return [record for record in records if record is not None]


def _home_of_row(row: Item, partition: Partition, prefix: str, ns: str) -> Home:
    name = partition.name(row["PK"]["S"], row["SK"]["S"])
    return home_of(f"{namespace_of([prefix])}/{name}", ns)


def _home_of_cursor(cursor: str, prefix: str, ns: str) -> Home:
    if not cursor.startswith(prefix):
        raise ValidationError(f"cursor {cursor!r} is not of this list: pass the one that the page before it has")
    return home_of(cursor, ns)
