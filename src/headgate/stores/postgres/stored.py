"""Of whom something is stored, how much, what was used, and how it is removed."""

from __future__ import annotations

from itertools import groupby

from ...core.names import parse_bucket_key
from ...core.records import Page, Swept
from ...core.usage import HOUR_MS, UsageRow
from ...plan import Plan
from . import literal
from .asking import Asking, number_of, text_of
from .exchange import MoreTime, Row
from .schema import FUNCTIONS, VERSION, persistence_script, setup_script
from .url import Settings

_NUMBERS = 10_000  # in a page of usage
_SWEPT = 1000  # keys in one transaction: others pass them by
_PURGED = 5000  # rows in one transaction: others wait for it

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


def bounds_of(namespace: str, entity_id: str | None = None) -> tuple[str, str]:
    """All keys of a namespace, or all buckets of an entity, are between these."""
    if entity_id is None:
        return f"{namespace}/", f"{namespace}0"
    return f"{namespace}/{entity_id}#", f"{namespace}/{entity_id}$"


class StoredPlans(Asking):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.usage_ms = 0
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

    # Life

    def setup_plan(self) -> Plan[None]:
        """Nothing is done if all is there: then a role will do that may not make anything."""
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


def _by_limit(rows: list[Row]) -> dict[str, dict[int, int]]:
    used: dict[str, dict[int, int]] = {}
    for _, name, hour, milli in rows:
        used.setdefault(text_of(name), {})[number_of(hour)] = number_of(milli)
    return used


def _cursor(row: Row) -> str:
    key, name, hour, _ = row
    return f"{number_of(hour)} {text_of(name)} {text_of(key)}"
