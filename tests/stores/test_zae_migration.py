"""Tables that real releases of zae-limiter have made become tables of headgate's, whole, or nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from dynamodb_tables import Driven
from hypothesis import given
from hypothesis import strategies as st
from zae_migration_helpers import NEWER, RELEASES, Made, both_tables, exists, migrate

from headgate import Limit, SyncRateLimiter
from headgate.core.errors import EntityNotFound
from headgate.stores.dynamodb.migrations import MigrationRefused
from headgate.stores.dynamodb.migrations.writes import Context
from headgate.stores.dynamodb.migrations.zae_buckets import bucket_writes
from headgate.stores.dynamodb.migrations.zae_items import BUCKETS, ItemGroup
from headgate.stores.dynamodb.rows import bucket_of, read_row
from headgate.testing.clock import ManualClock
from local_servers.dynamodb import Engine

ACTIONS = {
    "entity_created": "entity.created",
    "entity_deleted": "entity.deleted",
    "limits_set": "limits.set",
    "limits_deleted": "limits.deleted",
}


@pytest.fixture(scope="module", params=RELEASES)
def made(request: pytest.FixtureRequest) -> Made:
    return Made(request.param)


@pytest.fixture(scope="module")
def carried(made: Made, ministack: Engine, aws_credentials: str) -> Iterator[tuple[Driven, str]]:
    """A table that was filled from another, and its URL."""
    with both_tables(ministack, made.items) as (source, target):
        before = source.items()
        report = migrate(source, target, made)
        assert report is not None
        assert report.problems == []
        assert source.items() == before, "the source is never written to"
        yield target, ministack.url(target.table)


@pytest.fixture
def limiters(carried: tuple[Driven, str], made: Made) -> Iterator[dict[str, SyncRateLimiter]]:
    """One for each namespace, at the moment the table was made."""
    found = {
        name: SyncRateLimiter(carried[1], namespace=name, clock=ManualClock(made.now_ms), store_timeout=10)
        for name in made.answers
    }
    yield found
    for limiter in found.values():
        limiter.close()


def shapes(limits: list[Limit]) -> list[list[Any]]:
    return sorted([each.name, each.capacity, each.refill_amount, each.refill_period_seconds] for each in limits)


def test_entities_have_their_parents_names_and_metadata(made: Made, limiters: dict[str, SyncRateLimiter]) -> None:
    for name, answers in made.answers.items():
        for entity_id, (title, parent_id, cascade, metadata) in answers["entities"].items():
            entity = limiters[name].get_entity(entity_id)
            assert (entity.name, entity.parent_id, entity.metadata) == (title, parent_id, metadata)
            assert entity.cascade == (bool(parent_id) if made.cascade else cascade)
        for entity_id in answers["entities"]:
            children = answers["children"][entity_id]
            assert [child.entity_id for child in limiters[name].get_children(entity_id)] == children
        with pytest.raises(EntityNotFound):
            limiters[name].get_entity("gone")


def test_limits_of_all_levels_are_what_the_release_says(made: Made, limiters: dict[str, SyncRateLimiter]) -> None:
    for name, answers in made.answers.items():
        limiter = limiters[name]
        for place, limits in answers["limits"].items():
            entity_id, resource = place.split()
            assert shapes(limiter.get_limits(entity_id, None if resource == "_default_" else resource)) == limits
        for resource, limits in answers["resource_defaults"].items():
            assert shapes(limiter.get_resource_defaults(resource)) == limits
        assert shapes(limiter.get_system_defaults()) == answers["system_defaults"]
        assert limiter.get_system_on_unavailable() == answers["on_unavailable"]
        assert limiter.list_entities_with_custom_limits("gpt-4") == ["proj-1"]


def test_limits_resolve_as_in_the_release(made: Made, limiters: dict[str, SyncRateLimiter]) -> None:
    for name, answers in made.answers.items():
        for place, limits in answers["resolved"].items():
            entity_id, resource = place.split()
            assert shapes(limiters[name].resolve_limits(entity_id, resource)[0]) == limits, place


def test_a_limiter_acquires_along_the_carried_chain(made: Made, limiters: dict[str, SyncRateLimiter]) -> None:
    if not made.answers["default"]["system_defaults"]:
        return  # without any stored for it, a parent has no limits
    limiter = limiters["default"]
    before = limiter.available("orphan", "new")["rpm"]
    assert limiter.try_acquire("orphan", "new", {"rpm": 1}), "its parent was never created, and exists now"
    assert limiter.available("orphan", "new")["rpm"] == before - 1
    statuses = limiter.try_acquire("key-1", "new", {"tpm": 1}).statuses
    assert [status.entity_id for status in statuses] == ["key-1"], "its parent has no tpm on this resource"


def test_audit_events_can_be_read_newest_first(made: Made, limiters: dict[str, SyncRateLimiter]) -> None:
    for name, answers in made.answers.items():
        limiter = limiters[name]
        everything = [(event.id, event.action) for event in limiter.get_audit_events(limit=1000)]
        assert everything == sorted(everything)
        for entity_id, events in answers["audit"].items():
            if entity_id.startswith("$"):
                level = "system_defaults.set" if entity_id == "$SYSTEM" else "resource_defaults.set"
                assert sum(action == level for _, action in everything) >= len(events)
                continue
            found = list(limiter.get_audit_events(entity_id))
            assert [event.action for event in found] == [ACTIONS[action] for *_, action in _newest_first(events)]
            assert {event.at.strftime("%Y-%m-%dT%H:%M:%SZ") for event in found} == {at for _, at, _ in events}
            assert {event.actor for event in found} <= {"ops@example.com", "unknown", "arn:aws:iam::000000000000:root"}
            assert {event.namespace for event in found} == ({name} if found else set())
        (created,) = [event for event in limiter.get_audit_events("proj-1") if event.action == "entity.created"]
        assert created.after is not None
        assert created.after["metadata"] == {"tier": "gold", "seats": "3"}


def _newest_first(events: list[Any]) -> list[Any]:
    """By their ids, which begin with the millisecond they were made in. None of them share one."""
    assert len({event[0][:10] for event in events}) == len(events)
    return sorted(events, reverse=True)


def test_usage_of_the_hour_can_be_read(made: Made, limiters: dict[str, SyncRateLimiter]) -> None:
    for limiter in limiters.values():
        (window,) = limiter.get_usage("proj-1", "batch", "hour")
        hourly = [item for item in made.items if "USAGE" in item["SK"]["S"] and "T00:" not in item["SK"]["S"]]
        counted = {int((item.get("rpm") or item["data"]["M"]["rpm"])["N"]) for item in hourly}
        assert set(window.consumed.values()) == counted
        assert [row.resource for row in limiter.get_usage("proj-1")] == ["batch"]


# Balances


def balances(items: list[dict[str, Any]]) -> Iterator[tuple[str, str, str, str, Fraction, tuple[int, int, int]]]:
    """Namespace id, entity, resource and limit of each bucket in an item of its own; when it is full, and its shape.

    Read from the items alone, in their own words: nothing of headgate's is used.
    """
    for item in items:
        fields = item["data"]["M"] if "data" in item else item
        ns = item["PK"]["S"].rpartition("/")[0]
        if item["SK"]["S"].startswith("#BUCKET#") or item["SK"]["S"] == "#STATE":
            entity_id, resource = item["entity_id"]["S"], fields["resource"]["S"]
            if "tokens_milli" in fields:
                numbers = ("burst_milli", "refill_amount_milli", "refill_period_ms", "tokens_milli", "last_refill_ms")
                found = {fields["limit_name"]["S"]: [int(fields[name]["N"]) for name in numbers]}
            else:
                names = [name[2:-3] for name in fields if name.startswith("b_") and name.endswith("_tk")]
                found = {
                    name: [
                        int((fields.get(f"b_{name}_bx") or fields[f"b_{name}_cp"])["N"]),
                        *(int(fields[f"b_{name}_{suffix}"]["N"]) for suffix in ("ra", "rp", "tk")),
                        int(fields["rf"]["N"]),
                    ]
                    for name in names
                    if name != "wcu"
                }
            for limit, (capacity, refill, period, tokens, at) in found.items():
                full_at = at + Fraction(max(0, capacity - tokens) * period, refill)
                yield ns, entity_id, resource, limit, full_at, (capacity, refill, period)


def test_buckets_have_what_they_had_at_every_moment_after(made: Made, carried: tuple[Driven, str]) -> None:
    items = carried[0].items()
    ids = {
        item["namespace"]["S"]: item["namespace_id"]["S"] for item in items.values() if item["SK"]["S"][:4] == "#NAM"
    }
    names = {item["namespace_id"]["S"]: item["namespace_name"]["S"] for item in made.items if "namespace_id" in item}
    checked = 0
    for ns, entity_id, resource, limit, full_at, (capacity, refill, period) in balances(made.items):
        if entity_id == "hot":
            continue
        place = f"{ids[names.get(ns, 'default')]}/BUCKET#{entity_id}#{resource}#0", "#STATE"
        row = read_row(items[place]) if place in items else None
        for now_ms in (made.now_ms, made.now_ms + 7, made.now_ms + 12_345, made.now_ms + 10**7):
            had = capacity - max(0, full_at - now_ms) * Fraction(refill, period)
            state = row.states.get(limit) if row else None
            bucket = bucket_of(state, now_ms) if state else None
            has = bucket.tokens_milli + Fraction(bucket.remainder, period) if bucket else capacity
            assert has == had, (place, limit, now_ms)
            checked += 1
        assert state is None or state.consumed_milli == 0, "what was consumed has been counted"
    assert checked >= 20


def test_a_bucket_of_shards_keeps_all_that_was_used(made: Made, limiters: dict[str, SyncRateLimiter]) -> None:
    """It had 1,003 tokens, of which 11 and twelve times 3 were taken; some tenths have been refilled."""
    if "hot" not in str(made.items):
        return
    available = limiters["tenant-a"].available("hot", "api")["rph"]
    assert available == 1003 - 11 - 36


whole = st.integers(1, 10**9)


@given(
    capacity=whole,
    refill=whole,
    period=st.integers(1, 10**8),
    shards=st.integers(1, 32),
    states=st.lists(st.tuples(st.integers(-(10**9), 10**9), st.integers(0, 10**7)), min_size=1, max_size=32),
)
def test_no_bucket_gains_a_token(
    capacity: int, refill: int, period: int, shards: int, states: list[tuple[int, int]]
) -> None:
    """It has what is left of the ceiling when everything is missing that is missing from its shards."""
    now, found = 2 * 10**12, []
    for tokens, age in states[:shards]:
        numbers = {"b_x_tk": tokens, "b_x_cp": capacity, "b_x_ra": refill, "b_x_rp": period}
        found.append({**numbers, "rf": now - age, "shard_count": shards})
    writes = bucket_writes(ItemGroup(BUCKETS, "", "e", "r"), found, Context("ns", "default", now))
    has = Fraction(capacity)
    if writes:
        bucket = bucket_of(read_row(writes[0].item).states["x"], now)
        has = bucket.tokens_milli + Fraction(bucket.remainder, period)
    share, rate = capacity // shards, Fraction(refill // shards, period)
    # One with more than its share was the whole bucket, and is held against the whole.
    held = [(share if tokens <= share else capacity, tokens, age) for tokens, age in states[:shards]]
    assert has == capacity - sum(max(Fraction(0), ceiling - tokens - rate * age) for ceiling, tokens, age in held)
    assert has <= capacity - sum(max(Fraction(0), share - tokens - rate * age) for _, tokens, age in held)


# Reports


def test_a_dry_run_says_the_same_and_makes_nothing(made: Made, ministack: Engine, aws_credentials: str) -> None:
    with both_tables(ministack, made.items) as (source, target):
        before = source.items()
        dry = migrate(source, target, made, dry=True)
        assert not exists(target)
        assert {send.operation for send in target.sent} <= {"DescribeTable", "BatchGetItem", "Scan", "Query"}
        assert migrate(source, target, made, dry=True, page_size=3) == dry
        assert migrate(source, target, made, page_size=7) == dry
        assert source.items() == before
        after = target.items()
        again = migrate(source, target, made)
        assert again is not None
        assert again.finished_at_ms == made.now_ms
        assert target.items() == after


def test_counts_are_of_the_items_of_the_source(made: Made, ministack: Engine, aws_credentials: str) -> None:
    with both_tables(ministack, made.items) as (source, target):
        report = migrate(source, target, made, dry=True)
    assert report is not None
    keys = [item["SK"]["S"].split("#")[1] for item in made.items]
    assert report.counts == {
        "entities": keys.count("META"),
        "limits": keys.count("LIMIT") + keys.count("CONFIG"),
        "buckets": keys.count("BUCKET") + keys.count("STATE"),
        "usage": keys.count("USAGE"),
        "audit": keys.count("AUDIT"),
    }
    names = {item["namespace_name"]["S"] for item in made.items if "namespace_name" in item}
    assert report.namespaces == sorted(names or {"default"})


def test_what_headgate_has_no_equivalent_of_is_refused_before_anything_is_written(
    ministack: Engine, aws_credentials: str
) -> None:
    made = Made(NEWER)
    with both_tables(ministack, made.items) as (source, target):
        before = source.items()
        for dry in (True, False):
            with pytest.raises(MigrationRefused) as refused:
                migrate(source, target, made, dry=dry)
            assert not exists(target)
            assert source.items() == before
            lacking, disabled = "headgate has no equivalent of", "that it is disabled or bypassed"
            assert sorted(refused.value.problems) == [
                f"buckets of entity 'night' on 'api' in namespace 'tenant-a': {lacking} a schedule",
                f"buckets of entity 'session' on 'api' in namespace 'tenant-a': {lacking} a quota",
                "entity 'deep' in namespace 'tenant-a': it cascades only to 'key-1' in zae-limiter, in headgate also "
                "to 'proj-1' and all its ancestors",
                f"limits of entity 'blocked' on 'api' in namespace 'tenant-a': {lacking} {disabled}",
                f"limits of entity 'free' on 'api' in namespace 'tenant-a': {lacking} {disabled}",
                f"limits of entity 'night' on 'api' in namespace 'tenant-a': {lacking} a schedule",
                f"limits of entity 'session' on 'api' in namespace 'tenant-a': {lacking} a quota",
                f"limits of entity 'soft' on 'api' in namespace 'tenant-a': {lacking} a soft limit",
                f"limits of resource 'api' in namespace 'tenant-a': {lacking} a cascade of its own",
            ]
            assert all(problem in str(refused.value) for problem in refused.value.problems)
        dry_report = migrate(source, target, made, dry=True, force=True)
        report = migrate(source, target, made, force=True)
        assert report == dry_report
        assert report is not None
        assert report.problems == refused.value.problems
        with SyncRateLimiter(ministack.url(target.table), namespace="tenant-a", store_timeout=20) as limiter:
            assert shapes(limiter.get_limits("hot", "api")) == [["rph", 1003, 1001, 3600]]
            assert limiter.get_limits("soft", "api") == []
            assert limiter.get_entity("deep").parent_id == "key-1"
            actions = {event.action for event in limiter.get_audit_events(limit=1000)}
            assert {"bucket_topped_up", "buckets.reset"} <= actions
