"""The items of slots: reading them for a round; listing, deleting and sweeping them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

from ...core.errors import CorruptState, RateLimiterUnavailable
from ...core.limit import OWN
from ...core.slots import Slots
from ...plan import Plan
from . import keys
from .cache import Cache, ItemSource
from .deliver import Deliverer
from .exchange import Failed, Send
from .items import attribute, page_plan, query, read_items_plan
from .places import ItemPlace, SlotPlace
from .rows import NEW, PREFIX, Row, has_buckets, read_row
from .rows import SUFFIXES as BUCKET_SUFFIXES
from .slot_items import PREFIX as SLOT_PREFIX
from .slot_items import SUFFIXES, SlotLedger, WholeWrite, read_slots, slots_of, state_of_slots

_TRIES = 5
_AT_ONCE = 25


class SlotSource(ItemSource):
    """`buckets`: what was last seen of the buckets beside them."""

    def __init__(self, deliver: Deliverer, buckets: Cache) -> None:
        super().__init__(Cache())
        self._deliver = deliver
        self._buckets = buckets

    def ledger(self, place: ItemPlace, now_ms: int, *, fresh: bool) -> SlotLedger:
        seen = self.cache.get(place)
        ledger = SlotLedger(place, seen.row if seen else None, now_ms, seen.at_ms if seen else None)
        ledger.fresh = fresh and seen is not None
        ledger.source = self
        return ledger

    # Before settling

    def know_plan(self, wanted: Mapping[SlotPlace, set[str]]) -> Plan[set[SlotPlace]]:
        """Make sure that the items are known, and that none of their limits is still one of tokens. Returns the items
        that were read.

        A limit that changes from tokens to slots starts afresh, and so do slots left from an earlier change. Requests
        for tokens do not read slots, so both are removed here.
        """
        read: set[SlotPlace] = set()
        for _ in range(_TRIES):
            read |= yield from self._read_plan(wanted)
            turned = {place: turned for place, names in wanted.items() if (turned := self._turned(place, names))}
            if not turned:
                return read
            shards = yield from self._shards_plan(turned)
            sends = [self._start_anew(place, names, shards[place]) for place, names in turned.items()]
            yield from self._deliver.all_plan(sends)  # if it fails, another client did it, or is doing it
            yield from self._read_again_plan(turned)
            read |= turned.keys()
        raise RateLimiterUnavailable(
            "other clients use the same limits with another kind: use either tokens or slots for a limit"
        )

    def _read_plan(self, wanted: Mapping[SlotPlace, set[str]]) -> Plan[set[SlotPlace]]:
        """Items of which nothing is known; with their buckets, if a limit is new to the slots."""
        unknown = {place for place in wanted if self.cache.get(place) is None}
        beside = [place for place, names in wanted.items() if self._asks_for_buckets(place, names)]
        if unknown or beside:
            yield from self._bring_plan({place: {} for place in unknown}, {ItemPlace(*place): {} for place in beside})
        return unknown

    def _bring_plan(
        self, slots: Mapping[SlotPlace, Mapping[str, int]], buckets: Mapping[ItemPlace, Mapping[str, int]]
    ) -> Plan[None]:
        """Read items. The values: when their limits were last read."""
        items = yield from read_items_plan(self._deliver, [place.item_key for place in (*slots, *buckets)])
        for slot_place, at_ms in slots.items():
            item = items.get(slot_place.item_key)
            self.cache.put(slot_place, read_slots(item) if item else NEW, at_ms)
        for place, at_ms in buckets.items():
            item = items.get(place.item_key)
            self._buckets.put(place, read_row(item) if item else NEW, at_ms)

    def _asks_for_buckets(self, place: SlotPlace, names: set[str]) -> bool:
        seen = self.cache.get(place)
        return self._buckets.get(place) is None and (seen is None or not names <= seen.row.states.keys())

    def _turned(self, place: SlotPlace, names: set[str]) -> list[str]:
        seen = self._buckets.get(place)
        return [name for name in names if seen is not None and name in seen.row.states]

    def _shards_plan(self, wanted: Iterable[SlotPlace]) -> Plan[dict[SlotPlace, list[ItemPlace]]]:
        """The existing shards of the buckets beside them: some may not be split yet."""
        found: dict[SlotPlace, list[ItemPlace]] = {}
        for place in wanted:
            seen = self._buckets.get(place)
            shards = [ItemPlace(*place)._replace(shard=shard) for shard in range(seen.row.shard_count if seen else 1)]
            items = yield from read_items_plan(self._deliver, [shard.item_key for shard in shards[1:]])
            found[place] = shards[:1] + [shard for shard in shards[1:] if has_buckets(items.get(shard.item_key))]
        return found

    def _start_anew(self, place: SlotPlace, names: Sequence[str], shards: Sequence[ItemPlace]) -> Send:
        """In one transaction, and only once: a second one would remove new data."""
        items = [self._without(shard, names, "wcu", PREFIX, BUCKET_SUFFIXES) for shard in shards]
        slots = self.cache.get(place)
        if slots is not None and slots.row.writes:
            items.append(self._without(place, names, "ver", SLOT_PREFIX, SUFFIXES))
        parameters = {"TransactItems": [{"Update": item} for item in items], "ClientRequestToken": str(uuid4())}
        return Send("TransactWriteItems", parameters, repeatable=True)

    def _without(
        self, place: ItemPlace, names: Sequence[str], counter: str, prefix: str, suffixes: Sequence[str]
    ) -> dict[str, Any]:
        gone = {f"#{suffix}{i}": f"{prefix}{name}_{suffix}" for i, name in enumerate(names) for suffix in suffixes}
        condition = "attribute_exists(PK)"
        if not isinstance(place, SlotPlace) and not place.shard:
            condition = " AND ".join(f"attribute_exists(#lm{i})" for i in range(len(names)))
        return {
            "TableName": self._deliver.table,
            "Key": place.key,
            "UpdateExpression": f"REMOVE {', '.join(gone)} ADD #counter :one",
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {**gone, "#counter": counter},
            "ExpressionAttributeValues": {":one": attribute(1)},
        }

    def _read_again_plan(self, turned: Mapping[SlotPlace, Sequence[str]]) -> Plan[None]:
        """Limits that have started afresh count as never read."""

        def forget(cache: Cache, place: SlotPlace) -> dict[str, int]:
            seen = cache.get(place)
            cache.forget(place)
            return {name: ms for name, ms in seen.at_ms.items() if name not in turned[place]} if seen else {}

        slots = {place: forget(self.cache, place) for place in turned}
        buckets = {ItemPlace(*place): forget(self._buckets, place) for place in turned}
        yield from self._bring_plan(slots, buckets)

    # Listing, deleting, sweeping

    def rows_plan(self, places: Iterable[ItemPlace]) -> Plan[dict[ItemPlace, Row]]:
        """The rows of the items that exist."""
        by_key = {place.item_key: place for place in (SlotPlace(*place) for place in places)}
        items = yield from read_items_plan(self._deliver, list(by_key))
        return {by_key[key]: read_slots(item) for key, item in items.items()}

    def _sound_rows_plan(self, places: Sequence[ItemPlace]) -> Plan[dict[ItemPlace, Row]]:
        """The same without corrupt items."""
        try:
            return (yield from self.rows_plan(places))
        except CorruptState:
            rows: dict[ItemPlace, Row] = {}
            for place in places if len(places) > 1 else ():
                rows |= yield from self._sound_rows_plan([place])
            return rows

    def delete_plan(self, first: ItemPlace) -> Plan[None]:
        place = SlotPlace(*first)
        self.cache.forget(place)
        delete = {"TableName": self._deliver.table, "Key": place.key}
        yield from self._deliver.one_plan(Send("DeleteItem", delete, repeatable=True))

    def free_expired_plan(self, ns: str, now_ms: int) -> Plan[int]:
        """Remove expired holders; returns how many. Each is counted by the client whose write removed it."""
        swept = 0
        parameters = query(ns, keys.gsi4_sk_slots(ns), keys.GSI4)
        after: Any = None
        while True:
            reply, after = yield from page_plan(self._deliver, parameters, after)
            places = [SlotPlace(*keys.parse_bucket_pk(row["PK"]["S"])) for row in reply["Items"]]
            for start in range(0, len(places), _AT_ONCE):
                rows = yield from self._sound_rows_plan(places[start : start + _AT_ONCE])
                swept += yield from self._sweep_rows_plan(rows, now_ms)
            if not after:
                return swept

    def _sweep_rows_plan(self, rows: dict[ItemPlace, Row], now_ms: int) -> Plan[int]:
        swept = 0
        for _ in range(_TRIES):  # a client that is always faster uses the slots, and removes expired ones itself
            sweeps = dict(_sweeps(rows, now_ms))
            if not sweeps:
                break
            sends = [write.update(self._deliver.table) for write, _ in sweeps.values()]
            results = yield from self._deliver.all_plan(sends)
            rows = {}
            for (place, (_, leases)), result in zip(sweeps.items(), results):
                if not isinstance(result, Failed):
                    swept += leases
                    self.cache.put(place, read_slots(result["Attributes"]), {})
                elif result.item:
                    rows[place] = read_slots(result.item)
        return swept


def _sweeps(rows: Mapping[ItemPlace, Row], now_ms: int) -> Iterator[tuple[ItemPlace, tuple[WholeWrite, int]]]:
    """The write for each item that has expired leases, and how many they are without headgate's own."""
    for place, row in rows.items():
        after = listed(row, now_ms)
        gone = {name: len(row.states[name].holders) - len(slots.holders) for name, slots in after.items()}
        states = {name: state_of_slots(slots) for name, slots in after.items() if gone[name]}
        if states:
            needed_ms = max(slots.full_at_ms() for slots in after.values()) - now_ms
            leases = sum(count for name, count in gone.items() if not name.startswith(OWN))
            yield place, (WholeWrite(place, row, needed_ms, states, False), leases)


def listed(row: Row, now_ms: int) -> dict[str, Slots]:
    """All slots of an item, settled."""
    return {name: slots_of(state, max(now_ms, state.at_ms)) for name, state in sorted(row.states.items())}
