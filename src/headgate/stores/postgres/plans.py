"""The store's methods, as plans: written once for the blocking store and for the one of coroutines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ...core.bucket import Bucket
from ...core.decide import Answer, State
from ...core.errors import CorruptState
from ...core.limit import Limit
from ...core.names import parse_bucket_key
from ...core.records import BucketRow, Change, Check, Page, Put, Record, read_record
from ...core.slots import Slots
from ...core.stored import corrupt_limit, is_sound_bucket, is_sound_limit, is_sound_slots
from ...plan import Plan
from . import literal
from .asking import number_of, text_of
from .exchange import Ask, Reply, Row
from .stored import StoredPlans, bounds_of
from .url import Settings
from .wire import Batch

_PAGE = 1000

_SETTLE = "SELECT headgate.settle($1, $2, $3, $4, $5, $6, $7, $8)"
_TAKE = "SELECT headgate.take($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
_DELETE = "SELECT headgate.delete_buckets($1, $2)"
_LIST_BUCKETS = """
SELECT b.key, b.limit_name, b.capacity_milli, b.refill_milli, b.period_ms, b.tokens_milli, b.settled_at_ms,
  b.remainder, b.blocked_until_ms, b.revision, b.used_milli, headgate.clock($1),
  CASE WHEN b.refill_milli = 0 THEN
    (SELECT json_object_agg(s.lease_id, json_build_array(s.held_milli, s.expires_at_ms)) FROM headgate.slots s
     WHERE s.key = b.key AND s.limit_name = b.limit_name) END
FROM headgate.buckets b
WHERE b.settled_at_ms <> 0 AND b.key IN (
  SELECT DISTINCT key FROM headgate.buckets WHERE key > $2 AND key < $3 ORDER BY key LIMIT $4::integer)
ORDER BY b.key, b.limit_name"""
_LAST_KEY = (
    "SELECT DISTINCT key FROM headgate.buckets WHERE key > $1 AND key < $2 ORDER BY key OFFSET $3::integer LIMIT 1"
)
_LIVE = "(expires_at_ms IS NULL OR expires_at_ms > headgate.clock($1))"
_GET_RECORDS = f"SELECT key, value, version FROM headgate.records WHERE {_LIVE} AND key = ANY ($2)"
_WRITE_RECORDS = "SELECT headgate.write_records($1, $2, $3, $4, $5, $6, $7)"
_LIST_RECORDS = f"""
SELECT key, value, version FROM headgate.records
WHERE {_LIVE} AND key >= $2 AND key < $3 AND key > $4 ORDER BY key LIMIT $5::bigint"""


class Plans(StoredPlans):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._settle = self._statement(_SETTLE)
        self._take = self._statement(_TAKE)
        self._delete = self._statement(_DELETE)
        self._list_buckets = self._statement(_LIST_BUCKETS)
        self._last_key = self._statement(_LAST_KEY)
        self._get_records = self._statement(_GET_RECORDS)
        self._write_records = self._statement(_WRITE_RECORDS)
        self._list_records = self._statement(_LIST_RECORDS)

    # Buckets

    def settling(self, batch: Batch, now_ms: int | None, patience_ms: int) -> Ask:
        given = (literal.number(now_ms), literal.number(self.usage_ms), literal.number(patience_ms))
        if batch.plain:
            return Ask(self._take, (*given, *batch.arguments))
        return Ask(self._settle, (*given, b"f" if batch.looks and now_ms is None else b"t", *batch.arguments))

    def settle_plan(self, batch: Batch, ask: Ask, first: Reply | None = None) -> Plan[list[Answer]]:
        rows = yield from self.rows_plan(ask.statement, *ask.parameters, repeatable=batch.repeatable, first=first)
        return answers_of(batch, rows)

    def delete_buckets_plan(self, keys: Sequence[str]) -> Plan[None]:
        if keys:
            patience = yield from self._patience_plan()
            yield from self.rows_plan(self._delete, patience, literal.texts(keys))

    def list_buckets_plan(
        self, namespace: str, entity_id: str | None, resource: str | None, cursor: str | None, now_ms: int | None
    ) -> Plan[Page[BucketRow]]:
        start, end = bounds_of(namespace, entity_id)
        bounds = ((cursor or start).encode(), end.encode())
        rows = yield from self.rows_plan(self._list_buckets, literal.number(now_ms), *bounds, b"%d" % _PAGE)
        # Those that are as good as none count as well.
        last = yield from self.rows_plan(self._last_key, *bounds, b"%d" % (_PAGE - 1))
        page, corrupt = list[BucketRow](), list[CorruptState]()
        for key, of_key in groupby(rows, key=lambda row: text_of(row[0])):
            _, its_entity, its_resource = parse_bucket_key(key)
            if resource in (None, its_resource):
                try:
                    page.append(BucketRow(its_entity, its_resource, tuple(map(_state, of_key))))
                except CorruptState as error:
                    corrupt.append(error)
        return Page(page, text_of(last[0][0]) if last else None, corrupt)

    # Records

    def get_records_plan(self, keys: Sequence[str], now_ms: int | None) -> Plan[list[Record | None]]:
        if not keys:
            return []
        rows = yield from self.rows_plan(self._get_records, literal.number(now_ms), literal.texts(keys))
        found = {record.key: record for record in map(_record, rows)}
        return [found.get(key) for key in keys]

    def write_records_plan(self, changes: Sequence[Change], now_ms: int | None) -> Plan[None]:
        if not changes:
            return
        puts = [change if isinstance(change, Put) else None for change in changes]
        patience = yield from self._patience_plan()
        yield from self.rows_plan(
            self._write_records,
            literal.number(now_ms),
            patience,
            literal.texts(map(_what, changes)),
            literal.texts(change.key for change in changes),
            literal.numbers(change.expected for change in changes),
            literal.numbers(put.expires_at_ms if put else None for put in puts),
            literal.texts(json.dumps(put.value) if put else "" for put in puts),
            repeatable=False,
        )

    def list_records_plan(self, prefix: str, cursor: str | None, limit: int, now_ms: int | None) -> Plan[Page[Record]]:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        keys = (prefix.encode(), end.encode(), (cursor or "").encode())
        rows = yield from self.rows_plan(self._list_records, literal.number(now_ms), *keys, b"%d" % (limit + 1))
        records = [_record(row) for row in rows[:limit]]
        return Page(records, records[-1].key if len(rows) > limit else None)


def answers_of(batch: Batch, rows: list[Row]) -> list[Answer]:
    ((reply,),) = rows
    assert reply is not None
    return batch.answers(literal.read_numbers(reply))


def _what(change: Change) -> str:
    return "put" if isinstance(change, Put) else "check" if isinstance(change, Check) else "delete"


def _record(row: Row) -> Record:
    key, value, version = row
    return read_record(text_of(key), text_of(value), number_of(version))


def _state(row: Row) -> State:
    """The bucket or slots of a row, settled."""
    key, name, *numbers, held = row
    capacity_milli, refill_milli, period_ms, *state, now_ms = map(number_of, numbers)
    if not is_sound_limit(capacity_milli, refill_milli, period_ms):
        raise corrupt_limit(text_of(key), text_of(name), [capacity_milli, refill_milli, period_ms, *state])
    limit = Limit.from_stored(text_of(name), capacity_milli, refill_milli, period_ms)
    tokens_milli, settled_at_ms, remainder, blocked_until_ms, revision, _ = state
    holders: dict[str, Any] = json.loads(text_of(held)) if held else {}
    if not (
        is_sound_bucket(period_ms, capacity_milli, *state)
        if refill_milli
        else tokens_milli >= 0 and is_sound_slots(settled_at_ms, blocked_until_ms, revision, holders)
    ):
        values = [capacity_milli, refill_milli, period_ms, *state, *holders.values()]
        raise corrupt_limit(text_of(key), text_of(name), values)
    if refill_milli:
        found: State = Bucket(limit, tokens_milli, settled_at_ms, remainder, blocked_until_ms, revision)
    else:
        leases = {lease_id: (milli, until_ms) for lease_id, (milli, until_ms) in holders.items()}
        found = Slots(limit, settled_at_ms, leases, blocked_until_ms, revision)
    found.settle(now_ms)
    return found
