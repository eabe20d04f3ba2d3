"""The store's methods as plans, written once for both transports."""

from __future__ import annotations

import json
import time
from asyncio import CancelledError
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ...core.decide import Answer, Request, State
from ...core.errors import CorruptState, HeadgateError, PartlyAnswered, RateLimiterUnavailable
from ...core.limit import AT_ONCE, Limit
from ...core.names import parse_bucket_key
from ...core.records import BucketRow, Change, Check, Page, Put, Record, Swept, read_record
from ...core.slots import Slots
from ...core.stored import bucket_as_stored, corrupt_limit, is_sound_limit, is_sound_slots
from ...core.usage import HOUR_MS, UsageRow
from ...plan import Plan
from ..contract import SettledThenCancelled
from ..replies import AnotherWindow, AskAgain
from ..server import MoreTime, TimeLeft
from . import literal
from .exchange import Execute, Reply, Row
from .queries import Queries, number_of, patience_ms, text_of
from .schema import FUNCTIONS, VERSION, persistence_script, setup_script
from .url import PostgresSettings
from .wire import LOWEST_PERIOD, Place, PostgresBatch

_PAGE = 1000
_NUMBERS = 10_000  # in a page of usage
_SWEPT = 1000  # keys in one transaction: others skip them
_PURGED = 5000  # rows in one transaction: others wait for it

_SETTLE = "SELECT headgate.settle($1, $2, $3, $4, $5, $6, $7, $8)"
_TAKE = "SELECT headgate.take($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
_TAKE_QUOTA = "SELECT headgate.take_quota($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
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
_LIST_USAGE = f"""
SELECT key, limit_name, hour, sum(used_milli) FROM (
  SELECT key, limit_name, hour, used_milli FROM headgate.usage
  WHERE key > $1 AND key < $2 AND hour >= $3 AND hour < $4
  UNION ALL
  SELECT key, limit_name, settled_at_ms / {HOUR_MS}, used_milli FROM headgate.buckets
  WHERE $5::boolean AND key > $1 AND key < $2 AND used_milli <> 0
    AND settled_at_ms / {HOUR_MS} >= $3 AND settled_at_ms / {HOUR_MS} < $4
) AS counted
WHERE (key, limit_name, hour) > ($6 COLLATE "C", $7 COLLATE "C", $8::bigint)
GROUP BY key, limit_name, hour ORDER BY key, limit_name, hour LIMIT {_NUMBERS}"""
_SWEEP = f"SELECT buckets, leases, next FROM headgate.sweep($1, $2, $3, $4, {_SWEPT})"
_SWEEP_USAGE = f"SELECT headgate.sweep_usage($1, $2, $3, $4, {_SWEPT})"
_SWEEP_RECORDS = """
WITH gone AS (
  DELETE FROM headgate.records WHERE key IN (
    SELECT key FROM headgate.records
    WHERE expires_at_ms <= headgate.clock($1)
    LIMIT 1000 FOR UPDATE SKIP LOCKED)
  RETURNING 1)
SELECT count(*) FROM gone"""
_LIST_STORED = "SELECT headgate.list_stored()"
_COUNT = """
SELECT (SELECT count(*) FROM headgate.buckets WHERE key > $1 AND key < $2)
  + (SELECT count(*) FROM headgate.records WHERE key > $1 AND key < $2)"""
_LOOK = """
SELECT to_regclass('headgate.version') IS NOT NULL,
  (SELECT relpersistence FROM pg_class WHERE oid = to_regclass('headgate.buckets'))"""
_PURGE = f"SELECT headgate.purge($1, $2, $3, {_PURGED})"


class PostgresPlans(Queries):
    def __init__(self, settings: PostgresSettings) -> None:
        super().__init__(settings)
        self.usage_ms = 0
        self._ahead_ms = 0  # by so much the server's clock was ahead of ours when it said so
        self._settle = self._statement(_SETTLE)
        self._take = self._statement(_TAKE)
        self._take_quota = self._statement(_TAKE_QUOTA)
        self._delete = self._statement(_DELETE)
        self._list_buckets = self._statement(_LIST_BUCKETS)
        self._last_key = self._statement(_LAST_KEY)
        self._get_records = self._statement(_GET_RECORDS)
        self._write_records = self._statement(_WRITE_RECORDS)
        self._list_records = self._statement(_LIST_RECORDS)
        self._list_usage = self._statement(_LIST_USAGE)
        self._sweep = self._statement(_SWEEP)
        self._sweep_usage = self._statement(_SWEEP_USAGE)
        self._sweep_records = self._statement(_SWEEP_RECORDS)
        self._list_stored = self._statement(_LIST_STORED)
        self._count = self._statement(_COUNT)
        self._purge = self._statement(_PURGE)
        self._look = self._statement(_LOOK)
        self._setup = self._statement(setup_script(settings.schema, unlogged=settings.unlogged), script=True)
        self._persistence = self._statement(persistence_script(settings.unlogged), script=True)

    # Buckets

    def believed_ms(self, now_ms: int | None) -> int:
        """The time by which the server decides, as far as we know."""
        return int(time.time() * 1000) + self._ahead_ms if now_ms is None else now_ms

    def settling(self, batch: PostgresBatch, now_ms: int | None, patience_ms: int) -> Execute:
        given = (literal.number(now_ms), literal.number(self.usage_ms), literal.number(patience_ms))
        if batch.plain:
            return Execute(self._take_quota if batch.of_quota else self._take, (*given, *batch.arguments))
        return Execute(self._settle, (*given, b"f" if batch.looks and now_ms is None else b"t", *batch.arguments))

    def settle_plan(self, batch: PostgresBatch, execute: Execute, first: Reply | None = None) -> Plan[list[Answer]]:
        rows = yield from self.rows_plan(
            execute.statement, *execute.parameters, repeatable=batch.repeatable, first=first
        )
        try:
            return answers_of(batch, rows)
        except AskAgain as partly:
            return (yield from self._again_plan(batch, execute, partly.results))

    def _again_plan(
        self, batch: PostgresBatch, execute: Execute, results: Sequence[Answer | HeadgateError]
    ) -> Plan[list[Answer]]:
        """The answers to all, once those are asked again that need other windows. The others have happened, whatever
        becomes of these."""
        results, cancelled = [*results], None
        found: Sequence[Answer | HeadgateError]
        while again := [at for at, result in enumerate(results) if isinstance(result, AnotherWindow)]:
            try:
                found = yield from self._other_windows_plan(batch, execute, [(at, results[at]) for at in again])
            except PartlyAnswered as partly:
                found = partly.results
            except HeadgateError as error:
                found = [error] * len(again)
            except CancelledError as error:
                found, cancelled = [RateLimiterUnavailable("the call was interrupted")] * len(again), error
            for at, result in zip(again, found):
                results[at] = result
        if cancelled is not None:
            raise SettledThenCancelled(results, cancelled)
        answers = [result for result in results if isinstance(result, Answer)]
        if len(answers) < len(results):
            raise PartlyAnswered(results)
        return answers

    def _other_windows_plan(
        self, batch: PostgresBatch, execute: Execute, wanted: Sequence[tuple[int, Any]]
    ) -> Plan[list[Answer]]:
        """Of requests of the batch, by their indexes, each with the AnotherWindow that it needs."""
        if not (left_ms := (yield from TimeLeft())):
            raise RateLimiterUnavailable("PostgreSQL did not answer in time: meanwhile the window of a quota was over")
        given, *_ = execute.parameters
        requests, moments, server_ms = list[Request](), dict[Place, int](), 0
        for at, another in wanted:
            request = batch.requests[at]
            requests.append(request)
            server_ms = another.now_ms
            for part, moment_ms in zip(request.parts, another.moments_ms):
                moments[request.keys[part.level], part.limit.name] = moment_ms
        if given is None:
            self._ahead_ms = server_ms - int(time.time() * 1000)
        encoded = PostgresBatch(requests, batch.listener, server_ms, moments)
        execute = self.settling(encoded, None if given is None else int(given), patience_ms(left_ms))
        rows = yield from self.rows_plan(execute.statement, *execute.parameters, repeatable=encoded.repeatable)
        return answers_of(encoded, rows)

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
        # Empty rows count as well.
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

    # Usage and namespaces

    def list_usage_plan(
        self,
        namespace: str,
        entity_id: str | None,
        resource: str | None,
        hours: tuple[int, int],
        cursor: str | None,
        now_ms: int | None,
    ) -> Plan[Page[UsageRow]]:
        start, end = bounds_of(namespace, entity_id)
        after_hour, after_name, after_key = (cursor or f"0  {start}").split(" ", 2)
        rows = yield from self.rows_plan(
            self._list_usage,
            start.encode(),
            end.encode(),
            *map(literal.number, hours),
            b"t" if self.usage_ms else b"f",
            after_key.encode(),
            after_name.encode(),
            after_hour.encode(),
        )
        page = []
        for key, of_key in groupby(rows, key=lambda row: text_of(row[0])):
            _, its_entity, its_resource = parse_bucket_key(key)
            used = _by_limit(list(of_key))
            if resource in (None, its_resource):
                page.append(UsageRow(its_entity, its_resource, used))
        return Page(page, _cursor(rows[-1]) if len(rows) == _NUMBERS else None)

    def sweep_plan(self, namespace: str, now_ms: int | None) -> Plan[Swept]:
        buckets = leases = records = 0
        start, end = bounds_of(namespace)
        asked = (literal.number(now_ms), literal.number(self.usage_ms))
        after: bytes | None = start.encode()
        while after is not None:
            yield from MoreTime()
            ((full, gone, after),) = yield from self.rows_plan(self._sweep, *asked, after, end.encode())
            buckets, leases = buckets + number_of(full), leases + number_of(gone)
        after = start.encode() if self.usage_ms else None
        while after is not None:
            yield from MoreTime()
            ((after,),) = yield from self.rows_plan(self._sweep_usage, *asked, after, end.encode())
        expired = 1
        while expired:
            yield from MoreTime()
            ((count,),) = yield from self.rows_plan(self._sweep_records, literal.number(now_ms))
            expired = number_of(count)
            records += expired
        return Swept(buckets, records, leases)

    def list_stored_plan(self) -> Plan[list[str]]:
        rows = yield from self.rows_plan(self._list_stored)
        return sorted(text_of(name) for (name,) in rows)

    def count_stored_plan(self, namespace: str) -> Plan[int]:
        ((count,),) = yield from self.rows_plan(self._count, *map(str.encode, bounds_of(namespace)))
        return number_of(count)

    def purge_plan(self, namespace: str) -> Plan[int]:
        patience = yield from self._patience_plan()
        ((removed,),) = yield from self.rows_plan(self._purge, patience, *map(str.encode, bounds_of(namespace)))
        return number_of(removed)

    # Setup

    def setup_plan(self) -> Plan[None]:
        """If all is there, nothing is created, so that a role without that right can call it."""
        ((there, kind),) = yield from self.rows_plan(self._look, checks=False)
        version, functions = (yield from self._version_plan()) if there == b"t" else (0, 0)
        if version < VERSION or (version == VERSION and functions < FUNCTIONS):
            yield from MoreTime()
            yield from self.rows_plan(self._setup, checks=False)
        elif self._settings.unlogged not in (None, kind == b"u"):
            yield from MoreTime()
            yield from self.rows_plan(self._persistence, checks=False)
        yield from self.check_plan()

    def ping_plan(self) -> Plan[None]:
        yield from self.check_plan()


def bounds_of(namespace: str, entity_id: str | None = None) -> tuple[str, str]:
    """All keys of a namespace, or all buckets of an entity, are between these."""
    if entity_id is None:
        return f"{namespace}/", f"{namespace}0"
    return f"{namespace}/{entity_id}#", f"{namespace}/{entity_id}$"


def answers_of(batch: PostgresBatch, rows: list[Row]) -> list[Answer]:
    ((reply,),) = rows
    assert reply is not None
    return batch.answers(literal.read_numbers(reply))


def _what(change: Change) -> str:
    return "put" if isinstance(change, Put) else "check" if isinstance(change, Check) else "delete"


def _record(row: Row) -> Record:
    key, value, version = row
    return read_record(text_of(key), text_of(value), number_of(version))


def _state(row: Row) -> State:
    """The settled bucket, quota or slots of a row."""
    key, name, *numbers, held = row
    capacity_milli, refill_milli, period_ms, *state, now_ms = map(number_of, numbers)
    if refill_milli == AT_ONCE and LOWEST_PERIOD <= period_ms < 0:
        period_ms = 0  # it has a calendar
    if not is_sound_limit(capacity_milli, refill_milli, period_ms):
        raise corrupt_limit(text_of(key), text_of(name), [capacity_milli, refill_milli, period_ms, *state])
    limit = Limit.from_stored(text_of(name), capacity_milli, refill_milli, period_ms)
    tokens_milli, settled_at_ms, _, blocked_until_ms, revision, _ = state
    holders: dict[str, Any] = json.loads(text_of(held)) if held else {}
    found: State | None = None
    if refill_milli:
        found = bucket_as_stored(limit, limit.name, capacity_milli, refill_milli, period_ms, *state)
    elif tokens_milli >= 0 and is_sound_slots(settled_at_ms, blocked_until_ms, revision, holders):
        leases = {lease_id: (milli, until_ms) for lease_id, (milli, until_ms) in holders.items()}
        found = Slots(limit, settled_at_ms, leases, blocked_until_ms, revision)
    if found is None:
        values = [capacity_milli, refill_milli, period_ms, *state, *holders.values()]
        raise corrupt_limit(text_of(key), text_of(name), values)
    found.settle(now_ms)
    return found


def _by_limit(rows: list[Row]) -> dict[str, dict[int, int]]:
    used: dict[str, dict[int, int]] = {}
    for _, name, hour, milli in rows:
        used.setdefault(text_of(name), {})[number_of(hour)] = number_of(milli)
    return used


def _cursor(row: Row) -> str:
    key, name, hour, _ = row
    return f"{number_of(hour)} {text_of(name)} {text_of(key)}"
