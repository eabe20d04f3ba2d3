"""Levels: each limit from the most specific one that has it, the limiter's own limits last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ...core.errors import RateLimitExceeded, ValidationError, VersionConflict
from ...core.limit import Limit
from ...core.records import Put
from ...stores import open_store
from ..clock import ManualClock
from .fixtures import Conformance


def of(name: str, amount: int) -> Limit:
    return Limit.per_minute(name, amount)


class LevelsConformance(Conformance):
    def test_each_limit_comes_from_the_most_specific_level_that_has_it(self, open_limiter: Callable[..., Any]) -> None:
        limiter = open_limiter(limits=[of("a", 1), of("e", 1)])
        limiter.set_system_defaults([of("a", 2), of("d", 2)], on_unavailable="allow")
        limiter.set_resource_defaults("r", [of("c", 3), of("a", 3)])
        limiter.set_limits("e", [of("b", 4), of("a", 4)])
        limiter.set_limits("e", [of("a", 5)], "r")
        resolved = limiter.resolve_limits("e", "r")
        limits, source = resolved
        assert limits == [of("a", 5), of("b", 4), of("c", 3), of("d", 2), of("e", 1)]
        assert source == "entity"
        assert resolved == (limits, source) == (resolved.limits, resolved.source)
        assert resolved.sources == {
            "a": "entity", "b": "entity_default", "c": "resource", "d": "system", "e": "limiter",
        }  # fmt: skip
        assert resolved.on_unavailable == "allow"
        assert limiter.resolve_limits("e", "s").sources == {
            "b": "entity_default", "a": "entity_default", "d": "system", "e": "limiter",
        }  # fmt: skip
        assert limiter.resolve_limits("f", "r") == ([of("c", 3), of("a", 3), of("d", 2), of("e", 1)], "resource")
        assert limiter.resolve_limits("f", "s") == ([of("a", 2), of("d", 2), of("e", 1)], "system")

    def test_an_entity_with_its_own_limit_keeps_everyones_others(self, limiter: Any) -> None:
        """A worker that consumes both goes on while an operator gives its entity a limit of its own."""
        limiter.set_system_defaults([of("rpm", 100), of("tpm", 1000)])
        assert limiter.try_acquire("ann", "llm", {"rpm": 1, "tpm": 10})
        limiter.set_limits("ann", [of("rpm", 2)])
        assert limiter.try_acquire("ann", "llm", {"rpm": 1, "tpm": 10})
        assert limiter.available("ann", "llm")["tpm"] == 980
        assert not limiter.try_acquire("ann", "llm", {"rpm": 1, "tpm": 981})

    @pytest.mark.parametrize("last", ["entity", "entity_default", "resource", "system"])
    def test_a_level_that_does_not_inherit_is_the_last_one(self, open_limiter: Callable[..., Any], last: str) -> None:
        limiter = open_limiter(limits=[of("limiter", 1)])
        limiter.set_limits("e", [of("entity", 1)], "r", inherit=last != "entity")
        limiter.set_limits("e", [of("entity_default", 1)], inherit=last != "entity_default")
        limiter.set_resource_defaults("r", [of("resource", 1)], inherit=last != "resource")
        limiter.set_system_defaults([of("system", 1)], inherit=last != "system")
        levels = ["entity", "entity_default", "resource", "system", "limiter"]
        assert list(limiter.resolve_limits("e", "r").sources) == levels[: levels.index(last) + 1]
        hidden = levels[levels.index(last) + 1]
        with pytest.raises(ValidationError, match=f"no limit '{hidden}'"):
            limiter.try_acquire("e", "r", {hidden: 1})

    def test_inherit_is_read_back_and_replaced_with_its_level(self, limiter: Any) -> None:
        calls: list[tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = [
            (lambda **more: limiter.set_limits("e", [of("rpm", 1)], "r", **more), limiter.get_limits, ("e", "r")),
            (lambda **more: limiter.set_limits("e", [of("rpm", 1)], **more), limiter.get_limits, ("e",)),
            (
                lambda **more: limiter.set_resource_defaults("r", [of("rpm", 1)], **more),
                limiter.get_resource_defaults,
                ("r",),
            ),
            (lambda **more: limiter.set_system_defaults([of("rpm", 1)], **more), limiter.get_system_defaults, ()),
        ]
        for store, read, place in calls:
            nothing = read(*place)
            assert (nothing, nothing.inherit, nothing.version) == ([], True, 0)
            for version, inherit in enumerate((False, True, False), start=1):
                store(inherit=inherit)
                stored = read(*place)
                assert (stored, stored.inherit, stored.version) == ([of("rpm", 1)], inherit, version)
            store()
            assert read(*place).inherit
            with pytest.raises(ValidationError, match="inherit must be True or False, not 'no'"):
                store(inherit="no")
        limiter.set_limits("e", [of("rpm", 1)], inherit=False)
        assert [(one, limits.inherit) for one, limits in limiter.get_own_limits("e").items()] == [
            (None, False), ("r", True),
        ]  # fmt: skip

    def test_inherit_alone_is_a_change(self, open_limiter: Callable[..., Any]) -> None:
        """It has a version and an event of its own, and buckets know it from what was before."""
        one, other = open_limiter(), open_limiter()
        one.set_system_defaults([of("rpm", 10)])
        one.set_limits("e", [of("tpm", 5)])
        assert other.try_acquire("e", "r", {"rpm": 1, "tpm": 1})
        one.set_limits("e", [of("tpm", 5)], inherit=False, expected_version=1)
        with pytest.raises(VersionConflict):
            one.set_limits("e", [of("tpm", 5)], expected_version=1)
        newest = one.get_audit_events("e")[0]
        tpm = {"tpm": "5/minute"}
        assert (newest.before, newest.after) == ({"limits": tpm}, {"limits": tpm, "inherit": False})
        assert list(one.resolve_limits("e", "r").sources) == ["tpm"]
        one.create_entity("e")
        one.delete_entity("e")
        gone = one.get_audit_events("e")[0].before
        assert (gone["limits"], gone["inherit"]) == ({"": tpm}, {"": False})

    def test_limits_stored_by_an_earlier_release_inherit(self, limiter: Any, url: str, clock: ManualClock) -> None:
        """Their records say nothing about it."""
        limiter.set_system_defaults([of("rpm", 10), of("tpm", 10)])
        store = open_store(url, 5.0)
        try:
            value = {"limits": [of("rpm", 3).as_dict()]}
            store.write_records([Put("default/limits#entity#e#", value)], clock.now_ms())
        finally:
            store.close()
        limiter.invalidate_config_cache()
        assert limiter.resolve_limits("e", "r") == ([of("rpm", 3), of("tpm", 10)], "entity_default")
        assert limiter.get_limits("e").inherit

    # The limiter's own

    def test_a_limiters_own_limits_hold_where_nothing_is_stored(self, open_limiter: Callable[..., Any]) -> None:
        limiter = open_limiter(limits=[of("rpm", 2)])
        assert limiter.resolve_limits("e", "r") == ([of("rpm", 2)], "limiter")
        assert [bool(limiter.try_acquire("e", "r", {"rpm": 1})) for _ in range(3)] == [True, True, False]
        assert limiter.get_limits("e") == limiter.get_system_defaults() == []
        plain = open_limiter()
        assert plain.resolve_limits("e", "r") == ([], None)
        with pytest.raises(ValidationError, match="no limits are configured"):
            plain.try_acquire("e", "r", {"rpm": 1})

    def test_a_stored_limit_beats_a_limiters_own_that_has_not_heard_of_it(
        self, open_limiter: Callable[..., Any]
    ) -> None:
        """As soon as one client has used it, in a namespace where nothing was stored before too."""
        behind, operator = open_limiter(limits=[of("rpm", 10)]), open_limiter()
        assert behind.try_acquire("e", "r", {"rpm": 1})
        operator.set_system_defaults([of("rpm", 2)])
        assert operator.try_acquire("e", "r", {"rpm": 1})
        admitted = sum(bool(behind.try_acquire("e", "r", {"rpm": 1})) for _ in range(20))
        assert admitted <= 1

    def test_a_limiters_own_limits_hold_again_after_the_stored_ones(self, open_limiter: Callable[..., Any]) -> None:
        limiter = open_limiter(limits=[of("rpm", 10)])
        limiter.set_system_defaults([of("rpm", 2)])
        assert limiter.try_acquire("e", "r", {"rpm": 2})
        assert not limiter.try_acquire("e", "r", {"rpm": 1})
        limiter.delete_system_defaults()
        assert limiter.try_acquire("e", "r", {"rpm": 8})
        assert not limiter.try_acquire("e", "r", {"rpm": 1})

    def test_a_lease_by_its_id_is_under_the_limits_of_the_limiter_that_took_it(
        self, open_limiter: Callable[..., Any], clock: ManualClock
    ) -> None:
        taker, plain = open_limiter(limits=[of("rpm", 10), of("tpm", 100)]), open_limiter()
        taken = taker.try_acquire("e", "r", {"rpm": 1, "tpm": 50}, record_lease=True)
        lease_id = taken.lease.detach()
        assert plain.adjust_lease(lease_id, {"tpm": -20}) == {"rpm": 1, "tpm": 30}
        assert plain.adjust_lease(lease_id, {"tpm": -10}) == {"rpm": 1, "tpm": 20}
        assert taker.available("e", "r") == {"rpm": 9, "tpm": 80}
        assert plain.release_lease(lease_id, rollback=True) == {"rpm": 0, "tpm": 0}
        assert taker.available("e", "r") == {"rpm": 10, "tpm": 100}

    # Ancestors

    def test_ancestors_merge_their_levels_too(self, open_limiter: Callable[..., Any]) -> None:
        limiter = open_limiter(limits=[of("calls", 100)])
        limiter.set_system_defaults([of("rpm", 50), of("tpm", 1000)])
        limiter.create_entity("team")
        limiter.set_limits("team", [of("rpm", 10)])
        limiter.create_entity("ann", parent_id="team", cascade=True)
        limiter.set_limits("ann", [of("rpm", 8)])
        assert limiter.try_acquire("ann", "r", {"rpm": 1, "tpm": 400, "calls": 1})
        assert limiter.available("team", "r") == {"rpm": 9, "tpm": 600, "calls": 99}
        limiter.create_entity("bob", parent_id="team", cascade=True)
        with pytest.raises(RateLimitExceeded) as caught, limiter.acquire("bob", "r", {"tpm": 601}):
            pass
        assert [(one.entity_id, one.exceeded) for one in caught.value.statuses] == [("bob", False), ("team", True)]

    def test_an_ancestor_that_does_not_inherit_is_charged_for_its_own_alone(self, limiter: Any) -> None:
        limiter.set_system_defaults([of("rpm", 50), of("tpm", 1000)])
        limiter.create_entity("team")
        limiter.set_limits("team", [of("rpm", 10)], inherit=False)
        limiter.create_entity("ann", parent_id="team", cascade=True)
        assert limiter.try_acquire("ann", "r", {"rpm": 1, "tpm": 400})
        assert limiter.available("team", "r") == {"rpm": 9}
        assert limiter.try_acquire("ann", "r", {"rpm": 1}, [of("rpm", 5)]), "limits= does not widen the team's"
        assert limiter.available("team", "r") == {"rpm": 8}

    # What a change leaves in force

    def test_a_preview_is_what_the_change_does(self, limiter: Any) -> None:
        limiter.set_system_defaults([of("rpm", 50)])
        limiter.set_limits("e", [of("rpm", 5), of("tpm", 5)], "r")
        changes: list[tuple[Any, bool]] = [([of("rpm", 9)], True), ([of("x", 1)], False), (None, True)]
        for limits, inherit in changes:
            preview = limiter.preview_limits("e", "r", limits, inherit=inherit)
            assert preview.before == limiter.resolve_limits("e", "r")
            assert preview.version == limiter.get_limits_version("e", "r")
            if limits is None:
                limiter.delete_limits("e", "r", expected_version=preview.version)
            else:
                limiter.set_limits("e", limits, "r", inherit=inherit, expected_version=preview.version)
            after = limiter.resolve_limits("e", "r")
            assert (preview.after, preview.after.sources) == (after, after.sources)
            gone = preview.before.sources.keys() - after.sources.keys()
            assert preview.dropped == {name: ["r"] for name in gone}

    def test_a_preview_names_what_is_dropped_on_which_resources(self, limiter: Any) -> None:
        limiter.set_system_defaults([of("rpm", 50)])
        limiter.set_resource_defaults("chat", [of("tpm", 50)])
        limiter.set_resource_defaults("search", [of("qps", 50)])
        limiter.set_limits("e", [of("qps", 1)], "search")
        alone = limiter.preview_limits("e", None, [of("x", 1)], inherit=False)
        assert alone.dropped == {"rpm": [None, "chat", "search"], "tpm": ["chat"]}
        assert limiter.preview_limits("e", None, [of("x", 1)]).dropped == {}
        assert limiter.preview_limits(None, "chat").dropped == {"tpm": ["chat"]}
        assert limiter.preview_limits().dropped == {"rpm": [None]}
        assert limiter.preview_limits(None, None, [of("tpm", 1)]).after == ([of("tpm", 1)], "system")

    def test_capacity_of_a_resource_counts_inherited_limits(self, limiter: Any) -> None:
        limiter.set_system_defaults([of("rpm", 7)])
        limiter.set_resource_defaults("r", [of("tpm", 9)])
        limiter.set_limits("idle", [of("x", 1)], "r")
        limiter.set_limits("alone", [of("x", 1)], "r", inherit=False)
        limiter.set_limits("both", [of("x", 1)], "r")
        limiter.set_limits("both", [of("rpm", 3)])
        shown = [(one.entity_id, one.capacity) for one in limiter.get_resource_capacity("r", "rpm").entities]
        assert shown == [("both", 3), ("idle", 7)]
        assert [one.entity_id for one in limiter.get_resource_capacity("r", "tpm").entities] == ["both", "idle"]
