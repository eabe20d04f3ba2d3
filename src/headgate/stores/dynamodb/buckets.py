"""Buckets from outside: listing, deleting, and taking back what is spread over shards and no longer used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.bucket import Bucket
from ...core.decide import State
from ...core.errors import ValidationError
from ...core.names import parse_bucket_key
from ...core.records import BucketRow, Page, Swept
from ...plan import Plan
from . import keys
from .across import Across, Pool
from .attributes import attribute
from .bucket_ledger import BucketLedger
from .cache import Cache
from .deliver import Deliverer
from .exchange import Attributes, Failed, Item, Send
from .forms import Place
from .namespaces import Namespaces
from .rows import NEW, Row, bucket_of
from .shards import sharded_item
from .slot_items import SlotPlace
from .slots import SlotShelf, listed

_PAGE = 100


class Buckets:
    def __init__(
        self, deliver: Deliverer, namespaces: Namespaces, cache: Cache, across: Across, slots: SlotShelf
    ) -> None:
        self._deliver = deliver
        self._namespaces = namespaces
        self._cache = cache
        self._across = across
        self._slots = slots

    # Listing

    def list_plan(
        self, namespace: str, entity_id: str | None, resource: str | None, cursor: str | None, now_ms: int
    ) -> Plan[Page[BucketRow]]:
        ns = yield from self._namespaces.find_plan(namespace)
        if ns is None:
            return Page([])
        after: str | None = None
        if entity_id is not None and resource is not None:
            places = [Place(ns, entity_id, resource, 0)]
        else:
            places, after = yield from self._first_shards_plan(ns, entity_id, resource, cursor)
        pools = yield from self._across.pools_plan(places, now_ms)
        slots = yield from self._slots.rows_plan(places)
        rows = [
            BucketRow(place.entity_id, place.resource, states)
            for place, pool in zip(places, pools)
            if (states := _states(pool, slots.get(place, NEW), now_ms))
        ]
        return Page(rows, after)

    def _first_shards_plan(
        self, ns: str, entity_id: str | None, resource: str | None, cursor: str | None
    ) -> Plan[tuple[list[Place], str | None]]:
        if entity_id is not None:
            index, pk, start = keys.GSI3, keys.gsi3_pk_entity(ns, entity_id), "BUCKET#"
        elif resource is not None:
            index, pk, start = keys.GSI2, keys.gsi2_pk(ns, resource), "BUCKET#"
        else:
            index, pk, start = keys.GSI4, ns, f"{ns}/BUCKET#"
        parameters: dict[str, Any] = {
            "TableName": self._deliver.table,
            "IndexName": index,
            "KeyConditionExpression": "#pk = :pk AND begins_with(#sk, :sk)",
            "ExpressionAttributeNames": {"#pk": f"{index}PK", "#sk": f"{index}SK"},
            "ExpressionAttributeValues": {":pk": attribute(pk), ":sk": attribute(start)},
            "Limit": _PAGE,
        }
        if cursor is not None:
            parameters["ExclusiveStartKey"] = _start_at(cursor, ns, index)
        reply = yield from self._deliver.one_plan(Send("Query", parameters, repeatable=True))
        assert not isinstance(reply, Failed)
        found = {row["PK"]["S"]: None for row in reply["Items"] if row["SK"]["S"] in (keys.STATE, keys.SLOTS)}
        places = [Place(*keys.parse_bucket_pk(pk)) for pk in found]
        last = reply.get("LastEvaluatedKey")
        return [place for place in places if place.shard == 0], _cursor(last) if last else None

    # Deleting

    def delete_plan(self, bucket_keys: Sequence[str]) -> Plan[None]:
        for key in bucket_keys:
            namespace, entity_id, resource = parse_bucket_key(key)
            ns = yield from self._namespaces.find_plan(namespace)
            if ns is not None:
                yield from self._delete_one_plan(Place(ns, entity_id, resource, 0))
                yield from self._slots.delete_plan(Place(ns, entity_id, resource, 0))

    def _delete_one_plan(self, first: Place) -> Plan[None]:
        while True:
            rows = yield from self._across.rows_plan([first])
            count = rows[first].shard_count if first in rows else 1
            places = [first._replace(shard=shard) for shard in range(count)]
            for place in places:
                self._cache.forget(place)
            if count == 1:
                delete = {"TableName": self._deliver.table, "Key": first.key} | _if_count(1)
                done = yield from self._deliver.one_plan(Send("DeleteItem", delete, repeatable=True))
            else:
                done = yield from self._deliver.one_plan(self._delete_all(places, count))
            if not isinstance(done, Failed):
                return

    def _delete_all(self, places: Sequence[Place], count: int, conditions: dict[Place, Any] | None = None) -> Send:
        table = self._deliver.table
        items: list[dict[str, Any]] = []
        for place in places:
            delete: dict[str, Any] = {"TableName": table, "Key": place.key}
            if conditions is not None:
                delete |= conditions[place]
            elif place.shard == 0:
                delete |= _if_count(count)
            items.append({"Delete": delete})
        note = sharded_item(places[0])
        items.append({"Delete": {"TableName": table, "Key": {"PK": note["PK"], "SK": note["SK"]}}})
        return Send("TransactWriteItems", {"TransactItems": items}, repeatable=True)

    # Sweeping

    def sweep_plan(self, namespace: str, now_ms: int) -> Plan[Swept]:
        """Buckets with shards that are full again: they are as if never used, and need not be kept. And the leases that
        have run out."""
        ns = yield from self._namespaces.find_plan(namespace)
        swept = leases = 0
        if ns is not None:
            for first in (yield from self._with_shards_plan(ns)):
                (pool,) = yield from self._across.pools_plan([first], now_ms)
                swept += yield from self._merge_plan(pool, now_ms)
            leases = yield from self._slots.sweep_plan(ns, now_ms)
        return Swept(buckets=swept, leases=leases)

    def _with_shards_plan(self, ns: str) -> Plan[list[Place]]:
        found: list[Place] = []
        start: Any = None
        while True:
            parameters: dict[str, Any] = {
                "TableName": self._deliver.table,
                "KeyConditionExpression": "PK = :pk AND begins_with(SK, :sk)",
                "ExpressionAttributeValues": {
                    ":pk": attribute(keys.pk_sharded(ns)),
                    ":sk": attribute(keys.sk_sharded("", "")[:-1]),
                },
                "ConsistentRead": True,
            } | ({"ExclusiveStartKey": start} if start else {})
            reply = yield from self._deliver.one_plan(Send("Query", parameters, repeatable=True))
            assert not isinstance(reply, Failed)
            for row in reply["Items"]:
                _, _, entity_id, resource = row["SK"]["S"].split("#")
                found.append(Place(ns, entity_id, resource, 0))
            start = reply.get("LastEvaluatedKey")
            if not start:
                return found

    def _merge_plan(self, pool: Pool, now_ms: int) -> Plan[int]:
        rows = {ledger.place: ledger.row or NEW for ledger in pool.ledgers}
        count = pool.ledgers[0].shards
        full = all(
            state.v <= now_ms * state.limit.refill_milli and state.blocked_until_ms <= now_ms
            for row in rows.values()
            for state in row.states.values()
        )
        if not full or len(rows) != count:
            return 0
        conditions = {place: _if_unchanged(row) for place, row in rows.items()}
        done = yield from self._deliver.one_plan(self._delete_all(list(rows), count, conditions))
        if isinstance(done, Failed):
            return 0
        for place in rows:
            self._cache.forget(place)
        return 1


def _if_count(count: int) -> dict[str, Any]:
    condition = "attribute_not_exists(PK) OR shard_count = :count"
    return {"ConditionExpression": condition, "ExpressionAttributeValues": {":count": attribute(count)}}


def _if_unchanged(row: Any) -> dict[str, Any]:
    condition = "shard_count = :count AND wcu = :writes"
    values = {":count": attribute(row.shard_count), ":writes": attribute(row.writes)}
    return {"ConditionExpression": condition, "ExpressionAttributeValues": values}


def _states(pool: Pool, slots: Row, now_ms: int) -> tuple[State, ...]:
    """All limits in order. Of one that has been of both kinds, as it was used last."""
    merged: dict[str, State] = {}
    for bucket in _merged(pool):
        merged[bucket.limit.name] = bucket
    used = (pool.ledgers[0].row or NEW).states
    for name, one in listed(slots, now_ms).items():
        if name not in used or used[name].at_ms < slots.states[name].at_ms:
            merged[name] = one
    return tuple(state for _, state in sorted(merged.items()))


def _merged(pool: Pool) -> tuple[Bucket, ...]:
    """What all shards have together, as one bucket for each limit."""
    parts: dict[str, list[tuple[BucketLedger, Bucket]]] = {}
    for ledger in pool.ledgers:
        for name, state in (ledger.row or NEW).states.items():
            parts.setdefault(name, []).append((ledger, bucket_of(state, max(ledger.now_ms, state.at_ms))))
    merged = []
    for _, found in sorted(parts.items()):
        ledger, bucket = found[0]
        if ledger.shards > 1:
            bucket.tokens_milli = sum(one.tokens_milli // shard.shards for shard, one in found)
            bucket.remainder = 0
            bucket.blocked_until_ms = max(one.blocked_until_ms for _, one in found)
        merged.append(bucket)
    return tuple(merged)


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
