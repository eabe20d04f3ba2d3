"""Entities, parents, cascade."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ...core.errors import (
    EntityExists,
    EntityNotFound,
    RateLimitExceeded,
    ValidationError,
    VersionConflict,
)
from ...core.limit import Limit
from ...limiter.config import entities
from .fixtures import RPM, Conformance


def per_minute(amount: int) -> list[Limit]:
    return [Limit.per_minute("rpm", amount)]


class HierarchyConformance(Conformance):
    @pytest.fixture
    def team(self, limiter: Any) -> Any:
        """Two members below a team of 10 a minute, 8 for each."""
        limiter.create_entity("team")
        limiter.set_limits("team", per_minute(10))
        for member in ("ann", "bob"):
            limiter.create_entity(member, parent_id="team", cascade=True)
            limiter.set_limits(member, per_minute(8))
        return limiter

    def test_an_entity_is_kept_as_given(self, limiter: Any) -> None:
        made = limiter.create_entity("e", name="E & co", metadata={"plan": "pro", "tags": ["a"], "n": 1.5})
        read = limiter.get_entity("e")
        assert made == read
        assert (read.id, read.name, read.parent_id, read.cascade) == ("e", "E & co", None, False)
        assert read.metadata == {"plan": "pro", "tags": ["a"], "n": 1.5}
        with pytest.raises(EntityExists, match="'e'"):
            limiter.create_entity("e")
        with pytest.raises(EntityNotFound, match="'f'"):
            limiter.get_entity("f")

    def test_update_of_an_older_version_is_a_conflict(self, limiter: Any) -> None:
        first = limiter.create_entity("e", name="one", metadata={"a": 1})
        second = limiter.update_entity("e", name="two", expected_version=first.version)
        assert (second.name, second.metadata) == ("two", {"a": 1})
        with pytest.raises(VersionConflict):
            limiter.update_entity("e", name="three", expected_version=first.version)
        assert limiter.get_entity("e") == second
        with pytest.raises(EntityNotFound):
            limiter.update_entity("f", name="x")

    def test_what_was_stored_before_it_was_checked_is_shown_and_can_be_mended(
        self, limiter: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        half = "\ud800"
        deep: Any = half
        for _ in range(100):
            deep = [deep]
        with monkeypatch.context() as unchecked:
            unchecked.setattr(entities, "_CHECKS", dict.fromkeys(entities._CHECKS, lambda value: value))
            limiter.create_entity("e", metadata={half: [half], "deep": deep})
        shown = limiter.get_entity("e")
        assert shown.metadata["\ufffd"] == ["\ufffd"]
        assert limiter.list_entities() == [shown]
        assert limiter.update_entity("e", name="F").metadata == shown.metadata  # what is not changed is not refused
        for event in limiter.get_audit_events():
            json.dumps(event.as_dict(), ensure_ascii=False).encode()
        assert limiter.update_entity("e", metadata={}).metadata == {}
        limiter.delete_entity("e")

    def test_children_of_an_entity_are_listed_in_pages(self, team: Any) -> None:
        assert [child.entity_id for child in team.get_children("team")] == ["ann", "bob"]
        assert team.get_children("ann") == []
        with pytest.raises(EntityNotFound, match="'nobody'"):
            team.get_children("nobody")
        page = team.get_children("team", limit=1)
        assert [child.entity_id for child in page] == ["ann"]
        assert [child.entity_id for child in team.get_children("team", limit=1, cursor=page.cursor)] == ["bob"]

    def test_a_cascade_charges_parent_and_child(self, team: Any) -> None:
        with team.acquire("ann", "api", {"rpm": 3}) as lease:
            lease.consume(rpm=1)
            lease.adjust(rpm=2)
            lease.release(rpm=1)
        assert team.available("ann", "api") == {"rpm": 3}
        assert team.available("team", "api") == {"rpm": 5}
        assert team.available("bob", "api") == {"rpm": 5}, "the lowest of the chain"

    def test_refused_by_the_parent_nothing_changes_anywhere(self, team: Any) -> None:
        assert team.try_acquire("ann", "api", {"rpm": 8})
        with pytest.raises(RateLimitExceeded) as caught, team.acquire("bob", "api", {"rpm": 3}):
            pass
        assert [(s.entity_id, s.exceeded) for s in caught.value.statuses] == [("bob", False), ("team", True)]
        assert caught.value.primary_violation.entity_id == "team"
        assert team.time_until_available("bob", "api", {"rpm": 3}) == 6.0
        assert team.available("team", "api") == {"rpm": 2}
        assert team.try_acquire("bob", "api", {"rpm": 2})
        assert team.get_buckets("bob")[0].available == 6

    def test_rollback_and_adjust_reach_the_ancestors(self, team: Any) -> None:
        with pytest.raises(ValueError), team.acquire("ann", "api", {"rpm": 3}):
            raise ValueError
        assert team.available("team", "api") == {"rpm": 10}
        team.adjust("ann", "api", {"rpm": 4})
        assert team.available("team", "api") == {"rpm": 6}

    def test_without_cascade_the_parent_is_left_alone(self, limiter: Any) -> None:
        limiter.create_entity("top")
        limiter.create_entity("below", parent_id="top")
        assert limiter.try_acquire("below", "api", {"rpm": 60}, [RPM])
        assert limiter.available("top", "api", [RPM]) == {"rpm": 60}

    def test_penalty_and_reset_are_the_entitys_own(self, team: Any) -> None:
        team.penalize("ann", "api", seconds=60)
        assert team.try_acquire("bob", "api", {"rpm": 5})
        team.reset("bob", "api")
        assert team.available("bob", "api") == {"rpm": 5}
        assert team.get_buckets("bob", "api") == [] or team.get_buckets("bob", "api")[0].available == 8

    def test_eight_ancestors_and_no_more(self, limiter: Any) -> None:
        limiter.set_system_defaults(per_minute(100))
        limiter.create_entity("e0")
        for depth in range(1, 9):
            limiter.create_entity(f"e{depth}", parent_id=f"e{depth - 1}", cascade=True)
        assert limiter.try_acquire("e8", "api", {"rpm": 1})
        assert [limiter.available(f"e{depth}", "api")["rpm"] for depth in range(9)] == [99] * 9
        with pytest.raises(ValidationError, match="8 ancestors"):
            limiter.create_entity("e9", parent_id="e8", cascade=True)

    def test_the_entitys_own_flag_decides_for_the_whole_way_up(self, limiter: Any) -> None:
        limiter.set_system_defaults(per_minute(100))
        limiter.create_entity("org")
        limiter.create_entity("team", parent_id="org", cascade=False)
        limiter.create_entity("user", parent_id="team", cascade=True)
        assert limiter.try_acquire("user", "api", {"rpm": 1})
        assert limiter.available("org", "api") == {"rpm": 99}
        assert limiter.try_acquire("team", "api", {"rpm": 1})
        assert limiter.available("org", "api") == {"rpm": 99}

    def test_a_parent_that_would_make_a_cycle_is_refused(self, limiter: Any) -> None:
        with pytest.raises(ValidationError, match="cycle"):
            limiter.create_entity("self", parent_id="self")
        limiter.create_entity("a")
        limiter.create_entity("b", parent_id="a", cascade=True)
        limiter.create_entity("c", parent_id="b", cascade=True)
        with pytest.raises(ValidationError, match="a -> c -> b -> a"):
            limiter.update_entity("a", parent_id="c")
        assert limiter.get_entity("a").parent_id is None

    def test_a_parent_has_to_exist(self, limiter: Any) -> None:
        with pytest.raises(EntityNotFound, match="'nobody'"):
            limiter.create_entity("e", parent_id="nobody")
        with pytest.raises(EntityNotFound):
            limiter.get_entity("e")

    def test_entity_below_another_parent_is_charged_there(self, team: Any) -> None:
        team.create_entity("other")
        team.set_limits("other", per_minute(100))
        team.update_entity("ann", parent_id="other")
        assert team.try_acquire("ann", "api", {"rpm": 1})
        assert team.available("team", "api") == {"rpm": 10}
        assert team.available("other", "api") == {"rpm": 99}
        assert [child.entity_id for child in team.get_children("team")] == ["bob"]
        assert [child.entity_id for child in team.get_children("other")] == ["ann"]

    def test_deleted_entity_takes_its_limits_and_buckets_but_not_one_with_children(self, team: Any) -> None:
        with pytest.raises(ValidationError, match="ann, bob"):
            team.delete_entity("team")
        assert team.try_acquire("ann", "api", {"rpm": 1})
        team.delete_entity("ann")
        with pytest.raises(EntityNotFound):
            team.get_entity("ann")
        assert team.get_limits("ann") == []
        assert team.get_buckets("ann") == []
        assert "ann" not in team.list_entities_with_custom_limits(None)
        assert [child.entity_id for child in team.get_children("team")] == ["bob"]
        with pytest.raises(EntityNotFound):
            team.delete_entity("ann")

    def test_an_ancestor_without_limits_is_an_error(self, limiter: Any) -> None:
        limiter.create_entity("top")
        limiter.create_entity("below", parent_id="top", cascade=True)
        limiter.set_limits("below", per_minute(8))
        with pytest.raises(ValidationError, match="'top'"):
            limiter.try_acquire("below", "api", {"rpm": 1})
        assert limiter.try_acquire("below", "api", {"rpm": 1}, per_minute(8)), "limits= serves those who have none"
        assert limiter.available("top", "api", per_minute(8)) == {"rpm": 7}

    def test_an_ancestor_is_charged_for_the_limits_it_has(self, team: Any) -> None:
        team.set_limits("ann", [*per_minute(8), Limit.per_minute("tpm", 100)])
        assert team.try_acquire("ann", "api", {"rpm": 1, "tpm": 50})
        assert team.available("ann", "api") == {"rpm": 7, "tpm": 50}
        assert team.available("team", "api") == {"rpm": 9}

    def test_a_change_reaches_other_clients_when_their_cache_expires(
        self, open_limiter: Callable[..., Any], clock: Any
    ) -> None:
        one, other = open_limiter(), open_limiter(config_cache_ttl=30)
        one.set_system_defaults(per_minute(10))
        one.create_entity("top")
        one.create_entity("e")
        assert other.try_acquire("e", "api", {"rpm": 1})
        one.update_entity("e", parent_id="top", cascade=True)
        assert other.try_acquire("e", "api", {"rpm": 1})
        assert other.available("top", "api") == {"rpm": 10}
        clock.advance(30)
        assert other.try_acquire("e", "api", {"rpm": 1})
        assert other.available("top", "api") == {"rpm": 9}
