"""Listing, deleting and sweeping buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...core.bucket import Bucket
from ...core.decide import State
from ...core.errors import CorruptState
from ...core.names import parse_bucket_key
from ...core.records import BucketRow, Page, Swept
from ...plan import Plan
from . import keys
from .cache import Cache
from .conditional_writes import MARGIN_SECONDS
from .cross_shard import CrossShard, Pool
from .deliver import Deliverer
from .exchange import Failed, Send
from .items import attribute, key_of, query, query_plan, read_items_plan
from .ledger import BucketLedger
from .namespaces import Namespaces
from .places import ItemPlace, places_plan
from .rows import NEW, Row, bucket_of
from .shards import Condition, if_no_shard, if_unchanged, sharded_item
from .slots import SlotSource, listed
from .usage import UsageCounters


class Buckets:
    def __init__(
        self,
        deliver: Deliverer,
        namespaces: Namespaces,
        cache: Cache,
        cross_shard: CrossShard,
        slots: SlotSource,
        usage_counters: UsageCounters,
    ) -> None:
        self._deliver = deliver
        self._namespaces = namespaces
        self._cache = cache
        self._cross_shard = cross_shard
        self._slots = slots
        self._usage_counters = usage_counters

    # Listing

    def list_plan(
        self, namespace: str, entity_id: str | None, resource: str | None, cursor: str | None, now_ms: int
    ) -> Plan[Page[BucketRow]]:
        ns = yield from self._namespaces.find_plan(namespace)
        if ns is None:
            return Page([])
        found, after = yield from places_plan(self._deliver, ns, entity_id, resource, cursor)
        page = yield from self._read_plan(list(found), now_ms)
        return Page(page, after, page.corrupt)

    def _read_plan(self, places: Sequence[ItemPlace], now_ms: int) -> Plan[Page[BucketRow]]:
        try:
            pools = yield from self._cross_shard.pools_plan(places, now_ms)
            slots = yield from self._slots.rows_plan(places)
        except CorruptState as error:
            if len(places) == 1:
                return Page([], None, [error])
            found = Page[BucketRow]([])
            for place in places:  # to find the corrupt one
                one = yield from self._read_plan([place], now_ms)
                found += one
                found.corrupt += one.corrupt
            return found
        return Page(
            [
                BucketRow(place.entity_id, place.resource, states)
                for place, pool in zip(places, pools)
                if (states := _states(pool, slots.get(place, NEW), now_ms)) and not _is_forgotten(states, now_ms)
            ]
        )

    # Deleting

    def delete_plan(self, bucket_keys: Sequence[str]) -> Plan[None]:
        for key in bucket_keys:
            namespace, entity_id, resource = parse_bucket_key(key)
            ns = yield from self._namespaces.find_plan(namespace)
            if ns is not None:
                try:
                    yield from self._delete_one_plan(ItemPlace(ns, entity_id, resource, 0))
                except CorruptState:
                    yield from self._remove_plan(ItemPlace(ns, entity_id, resource, 0))
                yield from self._slots.delete_plan(ItemPlace(ns, entity_id, resource, 0))

    def _delete_one_plan(self, first: ItemPlace) -> Plan[None]:
        while True:
            rows = yield from self._cross_shard.rows_plan([first])
            if first not in rows:
                self._cache.forget(first)
                return
            count = rows[first].shard_count
            places = [first._replace(shard=shard) for shard in range(count)]
            rows |= yield from self._cross_shard.rows_plan(places[1:])
            for place in places:
                self._cache.forget(place)
            if count > 1:
                conditions = {place: _if_count(count) for place in places[:1]}
                done = yield from self._deliver.one_plan(self._empty_all(rows, count, conditions))
            else:
                empty = self._usage_counters.emptied(first, rows[first], 1, *_if_count(1))
                done = yield from self._deliver.one_plan(Send("UpdateItem", empty, repeatable=True))
            if not isinstance(done, Failed):
                return

    def _remove_plan(self, first: ItemPlace) -> Plan[None]:
        """All items that may exist, with the usage in them: a corrupt item does not say how many shards there are."""
        places = [first._replace(shard=shard) for shard in range(self._deliver.settings.max_shards)]
        for place in places:
            self._cache.forget(place)
        found = yield from read_items_plan(self._deliver, [place.item_key for place in places])
        deletes = [{"TableName": self._deliver.table, "Key": key_of(item_key)} for item_key in found]
        yield from self._deliver.all_plan([Send("DeleteItem", delete, repeatable=True) for delete in deletes])

    def _empty_all(self, rows: Mapping[ItemPlace, Row], count: int, conditions: Mapping[ItemPlace, Condition]) -> Send:
        """All shards at once, on these conditions and that there are no others."""
        first = next(iter(rows))._replace(shard=0)
        items: list[dict[str, Any]] = []
        for place in (first._replace(shard=shard) for shard in range(count)):
            if place in rows:
                condition = conditions.get(place, ("attribute_exists(PK)", {}))
                items.append({"Update": self._usage_counters.emptied(place, rows[place], count, *condition)})
            else:
                items.append({"ConditionCheck": if_no_shard(self._deliver.table, place)})
        note = sharded_item(first)
        items.append({"Delete": {"TableName": self._deliver.table, "Key": {"PK": note["PK"], "SK": note["SK"]}}})
        return Send("TransactWriteItems", {"TransactItems": items}, repeatable=True)

    # Sweeping

    def sweep_plan(self, namespace: str, now_ms: int) -> Plan[Swept]:
        """Merge buckets whose shards are all full, because they are as if never used, and remove expired leases."""
        ns = yield from self._namespaces.find_plan(namespace)
        swept = leases = 0
        if ns is not None:
            for first in (yield from self._with_shards_plan(ns)):
                with suppress(CorruptState):  # an acquire reports it
                    (pool,) = yield from self._cross_shard.pools_plan([first], now_ms)
                    swept += yield from self._merge_plan(pool, now_ms)
            leases = yield from self._slots.free_expired_plan(ns, now_ms)
        return Swept(buckets=swept, leases=leases)

    def _with_shards_plan(self, ns: str) -> Plan[list[ItemPlace]]:
        notes = query(keys.pk_sharded(ns), keys.sk_sharded("", "")[:-1])
        found: list[ItemPlace] = []
        for row in (yield from query_plan(self._deliver, notes)):
            _, _, entity_id, resource = row["SK"]["S"].split("#")
            found.append(ItemPlace(ns, entity_id, resource, 0))
        return found

    def _merge_plan(self, pool: Pool, now_ms: int) -> Plan[int]:
        rows = {ledger.place: ledger.row or NEW for ledger in pool.ledgers}
        count = pool.ledgers[0].shards
        if len(rows) != count or not all(_is_full(row, now_ms) for row in rows.values()):
            return 0
        conditions = {place: if_unchanged(row) for place, row in rows.items()}
        done = yield from self._deliver.one_plan(self._empty_all(rows, count, conditions))
        if isinstance(done, Failed):
            return 0
        for place in rows:
            self._cache.forget(place)
        return 1


def _is_full(row: Row, now_ms: int) -> bool:
    return all(bucket_of(state, now_ms).full_at_ms() <= now_ms for state in row.states.values())


def _if_count(count: int) -> Condition:
    return "shard_count = :count", {":count": attribute(count)}


def _states(pool: Pool, slots: Row, now_ms: int) -> tuple[State, ...]:
    """All limits in order. A limit that has had tokens and slots is shown as it was used last."""
    merged: dict[str, State] = {}
    for bucket in _merged(pool):
        merged[bucket.limit.name] = bucket
    used = (pool.ledgers[0].row or NEW).states
    for name, one in listed(slots, now_ms).items():
        if name not in used or used[name].at_ms < slots.states[name].at_ms:
            merged[name] = one
    return tuple(state for _, state in sorted(merged.items()))


def _is_forgotten(states: Sequence[State], now_ms: int) -> bool:
    """Items outlive their buckets, because of the usage in them. Buckets that have been full for an hour are not
    listed.
    """
    return all(state.full_at_ms() + MARGIN_SECONDS * 1000 <= now_ms for state in states)


def _merged(pool: Pool) -> tuple[Bucket, ...]:
    """All shards together, as one bucket for each limit."""
    parts: dict[str, list[tuple[BucketLedger, Bucket]]] = {}
    for ledger in pool.ledgers:
        for name, state in (ledger.row or NEW).states.items():
            parts.setdefault(name, []).append((ledger, bucket_of(state, max(ledger.now_ms, state.at_ms))))
    merged = []
    for _, found in sorted(parts.items()):
        ledger, bucket = found[0]
        if ledger.shards > 1:
            bucket.tokens_milli = sum(one.tokens_milli // shard.shards for shard, one in found)
            if not bucket.limit.is_quota:
                bucket.remainder = 0
            bucket.blocked_until_ms = max(one.blocked_until_ms for _, one in found)
        merged.append(bucket)
    return tuple(merged)
