"""Making one item of all shards again.

A quota whose window begins with its first use has one window, while each shard would begin one of its own. So an item
with such a quota is not split. If it comes to buckets that are split already, their shards are united first, in one
transaction: what all of them lack, the one item lacks, rounded up to the smallest unit of V.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...plan import Plan
from .cache import Cache
from .conditional_writes import time_to_live
from .deliver import Deliverer
from .exchange import Attributes, Send
from .items import attribute
from .ledger import BucketLedger
from .places import ItemPlace
from .rows import MOST_SHARDS, NEW, PREFIX, Row, RowState, bucket_of, full_v, units, virtual_time, written_limit
from .shards import Shards, if_no_shard, if_unchanged, sharded_item
from .usage import UsageCounters


class Uniter:
    def __init__(self, deliver: Deliverer, cache: Cache, shards: Shards, usage_counters: UsageCounters) -> None:
        self._deliver = deliver
        self._cache = cache
        self._shards = shards
        self._usage_counters = usage_counters

    def unite_plan(self, ledgers: Sequence[BucketLedger]) -> Plan[None]:
        """Unless other writers are faster."""
        for ledger in ledgers:
            yield from self._shards.finish_plan(ledger.place, ledger.shards)
        count = ledgers[0].shards
        if sum(count // ledger.shards for ledger in ledgers) == count:
            yield from self._deliver.one_plan(self._unite(ledgers))
        for shard in range(count):
            self._cache.forget(ledgers[0].place._replace(shard=shard))

    def _unite(self, ledgers: Sequence[BucketLedger]) -> Send:
        rows = {ledger.place: ledger.row or NEW for ledger in ledgers}
        first, count = ledgers[0].place, ledgers[0].shards
        items: list[dict[str, Any]] = [{"Update": self._first(first, rows[first], united(ledgers))}]
        for place in (first._replace(shard=shard) for shard in range(1, count)):
            if place in rows:
                emptied = self._usage_counters.emptied(place, rows[place], count, *if_unchanged(rows[place]))
                items.append({"Update": emptied})
            else:
                items.append({"ConditionCheck": if_no_shard(self._deliver.table, place)})
        note = sharded_item(first)
        items.append({"Delete": {"TableName": self._deliver.table, "Key": {"PK": note["PK"], "SK": note["SK"]}}})
        return Send("TransactWriteItems", {"TransactItems": items}, repeatable=True)

    def _first(self, place: ItemPlace, before: Row, row: Row) -> dict[str, Any]:
        condition, values = if_unchanged(before)
        left_ms = max(bucket_of(state, state.at_ms).full_at_ms() - state.at_ms for state in row.states.values())
        sets: dict[str, Attributes] = {"shard_count": attribute(1), MOST_SHARDS: attribute(row.most_shards)}
        sets["ttl"] = attribute(time_to_live(row, max(left_ms, self._usage_counters.kept_ms)))
        for name, state in row.states.items():
            said: dict[str, str | int] = {"lm": state.written, "vt": state.v, "at": state.at_ms, "rv": state.revision}
            said["tc"] = state.consumed_milli
            sets |= {f"{PREFIX}{name}_{suffix}": attribute(value) for suffix, value in said.items()}
        gone = [f"{PREFIX}{name}_{suffix}" for name in row.states for suffix in ("sv", "sl")]
        names = {f"#{i}": name for i, name in enumerate((*sets, *gone))}
        written = ", ".join(f"#{i} = :{i}" for i in range(len(sets)))
        return {
            "TableName": self._deliver.table,
            "Key": place.key,
            "UpdateExpression": f"SET {written} ADD wcu :one REMOVE {', '.join(list(names)[len(sets) :])}",
            "ConditionExpression": condition,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": {
                **values,
                **{f":{i}": value for i, value in enumerate(sets.values())},
                ":one": attribute(1),
            },
        }


def united(ledgers: Sequence[BucketLedger]) -> Row:
    """The row of one item instead of these shards. One that is missing has nothing left."""
    first, count = ledgers[0].row or NEW, ledgers[0].shards
    rows = {ledger: ledger.row or NEW for ledger in ledgers}
    at_ms = max(ledger.now_ms for ledger in ledgers)
    at_ms = max([at_ms, *(state.at_ms for row in rows.values() for state in row.states.values())])
    absent = count - sum(count // row.shard_count for row in rows.values())
    states = {}
    for name in dict.fromkeys(name for row in rows.values() for name in row.states):
        found = {ledger: row.states[name] for ledger, row in rows.items() if name in row.states}
        latest = max(found.values(), key=lambda state: state.revision)
        limit = latest.limit
        missing_v, ends_ms = absent * limit.capacity_milli * units(limit), 0
        for ledger, state in found.items():
            if state.limit.is_quota is limit.is_quota:
                bucket = bucket_of(state, at_ms)
                if bucket.limit != limit:
                    bucket.reshape(limit)
                missing_v += (virtual_time(bucket) - full_v(limit, at_ms)) * (count // ledger.shards)
                ends_ms = max(ends_ms, bucket.remainder if limit.is_quota else 0)
        v = full_v(limit, at_ms) - -missing_v // count
        blocked_ms = max(state.blocked_until_ms for state in found.values())
        written = written_limit(limit, blocked_ms if blocked_ms > at_ms else 0, ends_ms)
        consumed_milli = first.states[name].consumed_milli if name in first.states else 0
        states[name] = RowState(limit, v, at_ms, latest.revision, written, blocked_ms, consumed_milli, ends_ms=ends_ms)
    return first._replace(states=states, shard_count=1, ttl=0, most_shards=max(count, first.most_shards))
