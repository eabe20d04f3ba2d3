"""Health of the server: version, schema, durability, connections, bloat and clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from ...plan import Plan
from ..health import ClockReading, Finding
from .blocking import PostgresStore
from .exchange import Row, Statement
from .queries import number_of, text_of
from .schema import VERSION
from .url import PostgresSettings, read_url

_LEAST = 130_000
_BLOATED_BYTES = 256_000_000
_FACTS = """
SELECT current_setting('server_version'), current_setting('server_version_num'),
  current_setting('default_transaction_isolation'), current_setting('synchronous_commit'),
  pg_is_in_recovery()::text, current_setting('max_connections'),
  (SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL),
  (SELECT max(version) FROM headgate.version),
  (SELECT relpersistence FROM pg_class WHERE oid = to_regclass('headgate.buckets')),
  pg_relation_size(to_regclass('headgate.buckets')), pg_indexes_size(to_regclass('headgate.buckets')),
  (SELECT n_live_tup FROM pg_stat_user_tables WHERE relid = to_regclass('headgate.buckets')),
  (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = to_regclass('headgate.buckets'))"""
_TIME = "SELECT headgate.clock(NULL)"


def examine(url: str, timeout_seconds: float) -> list[Finding]:
    settings = read_url(url)
    return list(_findings(_ask(settings, timeout_seconds, _FACTS), settings))


def read_clock(url: str, timeout_seconds: float) -> ClockReading:
    (time_ms,) = _ask(read_url(url), timeout_seconds, _TIME)
    return ClockReading(number_of(time_ms), number_of(time_ms))


def _ask(settings: PostgresSettings, timeout_seconds: float, sql: str) -> Row:
    statement = Statement(sql, settings.schema)

    with closing(PostgresStore(settings, timeout_seconds)) as store:

        def plan() -> Plan[Row]:
            yield from store._plans.ping_plan()  # so that connecting is not part of the measured time
            (row,) = yield from store._plans.rows_plan(statement)
            return row

        return store._run(plan())


def _findings(facts: Row, settings: PostgresSettings) -> Iterator[Finding]:
    version, number, isolation, commit, standby, most, used, schema_version, kind, *sizes = facts
    table_bytes, index_bytes, live, dead = (number_of(size or b"0") for size in sizes)
    yield _version(text_of(version), number_of(number))
    yield Finding("schema", "ok", f"{settings.schema}, version {number_of(schema_version)} of {VERSION}")
    yield _durability(text_of(commit), text_of(kind) == "u")
    if text_of(standby) == "true":
        yield Finding("server", "fail", "a standby, which cannot be written to", "name the primary in the URL")
    if text_of(isolation) != "read committed":
        found = f"default_transaction_isolation = {text_of(isolation)}"
        advice = "calls on one bucket abort each other and are repeated: ALTER ROLE ... SET it to 'read committed'"
        yield Finding("isolation", "warn", found, advice)
    yield _connections(number_of(used), number_of(most), settings.pool)
    found = f"{live:,} buckets and {dead:,} dead rows, {table_bytes / 1e6:,.1f} MB, index {index_bytes / 1e6:,.1f} MB"
    if table_bytes > _BLOATED_BYTES and dead > 10 * live:
        yield Finding("bloat", "warn", found, "autovacuum does not keep up: is a transaction open for hours?")
    else:
        yield Finding("bloat", "ok", found)


def _version(version: str, number: int) -> Finding:
    if number < _LEAST:
        return Finding("server", "fail", f"PostgreSQL {version}", "headgate needs PostgreSQL 13 or later")
    return Finding("server", "ok", f"PostgreSQL {version}")


def _durability(commit: str, unlogged: bool) -> Finding:
    if unlogged:
        found = "unlogged tables: after a crash of the server all buckets are full"
        return Finding("durability", "warn", found, "if that matters, setup() with unlogged=0 in the URL")
    if commit == "off":
        return Finding(
            "durability", "warn", "synchronous_commit = off: a crash forgets the last second", "set it to on"
        )
    return Finding("durability", "ok", f"logged tables, synchronous_commit = {commit}")


def _connections(used: int, most: int, pool: int) -> Finding:
    found = f"{used} of {most} connections in use, this process may have {pool}"
    if used + pool > most:
        return Finding(
            "connections", "warn", found, "let each process have fewer with pool= in the URL, or use PgBouncer"
        )
    return Finding("connections", "ok", found)
