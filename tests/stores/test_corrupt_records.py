"""A record that is damaged: reading it says so, lists go on with the others, deleting or overwriting it mends it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from damage import Bench, new_name
from test_corrupt_rows import BUSY, RPM, bench

from headgate import CorruptState, Limit, RateLimiter, SyncRateLimiter
from headgate.core.forms import checked
from headgate.core.records import Record
from headgate.testing.clock import ManualClock

__all__ = ["bench"]


def opened(bench: Bench, namespace: str, **settings: Any) -> SyncRateLimiter:
    return SyncRateLimiter(bench.url, namespace=namespace, clock=ManualClock(), **BUSY, **settings)


def test_entity_list_names_the_corrupt_one_and_shows_the_others(bench: Bench) -> None:
    for value in bench.record_damages.values():
        namespace = new_name()
        with opened(bench, namespace) as limiter:
            for entity_id in ("ann", "bob", "cid"):
                limiter.create_entity(entity_id)
            bench.damage_record(namespace, "entity#bob", value)
            with pytest.raises(CorruptState, match=r"record '.*entity#bob' is corrupt") as caught:
                limiter.get_entity("bob")
            assert caught.value.record_key == f"{namespace}/entity#bob"
            page = limiter.list_entities()
            assert [entity.id for entity in page] == ["ann", "cid"]
            assert [error.record_key for error in page.corrupt] == [f"{namespace}/entity#bob"]
            limiter.delete_entity("bob")
            assert [entity.id for entity in limiter.list_entities()] == ["ann", "cid"]
            assert limiter.create_entity("bob").version == 1
            assert limiter.get_entity("bob").id == "bob"
            assert limiter.breaker_state == "closed"


def test_corrupt_limits_let_nothing_pass_and_overwriting_mends(bench: Bench) -> None:
    for value in bench.record_damages.values():
        namespace = new_name()
        with opened(bench, namespace) as limiter:
            limiter.set_system_defaults([RPM])
            limiter.set_limits("bob", [Limit.per_minute("rpm", 2)], "chat")
            bench.damage_record(namespace, "limits#entity#bob#chat", value)
        with opened(bench, namespace, on_unavailable="allow") as limiter:
            for _ in range(7):
                with pytest.raises(CorruptState, match="limits#entity#bob#chat"):
                    limiter.try_acquire("bob", "chat", {"rpm": 1})
            decisions = limiter.try_acquire_each([_ask("ann"), _ask("bob"), _ask("cid")])
            assert [bool(one) for one in decisions] == [True, False, True]
            assert isinstance(decisions[1].error, CorruptState)
            assert limiter.breaker_state == "closed"
            assert limiter.list_entities_with_custom_limits("chat") == ["bob"]
            limiter.set_limits("bob", [Limit.per_minute("rpm", 3)], "chat")
            assert limiter.available("bob", "chat") == {"rpm": 3}
            bench.damage_record(namespace, "limits#entity#bob#chat", value)
            assert limiter.delete_limits("bob", "chat")
            assert limiter.available("bob", "chat") == {"rpm": 10}


def _ask(entity_id: str) -> Any:
    from headgate import Ask

    return Ask(entity_id, "chat", {"rpm": 1})


def test_reconcile_leaves_a_corrupt_lease_and_goes_on_with_the_others(bench: Bench) -> None:
    namespace, clock = new_name(), ManualClock()
    with SyncRateLimiter(bench.url, namespace=namespace, clock=clock, **BUSY) as limiter:
        lease_ids = []
        for _ in range(3):
            lasting: dict[str, Any] = {"record_lease": True, "restore_on_expiry": True, "lease_ttl": 10}
            lease = limiter.try_acquire("ann", "chat", {"rpm": 1}, [RPM], **lasting).lease
            assert lease is not None
            lease_ids.append(lease.detach())
        for value in bench.record_damages.values():
            bench.damage_record(namespace, f"lease#{lease_ids[1]}", value)
        clock.advance(11)
        assert limiter.reconcile().restored == 2


def test_tasks_hear_of_a_corrupt_record_too(bench: Bench) -> None:
    namespace = new_name()

    async def check() -> None:
        async with RateLimiter(bench.url, namespace=namespace, clock=ManualClock(), **BUSY) as limiter:
            await limiter.create_entity("bob")
            bench.damage_record(namespace, "entity#bob", next(iter(bench.record_damages.values())))
            with pytest.raises(CorruptState, match="entity#bob"):
                await limiter.try_acquire("bob", "chat", {"rpm": 1}, [RPM])
            page = await limiter.list_entities()
            assert [error.record_key for error in page.corrupt] == [f"{namespace}/entity#bob"]
            assert limiter.breaker_state == "closed"

    asyncio.run(check())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("entity#bob", {}),
        ("entity#bob", {"name": 1, "parent_id": None, "cascade": False, "metadata": {}}),
        ("entity#bob", {"name": None, "parent_id": ["a"], "cascade": False, "metadata": {}}),
        ("entity#bob", {"name": None, "parent_id": None, "cascade": "no", "metadata": {}}),
        ("limits#system", {"limits": 5}),
        ("limits#system", {"limits": [1]}),
        ("limits#system", {"limits": [{"name": "rpm"}]}),
        ("limits#system", {"limits": [{"name": "rpm", "slots": "x", "ttl_seconds": 1}]}),
        ("limits#system", {"limits": [], "on_unavailable": "maybe"}),
        ("revision", {"revision": "now"}),
        ("revision", {"revision": -1}),
        ("namespace#x", {"id": "a", "status": "odd", "created_at_ms": 1, "deleted_at_ms": None}),
        ("lease#1", {"key": 1, "slots": False, "taken": [], "ttl_ms": 1}),
        ("lease#1", {"key": "n/a#b", "slots": False, "taken": [[1]], "ttl_ms": 1}),
        ("audit#1", {"at_ms": "noon"}),
    ],
)
def test_value_of_another_form_is_corrupt(name: str, value: dict[str, Any]) -> None:
    record = checked(Record(f"n/{name}", value, 1))
    assert record.flaw
    assert f"n/{name}" in str(record.error)
