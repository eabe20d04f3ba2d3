"""Namespaces: their life, and that nothing in one has to do with anything in another."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from ...core.errors import NamespaceNotFound, ValidationError
from ...core.limit import Limit
from ..clock import ManualClock
from .fixtures import RPM, Conformance

IDS = ("a", "a.a", "b", "a:b", "a-1")


def everything(limiter: Any) -> Any:
    """All that can be seen in a namespace."""
    usage = [limiter.get_usage(entity_id) for entity_id in IDS]
    return (
        [limiter.get_buckets(entity_id) for entity_id in IDS],
        limiter.list_entities(),
        [limiter.get_limits(entity_id, "r") for entity_id in IDS],
        [limiter.get_resource_defaults(resource) for resource in IDS],
        limiter.get_system_defaults(),
        usage,
        limiter.get_audit_events(limit=1000),
    )


def anything(limiter: Any, chance: random.Random) -> None:
    entity_id, resource = chance.choice(IDS), chance.choice(["r", *IDS])
    limits = [Limit.per_minute("rpm", chance.randint(1, 100))]
    steps: list[Callable[[], Any]] = [
        lambda: limiter.try_acquire(entity_id, resource, {"rpm": 1}, limits),
        lambda: limiter.adjust(entity_id, resource, {"rpm": chance.randint(-5, 5)}, limits),
        lambda: limiter.set_limits(entity_id, limits, resource),
        lambda: limiter.delete_limits(entity_id, resource),
        lambda: limiter.set_resource_defaults(resource, limits),
        lambda: limiter.set_system_defaults(limits),
        lambda: limiter.reset(entity_id, resource),
        lambda: limiter.reconcile(),
        lambda: limiter.create_entity(f"{entity_id}{chance.randint(0, 999)}", name="x"),
    ]
    chance.choice(steps)()


class NamespaceConformance(Conformance):
    isolation_steps: ClassVar[int] = 60

    def test_one_in_use_is_registered(self, open_limiter: Callable[..., Any], clock: ManualClock) -> None:
        limiter = open_limiter(namespace="mine")
        limiter.adjust("e", "api", {"rpm": 1}, [RPM])
        mine = limiter.get_namespace("mine")
        assert (mine.name, mine.status, mine.deleted_at) == ("mine", "active", None)
        assert int(mine.created_at.timestamp() * 1000) == clock.now_ms()
        assert limiter.register_namespace("mine") == mine
        other = limiter.register_namespace("other")
        assert other.id != mine.id
        assert limiter.list_namespaces() == [mine, other]
        page = limiter.list_namespaces(limit=1)
        assert page == [mine]
        assert limiter.list_namespaces(limit=1, cursor=page.cursor) == [other]
        with pytest.raises(NamespaceNotFound, match="'none'"):
            limiter.get_namespace("none")

    def test_a_deleted_namespace_refuses_calls_until_it_is_recovered(
        self, open_limiter: Callable[..., Any], clock: ManualClock
    ) -> None:
        limiter, admin = open_limiter(namespace="mine"), open_limiter(namespace="admin")
        limiter.set_system_defaults([RPM])
        assert limiter.try_acquire("e", "api", {"rpm": 20})
        deleted = admin.delete_namespace("mine")
        assert (deleted.status, deleted.deleted_at is not None) == ("deleted", True)
        assert admin.delete_namespace("mine").status == "deleted"
        for late in (open_limiter(namespace="mine"), open_limiter(namespace="mine")):
            with pytest.raises(NamespaceNotFound, match="recover"):
                late.try_acquire("e", "api", {"rpm": 1})
            with pytest.raises(NamespaceNotFound, match="recover"):
                late.set_limits("e", [RPM])
            with pytest.raises(NamespaceNotFound, match="recover"):
                late.get_entity("e")
        with pytest.raises(NamespaceNotFound, match="recover"):
            admin.register_namespace("mine")
        assert admin.recover_namespace("mine").status == "active"
        assert open_limiter(namespace="mine").available("e", "api") == {"rpm": 40}

    @pytest.fixture
    def admin(self, open_limiter: Callable[..., Any]) -> Any:
        """In another namespace, beside one with entities, buckets and slots."""
        limiter, admin = open_limiter(namespace="mine"), open_limiter(namespace="mine2")
        admin.set_system_defaults([RPM])
        for number in range(5):
            limiter.create_entity(f"e{number}")
            limiter.try_acquire(f"e{number}", "api", {"rpm": 1}, [RPM, Limit.concurrent("slots", 3)])
        return admin

    def test_purge_removes_a_deleted_namespace_if_it_is_confirmed_and_no_other(self, admin: Any) -> None:
        with pytest.raises(ValidationError, match="delete it first"):
            admin.purge_namespace("mine", confirm="mine")
        admin.delete_namespace("mine")
        count = admin.count_namespace("mine")
        assert count >= 10
        with pytest.raises(ValidationError, match=f"removes {count:,} "):
            admin.purge_namespace("mine", confirm="mine2")
        assert admin.purge_namespace("mine", confirm="mine", actor="ann") >= 10
        with pytest.raises(NamespaceNotFound):
            admin.get_namespace("mine")
        assert admin.list_orphans() == []
        assert admin.get_system_defaults() == [RPM]

    def test_a_purged_namespace_starts_empty_under_a_new_id(self, admin: Any, open_limiter: Callable[..., Any]) -> None:
        before = admin.get_namespace("mine")
        admin.delete_namespace("mine")
        admin.purge_namespace("mine", confirm="mine", actor="ann")
        anew = open_limiter(namespace="mine")
        assert anew.list_entities() == []
        assert anew.get_usage("e1") == []
        assert anew.available("e1", "api", [RPM]) == {"rpm": 60}
        with pytest.raises(NamespaceNotFound):  # to look at it does not register it
            admin.get_namespace("mine")
        anew.try_acquire("e1", "api", {"rpm": 1}, [RPM])
        assert anew.get_namespace("mine").id != before.id
        actions = [(event.action, event.actor) for event in admin.get_namespace_events() if event.namespace == "mine"]
        assert [action for action, _ in actions] == [
            "namespace.registered",
            "namespace.purged",
            "namespace.deleted",
            "namespace.registered",
        ]
        assert actions[1][1] == "ann"

    def test_data_written_after_a_purge_is_listed_as_an_orphan_and_can_be_purged(
        self, open_limiter: Callable[..., Any]
    ) -> None:
        late, admin = open_limiter(namespace="mine"), open_limiter(namespace="admin")
        late.set_system_defaults([RPM])
        late.try_acquire("e", "api", {"rpm": 1})
        admin.delete_namespace("mine")
        admin.purge_namespace("mine", confirm="mine")
        late.try_acquire("f", "api", {"rpm": 1})  # it has not heard of it
        (orphan,) = admin.list_orphans()
        assert admin.count_namespace(orphan) >= 1
        with pytest.raises(NamespaceNotFound, match="not an orphan"):
            admin.purge_orphan("admin", confirm="admin")
        with pytest.raises(ValidationError, match="confirm"):
            admin.purge_orphan(orphan, confirm="x")
        assert admin.purge_orphan(orphan, confirm=orphan) >= 1
        assert admin.list_orphans() == []

    @pytest.mark.parametrize("names", [("a", "a.a"), ("a", "a:b")], ids="-".join)
    def test_nothing_in_one_is_seen_in_another(self, open_limiter: Callable[..., Any], names: tuple[str, str]) -> None:
        chance = random.Random(",".join(names))
        one, other = (open_limiter(namespace=name) for name in names)
        for _ in range(self.isolation_steps):
            anything(other, chance)
        seen = everything(other)
        for _ in range(self.isolation_steps):
            anything(one, chance)
        assert everything(other) == seen
        one.delete_namespace(names[0])
        one.purge_namespace(names[0], confirm=names[0])
        assert everything(other) == seen
