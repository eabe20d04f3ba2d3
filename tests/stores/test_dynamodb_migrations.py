"""From the older layout to this one, with items that a client of the older one has written."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dynamodb_tables import Driven, a_table

from headgate import Limit, SyncRateLimiter, ValidationError
from headgate.plan import Plan
from headgate.stores.dynamodb.attributes import values_of
from headgate.stores.dynamodb.exchange import Exchange, Failed, MoreTime, Reply, Send
from headgate.stores.dynamodb.migrations import LEASE_MS, MIGRATIONS, Migrator, Report
from headgate.stores.dynamodb.migrations.older import FromOlder
from headgate.stores.dynamodb.namespaces import Namespaces
from headgate.stores.dynamodb.rows import bucket_of, read_row
from headgate.stores.dynamodb.table import STREAM, TABLE, Table
from headgate.stores.dynamodb.versions import SCHEMA, Versions
from headgate.testing.clock import ManualClock
from headgate.testing.servers.dynamodb import Engine

# As they were written, but in another century: engines delete what has expired by their own clock.
LATER_SECONDS = 2_300_000_000
STORED = json.loads(
    re.sub(
        r'"(1[78]\d{8})(\d{3})?"',
        lambda found: f'"{int(found[1]) + LATER_SECONDS}{found[2] or ""}"',
        (Path(__file__).parent / "dynamodb_older_items.json").read_text(),
    )
)
NOW = 1_794_800_520_000 + LATER_SECONDS * 1000  # a few seconds after the buckets were used
KINDS = {
    "nested": {"entities": 2, "buckets": 4, "limits": 3, "usage": 3},
    "flat": {"entities": 2, "buckets": 3, "limits": 6, "usage": 3, "audit": 7, "resources": 1},
}


# What is moved is the same on every engine; that it can be is tried on AWS's own as well.
on_both_engines = pytest.mark.parametrize("dynamodb_engine", ["ministack", "dynamodb_local"], indirect=True)


@pytest.fixture(params=["ministack"])
def dynamodb_engine(request: pytest.FixtureRequest) -> Engine:
    engine: Engine = request.getfixturevalue(request.param)
    return engine


@pytest.fixture
def driven(dynamodb_engine: Engine, aws_credentials: str) -> Iterator[Driven]:
    """A table with two indexes, as it was."""
    with a_table(dynamodb_engine, made=False) as driven:
        attributes = [one for one in TABLE["AttributeDefinitions"] if one["AttributeName"][:4] not in ("GSI3", "GSI4")]
        indexes = [index | {"Projection": {"ProjectionType": "ALL"}} for index in TABLE["GlobalSecondaryIndexes"][:2]]
        driven.client.create_table(
            TableName=driven.table,
            **{**TABLE, "AttributeDefinitions": attributes, "GlobalSecondaryIndexes": indexes},
            StreamSpecification=STREAM,
        )
        yield driven


def store(driven: Driven, generation: str) -> None:
    for item in STORED[generation]:
        driven.put(**item)


def migrator(driven: Driven, now_ms: int = NOW, page_size: int = 100) -> Migrator:
    return Migrator(driven.deliver, MIGRATIONS, lambda: now_ms, page_size)


def migrate(driven: Driven, now_ms: int = NOW, page_size: int = 100) -> list[Report]:
    return driven.run(migrator(driven, now_ms, page_size).run_plan())


def new_items(driven: Driven) -> dict[tuple[str, str], dict[str, Any]]:
    """What was made, without the id of the namespace, which is by chance, and what says when and by whom."""
    ns = driven.run(Namespaces(driven.deliver).register_plan("default", migrating=True)).id
    items = json.loads(json.dumps(list(driven.items().values())).replace(ns, "NS"))
    found = {(item["PK"]["S"], item["SK"]["S"]): values_of(item) for item in items}
    for values in found.values():
        values.pop("at", None)
        for name in values.keys() & {"metadata", "details"}:
            values[name] = json.loads(values[name])
    return {key: values for key, values in found.items() if not key[1].startswith("#MIGRATION#")}


@on_both_engines
@pytest.mark.parametrize("generation", STORED)
def test_everything_is_moved(driven: Driven, generation: str) -> None:
    store(driven, generation)
    (report,) = migrate(driven)
    assert report.counts == KINDS[generation]
    assert report.left == []
    assert not [pk for pk, _ in driven.items() if "/" not in pk[:12]], "nothing of the older layout is left"
    assert driven.run(Versions(driven.deliver).check_plan()) == (SCHEMA, SCHEMA)
    assert migrate(driven) == [], "there is nothing more to do"
    driven.run(Table(driven.deliver).setup_plan())


@pytest.mark.parametrize("generation", STORED)
def test_what_it_becomes(driven: Driven, generation: str) -> None:
    store(driven, generation)
    migrate(driven)
    items = new_items(driven)
    assert items["NS/ENTITY#key-1", "#META"] == {
        "PK": "NS/ENTITY#key-1",
        "SK": "#META",
        "entity_id": "key-1",
        "name": "key-1",
        "parent_id": "proj-1",
        "cascade": generation == "flat",
        "metadata": {"tier": "gold", "n": 1.5, "list": [1, None, True]},
        "version": 1,
        "GSI1PK": "NS/PARENT#proj-1",
        "GSI1SK": "CHILD#key-1",
        "GSI2PK": "NS/ENTITIES#",
        "GSI2SK": "key-1",
        "GSI4PK": "NS",
        "GSI4SK": "NS/ENTITY#key-1",
    }
    usage = items["NS/ENTITY#proj-1", "#USAGE#gpt-4#hour#2026-11-16T03:00:00Z"]
    assert usage == {
        "PK": "NS/ENTITY#proj-1",
        "SK": "#USAGE#gpt-4#hour#2026-11-16T03:00:00Z",
        "entity_id": "proj-1",
        "resource": "gpt-4",
        "window": "hour",
        "window_start": "2026-11-16T03:00:00Z",
        "total_events": 3,
        "u_tpm": 18_000_000,
        "u_rpd": 3_000,
        "ttl": 1_802_576_515 + LATER_SECONDS,
        "GSI2PK": "NS/RESOURCE#gpt-4",
        "GSI2SK": "USAGE#hour#2026-11-16T03:00:00Z#proj-1",
        "GSI4PK": "NS",
        "GSI4SK": "NS/ENTITY#proj-1",
    }
    assert ("NS/ENTITY#proj-1", "#USAGE#gpt-4#day#2026-11-16T00:00:00Z") in items
    assert ("NS/ENTITY#proj-1", "#USAGE#gpt-4#month#2026-11-01T00:00:00Z") in items
    if generation == "flat":
        audit = items["NS/AUDIT#$SYSTEM", "#AUDIT#01M7H74YSWS6S3XPFPS8TAQ1Z6"]
        assert audit["details"] == {"on_unavailable": "allow"}
        assert audit["action"] == "limits_set"
        assert audit["ttl"] == 1_802_576_515 + LATER_SECONDS


@pytest.mark.parametrize("generation", STORED)
def test_buckets_have_the_tokens_that_they_had(driven: Driven, generation: str) -> None:
    store(driven, generation)
    migrate(driven)
    rows = {key[0].partition("#")[2]: read_row(item) for key, item in driven.items().items() if key[1] == "#STATE"}
    assert set(rows) == ({"key-1#gpt-4#0", "proj-1#gpt-4#0"} if generation == "nested" else {"proj-1#gpt-4#0"})
    for item in STORED[generation]:
        if not item["SK"]["S"].startswith("#BUCKET#"):
            continue
        old = values_of(item["data"]["M"] if "data" in item else item)
        row = rows.get(f"{item['entity_id']['S']}#gpt-4#0")
        for now_ms in (NOW, NOW + 777, NOW + 10**6):
            gained = (now_ms - old["last_refill_ms"]) * old["refill_amount_milli"] // old["refill_period_ms"]
            had = min(old["burst_milli"], old["tokens_milli"] + gained)
            state = row.states[old["limit_name"]] if row else None
            assert (bucket_of(state, now_ms).tokens_milli if state else old["burst_milli"]) == had
        if row is not None:
            assert row.states[old["limit_name"]].consumed_milli == 0, "it has been counted"
            assert row.shard_count == 1
            assert row.ttl * 1000 > max(state.v // state.limit.refill_milli for state in row.states.values())


def test_a_limiter_goes_on(driven: Driven, dynamodb_engine: Engine) -> None:
    store(driven, "flat")
    url = dynamodb_engine.url(driven.table)
    clock = ManualClock(NOW)
    with SyncRateLimiter(url, clock=clock) as limiter:
        with pytest.raises(ValidationError, match=rf"headgate aws migrate --name {driven.table}"):
            limiter.try_acquire("key-1", "gpt-4", {"tpm": 1})
        migrate(driven)
        assert limiter.get_entity("key-1").parent_id == "proj-1"
        assert [child.entity_id for child in limiter.get_children("proj-1")] == ["key-1"]
        assert limiter.get_limits("key-1") == [Limit.per_minute("tpm", 500)]
        assert limiter.get_limits("proj-1", "gpt-4") == [
            Limit.per_day("rpd", 100),
            Limit.per_minute("tpm", 10_000, burst=15_000),
        ]
        assert limiter.get_resource_defaults("gpt-4") == [Limit.per_second("rps", 5, burst=7)]
        assert limiter.get_system_defaults() == [Limit.per_minute("rpm", 60)]
        assert limiter.get_system_on_unavailable() == "allow"
        assert limiter.list_entities_with_custom_limits("gpt-4") == ["proj-1"]
        assert limiter.available("proj-1", "gpt-4") == {"tpm": -2328, "rpd": 97}
        assert not limiter.try_acquire("key-1", "gpt-4", {"tpm": 1}), "its parent is in debt"
        clock.advance(60)
        assert limiter.try_acquire("key-1", "gpt-4", {"tpm": 1})


# Stopped half-way


def run_until(driven: Driven, plan: Plan[Any], sends: int) -> int | None:
    """Run a plan, and let it die after so many operations: if odd, with the last ones first of what goes out at once.

    How many more there could have been; None if it died.
    """
    left = sends
    answer: Any = None
    try:
        while True:
            call = plan.send(answer)
            if isinstance(call, Exchange):
                if len(call.sends) > left:
                    for send in (call.sends[::-1] if sends % 2 else call.sends)[:left]:
                        driven.reply(send)
                    return None
                left -= len(call.sends)
            answer = driven.perform(call)
    except StopIteration:
        return left


def wipe(driven: Driven) -> None:
    at_once(driven, [{"DeleteRequest": {"Key": {"PK": {"S": pk}, "SK": {"S": sk}}}} for pk, sk in driven.items()])


def at_once(driven: Driven, requests: list[Any]) -> None:
    for start in range(0, len(requests), 25):
        undone = driven.client.batch_write_item(RequestItems={driven.table: requests[start : start + 25]})
        assert not undone.get("UnprocessedItems")


@on_both_engines
@pytest.mark.parametrize("page_size", [2])
def test_killed_at_any_point_and_run_again(driven: Driven, dynamodb_engine: Engine, page_size: int) -> None:
    stored = [item for item in STORED["nested"] if item["PK"]["S"] in ("ENTITY#key-1", "SYSTEM#")]

    def begin(page_size: int) -> Plan[Any]:
        at_once(driven, [{"PutRequest": {"Item": item}} for item in stored])
        return migrator(driven, page_size=page_size).run_plan()

    driven.run(Table(driven.deliver).create_missing_plan())
    driven.run(begin(100))
    expected = new_items(driven)
    killed_after, finished = 0, False
    while not finished:
        wipe(driven)
        finished = run_until(driven, begin(page_size), killed_after) is not None
        if not finished:
            with pytest.raises(ValidationError, match="headgate aws migrate"):
                driven.run(Namespaces(driven.deliver).find_plan("default"))
            migrate(driven, NOW + LEASE_MS, page_size)
        found = new_items(driven)
        found["_/SYSTEM#", "#NAMESPACE#default"]["created_at_ms"] = NOW
        assert found == expected, f"killed after {killed_after} operations"
        killed_after += 1 if dynamodb_engine.name == "ministack" else 4
    assert killed_after > 20


def test_a_run_goes_on_where_the_one_before_was(driven: Driven) -> None:
    for n in range(30):
        driven.put(PK={"S": f"ENTITY#e{n:02}"}, SK={"S": "#META"}, name={"S": "x"}, metadata={"M": {}})
    driven.run(Table(driven.deliver).create_missing_plan())
    plan = migrator(driven, page_size=5).run_plan()
    assert run_until(driven, plan, 60) is None
    saved = [send.parameters for send in driven.sent if "#start" in str(send.parameters)][-1]
    start = json.loads(saved["ExpressionAttributeValues"][":start"]["S"])
    driven.operations()
    (report,) = migrate(driven, NOW + LEASE_MS, 5)
    scans = [
        send.parameters for send in driven.sent if send.operation == "Scan" and "ConsistentRead" in send.parameters
    ]
    assert scans[0]["ExclusiveStartKey"] == {"PK": {"S": start[0]}, "SK": {"S": start[1]}}
    assert Counter(sk for _, sk in driven.items())["#META"] == 30
    assert report.counts["entities"] <= 30


def test_a_table_without_a_version_that_is_killed(driven: Driven) -> None:
    """Once something was moved, it cannot be told by its items any more."""
    for n in range(40):
        driven.put(PK={"S": f"ENTITY#e{n:02}"}, SK={"S": "#META"}, name={"S": "x"}, metadata={"M": {}})
    driven.run(Table(driven.deliver).create_missing_plan())
    assert run_until(driven, migrator(driven, page_size=39).run_plan(), 60) is None
    with pytest.raises(ValidationError, match="headgate aws migrate"):
        driven.run(Namespaces(driven.deliver).id_plan("default"))
    migrate(driven, NOW + LEASE_MS)
    assert Counter(sk for _, sk in driven.items())["#META"] == 40
    assert driven.run(Versions(driven.deliver).check_plan()) == (SCHEMA, SCHEMA)


def test_two_runs_do_not_interleave(driven: Driven) -> None:
    store(driven, "nested")
    slow = migrator(driven, page_size=3).run_plan()
    answer: Any = None
    while True:  # up to the first page that it has saved
        call = slow.send(answer)
        if isinstance(call, Exchange) and "#start" in str(call.sends[0].parameters):
            break
        answer = driven.perform(call)
    with pytest.raises(ValidationError, match=r"being run by somebody else.*try again in 60 seconds"):
        migrate(driven)
    with pytest.raises(ValidationError, match="try again in 1 seconds"):
        migrate(driven, NOW + LEASE_MS - 1000)
    driven.perform(call)
    (report,) = migrate(driven, NOW + LEASE_MS, 3)
    assert report.counts["buckets"] == 4, "what the first run did is counted too"
    before = driven.items()
    with pytest.raises(ValidationError, match="taken over by another run"):
        answer = driven.perform(call)
        while True:
            answer = driven.perform(slow.send(answer))
    assert driven.items() == before


def test_the_end_waits_for_transactions_of_others(driven: Driven) -> None:
    store(driven, "nested")
    reasons = [Failed("TransactionConflict", "")]

    def busy(send: Send) -> Reply | None:
        if "finished_at_ms" not in str(send.parameters):
            return None
        driven.meddle = lambda send: None
        return Failed("TransactionCanceled", "", reasons=reasons)

    driven.meddle = busy
    migrate(driven)
    assert driven.run(Versions(driven.deliver).check_plan()) == (SCHEMA, SCHEMA)


def test_a_page_may_take_longer_than_a_call(driven: Driven) -> None:
    """Every operation has a deadline of its own: a page that is too long would never be done."""
    store(driven, "flat")
    driven.run(Table(driven.deliver).create_missing_plan())
    plan = migrator(driven).run_plan()
    since, longest = 0, 0
    answer: Any = None
    try:
        while True:
            call = plan.send(answer)
            since = 0 if isinstance(call, MoreTime) else since + isinstance(call, Exchange)
            longest = max(longest, since)
            answer = driven.perform(call)
    except StopIteration:
        pass
    assert longest <= 4


def test_a_dry_run_counts_and_changes_nothing(driven: Driven) -> None:
    for generation in STORED:
        store(driven, generation)
        before = driven.items()
        for page_size in (3, 100):
            (report,) = driven.run(migrator(driven, page_size=page_size).run_plan(dry=True))
            assert report.number == SCHEMA
            if generation == "nested":
                assert report.counts == KINDS[generation]
        assert driven.items() == before


def test_what_cannot_be_moved_is_left_and_told(driven: Driven) -> None:
    store(driven, "nested")
    driven.put(PK={"S": "ENTITY#has space"}, SK={"S": "#META"}, data={"M": {"name": {"S": "x"}}})
    driven.put(PK={"S": "ENTITY#odd"}, SK={"S": "#ODD"}, x={"N": "1"})
    broken = {"data": {"M": {"limit_name": {"S": "rpm"}, "capacity": {"N": "0"}}}}
    driven.put(PK={"S": "ENTITY#odd"}, SK={"S": "#LIMIT#r#rpm"}, **broken)
    (dry,) = driven.run(migrator(driven).run_plan(dry=True))
    (report,) = migrate(driven)
    assert report == dry
    assert report.counts == {**KINDS["nested"], "left": 3}
    assert sorted(left.partition(")")[0] for left in report.left) == [
        "('ENTITY#has space', '#META'",
        "('ENTITY#odd', '#LIMIT#r#rpm'",
        "('ENTITY#odd', '#ODD'",
    ]
    assert any("'has space' is not allowed" in left for left in report.left)
    assert {("ENTITY#has space", "#META"), ("ENTITY#odd", "#ODD"), ("ENTITY#odd", "#LIMIT#r#rpm")} <= set(
        driven.items()
    )
    assert driven.run(Versions(driven.deliver).check_plan()) == (SCHEMA, SCHEMA)


def test_going_on_for_another_namespace_is_refused(driven: Driven) -> None:
    store(driven, "nested")
    driven.run(Table(driven.deliver).create_missing_plan())
    assert run_until(driven, migrator(driven, page_size=2).run_plan("one"), 20) is None
    with pytest.raises(ValidationError, match="begun for another namespace"):
        driven.run(migrator(driven, NOW + LEASE_MS).run_plan("two"))


def test_a_new_table_needs_nothing(driven: Driven) -> None:
    assert migrate(driven) == []
    driven.run(Table(driven.deliver).setup_plan())
    assert migrate(driven) == []


def test_the_numbers_of_the_migrations() -> None:
    assert [migration.number for migration in MIGRATIONS] == list(range(2, SCHEMA + 1))
    assert isinstance(MIGRATIONS[0], FromOlder)
