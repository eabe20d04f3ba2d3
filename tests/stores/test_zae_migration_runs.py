"""Migrations that are stopped, repeated, refused, or done in place; and tables that nobody has migrated yet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from dynamodb_tables import Driven, a_table
from zae_migration_helpers import (
    NEWER,
    RELEASES,
    Made,
    both_tables,
    exists,
    migrate,
    migrator,
    run_until,
    source_table,
    without_chance,
)

from headgate import Limit, SyncRateLimiter, ValidationError
from headgate.core.errors import NamespaceNotFound
from headgate.plan import Plan
from headgate.stores.dynamodb.exchange import Exchange, Failed, MoreTime, Reply, Send
from headgate.stores.dynamodb.migrations import LEASE_MS, MigrationRefused
from headgate.stores.dynamodb.namespaces import Namespaces
from headgate.stores.dynamodb.rows import bucket_of, read_row
from headgate.stores.dynamodb.table import SCHEMA, DynamoDBTable, Versions
from headgate.testing.servers.process import PATIENCE_SECONDS
from local_servers.dynamodb import Engine, Proxy, Request

on_both_engines = pytest.mark.parametrize("engine", ["ministack", "dynamodb_local"], indirect=True)
OLD, NEW = "0.6.1", "0.17.0"  # one of each kind: without namespaces, and with them
STRESS = os.environ.get("HEADGATE_STRESS") == "1"
VERSION = {"PK": {"S": "_/SYSTEM#"}, "SK": {"S": "#VERSION"}}


@pytest.fixture(params=["ministack"])
def engine(request: pytest.FixtureRequest, aws_credentials: str) -> Engine:
    engine: Engine = request.getfixturevalue(request.param)
    return engine


@pytest.fixture
def tables(engine: Engine) -> Iterator[tuple[Driven, Driven]]:
    """Filled by NEW."""
    with both_tables(engine, Made(NEW).items) as tables:
        yield tables


def small(release: str) -> Made:
    """A bit of each kind, so that a run has few operations."""
    made = Made(release)
    kept = ("proj-1", "SYSTEM#", "RESOURCE#")
    made.items = [item for item in made.items if any(part in item["PK"]["S"] for part in kept)]
    made.items = [item for item in made.items if "AUDIT" not in item["PK"]["S"] or "proj-1" in item["PK"]["S"]]
    return made


# Before a migration


@pytest.mark.parametrize(
    ("release", "with_version"),
    [*[(release, True) for release in (*RELEASES, NEWER)], (OLD, False), (NEW, False), (NEWER, False)],
)
def test_a_table_of_zae_limiters_is_never_used_or_written_to(engine: Engine, release: str, with_version: bool) -> None:
    made = Made(release)
    items = [item for item in made.items if with_version or item["SK"]["S"] != "#VERSION"]
    with source_table(engine, items) as source, SyncRateLimiter(engine.url(source.table), store_timeout=10) as limiter:
        before = source.items()
        uses = [
            lambda: limiter.try_acquire("key-1", "gpt-4", {"tpm": 1}, [Limit.per_minute("tpm", 10)]),
            lambda: limiter.available("key-1", "gpt-4", [Limit.per_minute("tpm", 10)]),
            lambda: limiter.set_system_defaults([Limit.per_minute("rpm", 1)]),
            lambda: limiter.get_entity("key-1"),
            lambda: limiter.get_usage(),
            lambda: limiter.list_namespaces(),
            limiter.setup,
            limiter.ping,
        ]
        for use in uses:
            with pytest.raises(ValidationError, match=f"headgate aws migrate --name {source.table}"):
                use()
        assert source.items() == before


def test_an_empty_table_is_used_by_whoever_comes_first(engine: Engine) -> None:
    """Its items are found by others who have looked for the version before."""
    with a_table(engine) as driven:
        driven.client.delete_item(TableName=driven.table, Key=VERSION)
        race: list[Any] = []

        def overtaken(send: Send) -> Reply:
            race.append(driven.run(Namespaces(driven.deliver).id_plan("first")))
            return driven.reply(send)

        driven.meddle_once("Scan", overtaken)
        driven.run(Namespaces(driven.deliver).id_plan("second"))
        assert driven.run(Versions(driven.deliver).check_plan()) == (SCHEMA, SCHEMA)
        assert Counter(sk.split("#")[1] for _, sk in driven.items()) == {"NAMESPACE": 2, "VERSION": 1}


def test_without_permission_to_look_nothing_is_assumed(engine: Engine) -> None:
    with a_table(engine) as driven:
        driven.client.delete_item(TableName=driven.table, Key=VERSION)
        driven.meddle_once("Scan", lambda send: Failed("AccessDenied", "not authorized to perform: dynamodb:Scan"))
        with pytest.raises(ValidationError, match=r"may not check whether it is empty: call limiter.setup\(\)"):
            driven.run(Namespaces(driven.deliver).id_plan("acme"))
        assert driven.items() == {}


# Stopped, and run again


@on_both_engines
@pytest.mark.parametrize("release", [OLD, NEW])
def test_killed_at_any_point_and_run_again_it_is_the_same(engine: Engine, release: str) -> None:
    made = small(release)
    later = made.now_ms + LEASE_MS
    step = 1 if STRESS else 5  # not a divisor of the page's size: so each place in a page has its turn
    with source_table(engine, made.items) as source:
        with a_table(engine, made=False) as target:
            migrate(source, target, made)
            expected = without_chance(target.items(), made)
        before = source.items()
        killed_after, finished = 0, False
        while not finished:
            with a_table(engine) as target:
                plan = migrator(source, target, made.now_ms, page_size=4).run_plan()
                finished = run_until(target, plan, killed_after)
                if not finished:
                    begun = [item for item in target.items().values() if item["PK"]["S"] != "_/SYSTEM#"]
                    if begun:
                        with pytest.raises(ValidationError, match=r"being filled by `headgate aws migrate`"):
                            target.run(Namespaces(target.deliver).find_plan("default"))
                    migrate(source, target, made, page_size=4, later_ms=LEASE_MS)
                found = without_chance(target.items(), made)
                assert at_moment(found, later) == at_moment(expected, later), f"killed after {killed_after} writes"
            killed_after += step if engine.name == "ministack" else 3 * step
        assert killed_after > 20
        assert source.items() == before


def at_moment(items: dict[Any, Any], now_ms: int) -> dict[Any, Any]:
    """With what buckets have at a moment: at that of an earlier run, something was missing that is refilled by now."""
    found = {}
    for key, item in items.items():
        if key[1] == "#STATE":
            buckets = [bucket_of(state, now_ms) for state in read_row(item).states.values()]
            item = {
                each.limit: (each.tokens_milli, each.remainder)
                for each in buckets
                if each.tokens_milli < each.limit.capacity_milli
            }
        found[key] = item
    return {key: item for key, item in found.items() if item}


def test_a_process_that_is_killed_leaves_a_table_that_the_next_one_finishes(
    engine: Engine, aws_credentials: str
) -> None:
    made = Made(NEW)
    one = next(item for item in made.items if item["SK"]["S"] == "#META")
    ns = one["PK"]["S"].partition("/")[0]
    many = [{**one, "PK": {"S": f"{ns}/ENTITY#many-{n}"}, "entity_id": {"S": f"many-{n}"}} for n in range(600)]
    many = [{name: value for name, value in item.items() if not name.startswith("GSI1")} for item in many]
    many = [{**item, "parent_id": {"NULL": True}} for item in many]
    stuck, over, puts = threading.Event(), threading.Event(), count(1)

    def stops_at_300(request: Request) -> None:
        if next(puts) >= 300:
            stuck.set()
            over.wait(PATIENCE_SECONDS)

    with both_tables(engine, [*made.items, *many]) as (source, target), Proxy(engine.endpoint_url) as proxy:
        before = source.items()
        proxy.before(stops_at_300, 10_000, operation="PutItem")
        command = [sys.executable, "-m", "headgate.cli", "aws", "migrate", "--name", source.table]
        command += ["--to-table", target.table, "--region", "us-east-1", "--endpoint-url", proxy.endpoint_url]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        assert stuck.wait(PATIENCE_SECONDS)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        over.set()
        with (
            SyncRateLimiter(engine.url(target.table), store_timeout=10) as limiter,
            pytest.raises(ValidationError, match="being filled"),
        ):
            limiter.get_entity("many-1")
        made.now_ms = 10**13  # long after the lock of the killed one has run out
        migrate(source, target, made)
        assert sum("ENTITY#many-" in pk for pk, _ in target.items()) == 600
        assert source.items() == before
        assert target.run(Versions(target.deliver).check_plan()) == (SCHEMA, SCHEMA)


def test_two_runs_do_not_interleave(tables: tuple[Driven, Driven]) -> None:
    source, target = tables
    made = Made(NEW)
    slow = migrator(source, target, made.now_ms, page_size=3).run_plan()
    answer: Any = None
    while True:  # until it has marked the table
        call = slow.send(answer)
        answer = target.perform(call)
        if isinstance(call, Exchange) and call.sends[0].operation == "TransactWriteItems":
            break
    with pytest.raises(ValidationError, match=r"another run .* try again in 60 seconds"):
        migrate(source, target, made)
    with pytest.raises(ValidationError, match="try again in 1 seconds"):
        migrate(source, target, made, later_ms=LEASE_MS - 1000)
    migrate(source, target, made, later_ms=LEASE_MS)
    before = target.items()
    with pytest.raises(ValidationError, match="has taken over"):
        while True:
            answer = target.perform(slow.send(answer))
    assert target.items() == before


def test_the_end_waits_for_transactions_of_others(tables: tuple[Driven, Driven]) -> None:
    source, target = tables

    def busy(send: Send) -> Reply | None:
        if send.operation != "TransactWriteItems" or "finished_at_ms" not in str(send.parameters):
            return None
        target.meddle = lambda send: None
        return Failed("TransactionCanceled", "", reasons=[Failed("TransactionConflict", "")])

    target.meddle = busy
    migrate(source, target, Made(NEW))
    assert target.run(Versions(target.deliver).check_plan()) == (SCHEMA, SCHEMA)


def test_a_page_may_take_longer_than_a_call(tables: tuple[Driven, Driven]) -> None:
    """Every operation has a deadline of its own: a page that is too long would never be done."""
    source, target = tables
    plan: Plan[Any] = migrator(source, target, Made(NEW).now_ms).run_plan()
    since, longest = 0, 0
    answer: Any = None
    try:
        while True:
            call = plan.send(answer)
            since = 0 if isinstance(call, MoreTime) else since + isinstance(call, Exchange)
            longest = max(longest, since)
            answer = target.perform(call)
    except StopIteration:
        pass
    assert longest <= 4


# Refused


def refused(source: Driven, target: Driven, made: Made, told: str, **options: Any) -> None:
    """Dry or not, with this sentence, and nothing is written."""
    before, was_there = source.items(), target.items() if exists(target) else None
    for dry in (True, False):
        with pytest.raises(ValidationError, match=told):
            migrate(source, target, made, dry=dry, **options)
        assert source.items() == before
        assert (target.items() if exists(target) else None) == was_there


def test_an_unknown_schema_version_is_refused(tables: tuple[Driven, Driven]) -> None:
    source, target = tables
    source.put(**VERSION, schema_version={"S": "0.11.0"})
    told = r"has schema version '0.11.0' of zae-limiter; this headgate reads 1.0.0, 0.7.0, 0.8.0, 0.9.0, 0.10.0"
    refused(source, target, Made(NEW), told)


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({"SK": "#ODD"}, r"item '.+/ENTITY#odd' '#ODD' in namespace 'default': zae-limiter has no items with"),
        ({"SK": "#META", "name": "x", "quota": "9"}, r"entity 'odd' .* has no equivalent of the attribute 'quota'"),
        ({"SK": "#CONFIG#api", "l_rpm_cp": 5, "l_rpm_ra": 5}, r"limits of entity 'odd' on 'api' .*period_seconds"),
        ({"SK": "#CONFIG#api", "l_rpm_cp": 5, "l_rpm_ra": 0, "l_rpm_rp": 1}, r"limits of entity 'odd' .*refill_amount"),
        ({"SK": "#CONFIG#has space", "l_rpm_cp": 5, "l_rpm_ra": 5, "l_rpm_rp": 1}, r"'has space' is not allowed"),
        ({"SK": "#BUCKET#api", "rf": 5, "b_rpm_tk": 5}, r"buckets of entity 'odd' on 'api' .*: capacity"),
        ({"SK": "#META", "ns": "other"}, r"entity 'odd': no namespace has the id 'other'"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_its_place(
    tables: tuple[Driven, Driven], item: dict[str, Any], told: str
) -> None:
    source, target = tables
    ns = item.pop("ns", next(pk.partition("/")[0] for pk, sk in source.items() if sk == "#CONFIG#_default_"))
    names = {
        found["namespace_id"]["S"]: found["namespace_name"]["S"] for found in Made(NEW).items if "namespace_id" in found
    }
    told = told.replace("'default'", repr(names.get(ns, "default")))
    values = {name: {"N": str(value)} if isinstance(value, int) else {"S": value} for name, value in item.items()}
    source.put(PK={"S": f"{ns}/ENTITY#odd"}, **values)
    refused(source, target, Made(NEW), told)


def test_entities_that_do_not_say_whether_they_cascade_need_an_answer(engine: Engine) -> None:
    made = Made("0.3.0")
    made.cascade = None
    with both_tables(engine, made.items) as (source, target):
        refused(source, target, made, "entity 'key-1' .*pass --cascade or --no-cascade")
        made.cascade = False
        migrate(source, target, made)
        with SyncRateLimiter(engine.url(target.table), store_timeout=20) as limiter:
            assert not limiter.get_entity("key-1").cascade


def test_a_target_that_is_in_use_is_refused(tables: tuple[Driven, Driven], engine: Engine) -> None:
    source, target = tables
    with SyncRateLimiter(engine.url(target.table), store_timeout=20) as limiter:
        limiter.setup()
        limiter.create_entity("somebody")
    refused(source, target, Made(NEW), "is in use, or was filled from another table")


def test_a_target_that_was_filled_from_another_table_is_refused(tables: tuple[Driven, Driven], engine: Engine) -> None:
    source, target = tables
    migrate(source, target, Made(NEW))
    with source_table(engine, Made(OLD).items) as other:
        refused(other, target, Made(OLD), "is in use, or was filled from another table")


def test_a_source_that_does_not_exist_or_is_another_programs_is_refused(engine: Engine) -> None:
    with a_table(engine, made=False) as source, a_table(engine, made=False) as target:
        with pytest.raises(ValidationError, match=f"there is no table '{source.table}'"):
            migrate(source, target, Made(NEW))
        source.client.create_table(
            TableName=source.table,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        )
        with pytest.raises(ValidationError, match="it has the keys id, not PK, SK"):
            migrate(source, target, Made(NEW))
        assert not exists(target)


def test_going_on_for_another_namespace_is_refused(engine: Engine) -> None:
    made = small(OLD)
    with source_table(engine, made.items) as source, a_table(engine) as target:
        plan = migrator(source, target, made.now_ms, page_size=4).run_plan("one")
        assert not run_until(target, plan, 8)
        with pytest.raises(ValidationError, match="was begun for namespace 'one'"):
            target.run(migrator(source, target, made.now_ms + LEASE_MS).run_plan("two"))
        target.run(migrator(source, target, made.now_ms + LEASE_MS).run_plan("one"))
        assert [each.name for each in target.run(Namespaces(target.deliver).list_plan())] == ["one"]


def test_a_source_that_changes_into_something_else_meanwhile_stops_the_run(tables: tuple[Driven, Driven]) -> None:
    source, target = tables
    odd = Made(NEWER)
    names = {item["namespace_id"]["S"] for item in odd.items if "namespace_id" in item}
    ns = next(pk.partition("/")[0] for pk, sk in source.items() if sk == "#CONFIG#_default_")

    def meanwhile(send: Send) -> Reply:
        for item in odd.items:
            pk = item["PK"]["S"]
            if pk.partition("/")[0] in names and "soft" in pk:
                source.put(**{**item, "PK": {"S": f"{ns}/{pk.partition('/')[2]}"}})
        return target.reply(send)

    target.meddle_once("TransactWriteItems", meanwhile)
    with pytest.raises(ValidationError, match="has changed since the first pass: limits of entity 'soft'"):
        migrate(source, target, Made(NEW))


# What upgrades of zae-limiter leave behind


def test_only_what_zae_limiter_itself_reads_is_carried(engine: Engine) -> None:
    made = Made(NEW)
    names = {item["namespace_name"]["S"]: item["namespace_id"]["S"] for item in made.items if "namespace_id" in item}
    ns = names["default"]
    limit = {"limit_name": "rpd", "capacity": 1, "burst": 1, "refill_amount": 1, "refill_period_seconds": 60}
    stale = [
        {"PK": f"{ns}/ENTITY#proj-1", "SK": "#LIMIT#gpt-4#rpd", **limit},
        {"PK": f"{ns}/ENTITY#proj-1", "SK": "#BUCKET#gpt-4", "rf": made.now_ms, "b_tpm_tk": 1, "b_tpm_cp": 2_000},
        {"PK": "ENTITY#before", "SK": "#META", "name": "before"},
        {
            "PK": "_/SYSTEM#",
            "SK": "#NSID#twice",
            "namespace_name": "default",
            "namespace_id": "twice",
            "status": "deleted",
            "deleted_at": "2026-11-18T06:02:47Z",
        },
        {"PK": "twice/ENTITY#old", "SK": "#META", "name": "old"},
    ]
    for item in stale:
        values = {name: {"N": str(value)} if isinstance(value, int) else {"S": value} for name, value in item.items()}
        made.items.append(values)
    with both_tables(engine, made.items) as (source, target):
        report = migrate(source, target, made)
        assert report is not None
        assert report.notes == ["namespace 'default' with the id 'twice' is deleted, and is left out"]
        assert report.counts["not read by zae-limiter from 0.10 on"] == 1
        assert report.counts["of namespaces that are left out"] == 1
        with SyncRateLimiter(engine.url(target.table), store_timeout=20) as limiter:
            assert sorted(map(str, limiter.get_limits("proj-1", "gpt-4"))) == ["100/day", "10000/minute burst 15000"]
        assert not [pk for pk, _ in target.items() if "before" in pk or "#old" in pk]


def test_a_deleted_namespace_stays_deleted_and_can_be_recovered(tables: tuple[Driven, Driven], engine: Engine) -> None:
    source, target = tables
    migrate(source, target, Made(NEW))
    with SyncRateLimiter(engine.url(target.table), namespace="gone", store_timeout=20) as limiter:
        with pytest.raises(NamespaceNotFound, match="is deleted: recover"):
            limiter.get_entity("left")
        limiter.recover_namespace("gone")
        assert limiter.get_entity("left").name == "left"


def test_a_table_that_was_set_up_before_keeps_the_ids_of_its_namespaces(
    tables: tuple[Driven, Driven], engine: Engine
) -> None:
    source, target = tables
    target.run(DynamoDBTable(target.deliver).setup_plan())
    ns = target.run(Namespaces(target.deliver).id_plan("default"))
    migrate(source, target, Made(NEW))
    assert target.run(Namespaces(target.deliver).id_plan("default")) == ns
    with SyncRateLimiter(engine.url(target.table), store_timeout=20) as limiter:
        assert limiter.get_entity("key-1").parent_id == "proj-1"


def test_a_table_of_headgates_own_needs_nothing(engine: Engine) -> None:
    with a_table(engine) as source, a_table(engine, made=False) as target:
        assert migrate(source, target, Made(NEW)) is None
        source.client.delete_item(TableName=source.table, Key=VERSION)
        assert migrate(source, target, Made(NEW)) is None, "it is empty"
        assert not exists(target)


# In place


@pytest.mark.parametrize("release", RELEASES if STRESS else [OLD, "0.10.0", NEW])  # copies are of every release
def test_in_place_it_becomes_what_a_copy_is(engine: Engine, release: str) -> None:
    made = Made(release)
    with both_tables(engine, made.items) as (source, target):
        dry = migrate(source, source, made, dry=True)
        assert {item["PK"]["S"] for item in source.items().values()} == {item["PK"]["S"] for item in made.items}
        copied = migrate(source, target, made)
        report = migrate(source, source, made, page_size=9)
        assert report == dry
        assert report is not None
        assert copied is not None
        assert report.counts == copied.counts
        assert without_chance(source.items(), made) == without_chance(target.items(), made)
        assert migrate(source, source, made) is None, "there is nothing more to do"


@pytest.mark.parametrize("release", [OLD, NEW])
def test_in_place_killed_at_any_point_and_run_again(engine: Engine, release: str) -> None:
    made = small(release)
    later = made.now_ms + LEASE_MS
    with both_tables(engine, made.items) as (source, target):
        migrate(source, target, made)
        expected = without_chance(target.items(), made)
    killed_after, finished = 0, False
    while not finished:
        with source_table(engine, made.items) as source:
            plan = migrator(source, source, made.now_ms, page_size=4).run_plan()
            finished = run_until(source, plan, killed_after)
            if not finished:
                migrate(source, source, made, page_size=4, later_ms=LEASE_MS)
            found = without_chance(source.items(), made)
            assert at_moment(found, later) == at_moment(expected, later), f"killed after {killed_after} writes"
        killed_after += 1 if STRESS else 9
    assert killed_after > 30


def test_in_place_what_is_left_out_stays_for_whoever_wants_to_look_at_it(engine: Engine) -> None:
    made = Made(NEWER)
    with source_table(engine, made.items) as source:
        with pytest.raises(MigrationRefused):
            migrate(source, source, made)
        migrate(source, source, made, force=True)
        assert "ENTITY#soft" in {pk.partition("/")[2] for pk, sk in source.items() if sk == "#CONFIG#api"}
        with SyncRateLimiter(engine.url(source.table), namespace="tenant-a", store_timeout=20) as limiter:
            assert limiter.get_entity("key-1").parent_id == "proj-1"
