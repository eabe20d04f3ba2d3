"""find_corrupt() finds all that is damaged in a namespace, and repair() removes it and nothing else."""

from __future__ import annotations

import pytest
from damage import Bench, new_name
from test_corrupt_rows import BUSY, RPM, bench, each_damage

from headgate import CorruptState, SyncRateLimiter, ValidationError
from headgate.testing.clock import ManualClock

__all__ = ["bench"]


def test_repair_of_every_damage_leaves_a_full_bucket_and_an_event(bench: Bench) -> None:
    def check(namespace: str, clock: ManualClock) -> None:
        with SyncRateLimiter(bench.url, clock=clock, namespace=namespace, **BUSY) as limiter:
            found = limiter.find_corrupt()
            assert [(error.entity_id, error.resource) for error in found] == [("bob", "chat")]
            assert limiter.repair(found, actor="eve") == found
            assert limiter.find_corrupt() == []
            assert limiter.repair(found) == [], "it was mended already"
            assert limiter.available("bob", "chat", [RPM]) == {"rpm": 10}
            assert limiter.available("ann", "chat", [RPM]) == {"rpm": 8}
            (event,) = limiter.get_audit_events("bob")
            assert (event.action, event.actor, event.resource) == ("state.repaired", "eve", "chat")
            assert event.before == {"corrupt": found[0].why}

    each_damage(bench, check, part=1)


def test_repair_removes_corrupt_records_and_leaves_the_others(bench: Bench) -> None:
    for value in bench.record_damages.values():
        namespace = new_name()
        with SyncRateLimiter(bench.url, namespace=namespace, clock=ManualClock(), **BUSY) as limiter:
            for entity_id in ("ann", "bob"):
                limiter.create_entity(entity_id)
                limiter.set_limits(entity_id, [RPM], "chat")
            bench.damage_record(namespace, "entity#bob", value)
            bench.damage_record(namespace, "limits#entity#bob#chat", value)
            found = limiter.find_corrupt()
            assert {error.record_key for error in found} == {
                f"{namespace}/entity#bob",
                f"{namespace}/limits#entity#bob#chat",
            }
            assert limiter.repair(found) == found
            assert limiter.find_corrupt() == []
            assert [entity.id for entity in limiter.list_entities()] == ["ann"]
            assert limiter.list_entities_with_custom_limits("chat") == ["ann"]
            assert limiter.get_limits("ann", "chat") == [RPM]
            repaired = [one for one in limiter.get_audit_events(limit=50) if one.action == "state.repaired"]
            assert {(one.before or {})["record"] for one in repaired} == {error.record_key for error in found}


def test_repair_takes_nothing_but_what_was_found() -> None:
    with SyncRateLimiter("memory://") as limiter:
        assert limiter.find_corrupt() == []
        with pytest.raises(ValidationError, match="takes the results of find_corrupt"):
            limiter.repair(["bob"])  # type: ignore[list-item]
        assert limiter.repair([CorruptState("odd", "bob", "chat")]) == []
