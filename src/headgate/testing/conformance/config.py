"""Stored limits and the cache in front of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ...core.errors import ValidationError
from ...core.limit import Limit
from ..clock import ManualClock
from .fixtures import RPM, TPM, Conformance


def rpm(amount: int) -> list[Limit]:
    return [Limit.per_minute("rpm", amount)]


class ConfigConformance(Conformance):
    more_than_a_page = 1100  # buckets of a resource

    def set_all_levels(self, limiter: Any) -> None:
        """Resolving after each: the new one is the most specific."""
        steps: list[tuple[Callable[[], None], tuple[list[Limit], str | None]]] = [
            (lambda: None, ([], None)),
            (lambda: limiter.set_system_defaults(rpm(1)), (rpm(1), "system")),
            (lambda: limiter.set_resource_defaults("r", rpm(2)), (rpm(2), "resource")),
            (lambda: limiter.set_limits("e", rpm(3)), (rpm(3), "entity_default")),
            (lambda: limiter.set_limits("e", rpm(4), "r"), (rpm(4), "entity")),
        ]
        for step, expected in steps:
            step()
            assert limiter.resolve_limits("e", "r") == expected

    def test_the_most_specific_level_wins(self, limiter: Any) -> None:
        self.set_all_levels(limiter)
        assert limiter.resolve_limits("e", "other") == (rpm(3), "entity_default")
        assert limiter.resolve_limits("f", "r") == (rpm(2), "resource")
        assert limiter.resolve_limits("f", "other") == (rpm(1), "system")

    def test_a_deleted_level_gives_way_to_the_next(self, limiter: Any) -> None:
        self.set_all_levels(limiter)
        assert limiter.delete_limits("e", "r") is True
        assert limiter.delete_limits("e", "r") is False
        assert limiter.resolve_limits("e", "r") == (rpm(3), "entity_default")
        limiter.delete_limits("e")
        assert limiter.resolve_limits("e", "r") == (rpm(2), "resource")
        limiter.delete_resource_defaults("r")
        assert limiter.resolve_limits("e", "r") == (rpm(1), "system")
        limiter.delete_system_defaults()
        assert limiter.resolve_limits("e", "r") == ([], None)

    def test_each_level_reads_back_what_was_set(self, limiter: Any) -> None:
        odd = [Limit.custom("a", 0.001, 10**12, 0.001), Limit.custom("b", 10**12, 0.001, 366 * 86_400)]
        limiter.set_limits("e", odd)
        limiter.set_limits("e", [RPM, TPM], "r/with/slashes")
        limiter.set_resource_defaults("r", odd)
        limiter.set_system_defaults([TPM], on_unavailable="allow")
        assert limiter.get_limits("e") == odd
        assert limiter.get_limits("e", "r/with/slashes") == [RPM, TPM]
        assert limiter.get_limits("e", "r") == []
        assert limiter.get_resource_defaults("r") == odd
        assert limiter.get_system_defaults() == [TPM]
        assert limiter.get_system_on_unavailable() == "allow"

    def test_stored_limits_are_obeyed(self, limiter: Any) -> None:
        limiter.set_limits("e", rpm(2), "r")
        assert [bool(limiter.try_acquire("e", "r", {"rpm": 1})) for _ in range(3)] == [True, True, False]

    def test_a_raised_and_a_lowered_default_reach_a_live_bucket(self, limiter: Any) -> None:
        limiter.set_system_defaults(rpm(10))
        assert limiter.try_acquire("e", "r", {"rpm": 10})
        limiter.set_system_defaults(rpm(15))
        assert limiter.try_acquire("e", "r", {"rpm": 1})
        assert limiter.available("e", "r") == {"rpm": 4}
        limiter.set_system_defaults(rpm(2))
        assert not limiter.try_acquire("e", "r", {"rpm": 1})
        assert limiter.available("e", "r") == {"rpm": -9}
        limiter.set_system_defaults(rpm(12))
        assert limiter.try_acquire("e", "r", {"rpm": 1})
        assert not limiter.try_acquire("e", "r", {"rpm": 1})

    def test_a_change_holds_when_the_cache_expires(self, open_limiter: Callable[..., Any], clock: ManualClock) -> None:
        one, other = open_limiter(), open_limiter(config_cache_ttl=30)
        one.set_system_defaults(rpm(10))
        assert other.resolve_limits("e", "r")[0] == rpm(10)
        one.set_system_defaults(rpm(20))
        assert one.resolve_limits("e", "r")[0] == rpm(20), "the one who changed it knows at once"
        clock.advance(29.999)
        assert other.resolve_limits("e", "r")[0] == rpm(10)
        clock.advance(0.001)
        assert other.resolve_limits("e", "r")[0] == rpm(20)
        one.set_system_defaults(rpm(30))
        other.invalidate_config_cache()
        assert other.resolve_limits("e", "r")[0] == rpm(30)

    def test_clients_that_disagree_about_a_limit_mint_nothing(self, open_limiter: Callable[..., Any]) -> None:
        """While one has not heard of a change, the bucket must not swing between the two."""
        one, other = open_limiter(), open_limiter()
        one.set_system_defaults(rpm(10))
        assert not other.try_acquire("e", "r", {"rpm": 11})
        one.set_system_defaults(rpm(20))
        admitted = sum(bool(client.try_acquire("e", "r", {"rpm": 1})) for _ in range(30) for client in (one, other))
        assert admitted == 20

    def test_an_old_lease_does_not_bring_back_an_old_limit(self, open_limiter: Callable[..., Any]) -> None:
        limiter = open_limiter()
        limiter.set_system_defaults(rpm(100))
        lease = limiter.try_acquire("e", "r", {"rpm": 40}).lease
        limiter.set_system_defaults(rpm(10))
        assert not limiter.try_acquire("e", "r", {"rpm": 10})
        lease.rollback()
        assert [status.limit for status in limiter.get_buckets("e")] == rpm(10)
        assert limiter.available("e", "r") == {"rpm": 10}

    def test_a_deleted_level_gives_way_to_an_older_one(self, limiter: Any) -> None:
        limiter.set_system_defaults(rpm(10))
        limiter.set_limits("e", rpm(100))
        assert limiter.try_acquire("e", "r", {"rpm": 9})
        limiter.delete_limits("e")
        assert limiter.try_acquire("e", "r", {"rpm": 1})
        assert not limiter.try_acquire("e", "r", {"rpm": 1})

    def test_cache_stats_count_hits_and_misses(self, open_limiter: Callable[..., Any]) -> None:
        limiter = open_limiter(config_cache_ttl=5)
        for _ in range(3):
            limiter.resolve_limits("e", "r")
        stats = limiter.get_cache_stats()
        assert (stats.hits, stats.misses, stats.size, stats.ttl_seconds) == (2, 1, 1, 5.0)
        uncached = open_limiter(config_cache_ttl=0)
        uncached.resolve_limits("e", "r")
        uncached.resolve_limits("e", "r")
        assert uncached.get_cache_stats().hits == 0

    @pytest.fixture
    def ids(self, limiter: Any) -> list[str]:
        """Of entities with limits of their own for a/b."""
        ids = [f"e{n:02}" for n in range(25)]
        for entity_id in reversed(ids):
            limiter.set_limits(entity_id, rpm(1), "a/b")
        return ids

    def test_lists_of_limits_are_complete_and_in_order(self, limiter: Any, ids: list[str]) -> None:
        limiter.set_limits("default-only", rpm(1))
        limiter.set_limits("elsewhere", rpm(1), "a")
        for resource in ("y", "x/1", "x"):
            limiter.set_resource_defaults(resource, rpm(1))
        assert limiter.list_entities_with_custom_limits("a/b") == ids
        assert limiter.list_entities_with_custom_limits(None) == ["default-only"]
        assert limiter.list_resources_with_defaults() == ["x", "x/1", "y"]
        limiter.delete_limits("e00", "a/b")
        assert limiter.list_entities_with_custom_limits("a/b") == ids[1:]

    def test_pages_of_a_list_are_the_whole_list(self, limiter: Any, ids: list[str]) -> None:
        found: list[str] = []
        cursor = None
        while True:
            page = limiter.list_entities_with_custom_limits("a/b", limit=7, cursor=cursor)
            assert len(page) <= 7
            found += page
            cursor = page.cursor
            if cursor is None:
                break
        assert found == ids

    @pytest.fixture
    def odd_ids(self, limiter: Any) -> list[str]:
        """E-mail addresses, percent-encoded URLs, and what would mean something in a pattern, a path or a query.

        Each entity is the parent of the next, and has taken one token more than the one before.
        """
        ids = ["ann+x@example.com", "ann", "o'brien@example.com", "https%3A%2F%2Fexample.com%2F%3Fa%3D1", "a!$%&',=~-"]
        for number, (parent_id, entity_id) in enumerate(zip([None, *ids], ids), 1):
            limiter.create_entity(entity_id, parent_id=parent_id)
            limiter.set_limits(entity_id, [RPM], "api")
            assert limiter.try_acquire(entity_id, "api", {"rpm": number})
        return ids

    def test_ids_of_all_allowed_characters_are_kept_apart_in_every_list(self, limiter: Any, odd_ids: list[str]) -> None:
        for number, entity_id in enumerate(odd_ids, 1):
            assert [(one.entity_id, one.resource) for one in limiter.get_buckets(entity_id)] == [(entity_id, "api")]
            assert [child.entity_id for child in limiter.get_children(entity_id)] == odd_ids[number : number + 1]
            assert [row.entity_id for row in limiter.get_usage(entity_id)] in ([entity_id], [])
        assert sorted(limiter.list_entities_with_custom_limits("api")) == sorted(odd_ids)

    def test_ids_of_all_allowed_characters_have_buckets_of_their_own(self, limiter: Any, odd_ids: list[str]) -> None:
        assert [limiter.available(one, "api")["rpm"] for one in odd_ids] == [59, 58, 57, 56, 55]
        limiter.reset(odd_ids[0], "api")
        assert [limiter.available(one, "api")["rpm"] for one in odd_ids] == [60, 58, 57, 56, 55]

    def test_resource_capacity_lists_entities_with_limits_or_buckets_and_sums_them(self, limiter: Any) -> None:
        limiter.set_resource_defaults("r", [Limit.per_minute("rpm", 10), TPM])
        limiter.set_limits("vip", rpm(100), "r")
        limiter.set_limits("idle", rpm(50), "r")
        limiter.try_acquire("a", "r", {"rpm": 3})
        limiter.adjust("b", "r", {"rpm": 12, "tpm": 1})
        limiter.try_acquire("vip", "r", {"rpm": 30})
        limiter.try_acquire("a", "elsewhere", {"rpm": 1}, rpm(10))
        capacity = limiter.get_resource_capacity("r", "rpm")
        shown = [(entity.entity_id, entity.capacity, entity.available) for entity in capacity.entities]
        assert shown == [("a", 10, 7), ("b", 10, -2), ("idle", 50, 50), ("vip", 100, 70)]
        assert (capacity.total_capacity, capacity.total_available) == (170, 125)

    def test_resource_capacity_of_more_than_a_page(self, limiter: Any) -> None:
        limiter.set_resource_defaults("r", [RPM, TPM])
        count = self.more_than_a_page
        for n in range(count):
            limiter.adjust(f"e{n}", "r", {"rpm": 1, "tpm": 1})
        capacity = limiter.get_resource_capacity("r", "rpm")
        assert (len(capacity.entities), capacity.total_available) == (count, count * 59)
        assert [bucket.limit for bucket in limiter.get_buckets(f"e{count - 1}")] == [RPM, TPM]

    def test_buckets_of_an_entity_show_what_is_left_and_when_they_are_full(
        self, limiter: Any, clock: ManualClock
    ) -> None:
        limiter.try_acquire("e", "r", {"rpm": 30, "tpm": 500}, [RPM, TPM])
        limiter.penalize("e", "s", seconds=20, limits=[RPM])
        limiter.try_acquire("e2", "r", {"rpm": 30}, [RPM])
        clock.advance(5)
        shown = [
            (b.resource, b.limit, b.available, b.full_in_seconds, b.blocked_for_seconds)
            for b in limiter.get_buckets("e")
        ]
        assert shown == [("r", RPM, 35, 25.0, 0.0), ("r", TPM, 1083, 25.0, 0.0), ("s", RPM, 0, 15.0, 15.0)]
        assert [b.limit for b in limiter.get_buckets("e", "s")] == [RPM]
        assert limiter.get_buckets("nobody") == []

    def test_empty_limits_are_not_stored(self, limiter: Any) -> None:
        calls: list[Callable[[], None]] = [
            lambda: limiter.set_limits("e", []),
            lambda: limiter.set_resource_defaults("r", []),
            lambda: limiter.set_system_defaults([]),
        ]
        for call in calls:
            with pytest.raises(ValidationError, match="empty"):
                call()

    def test_a_cursor_leads_into_no_other_list(self, limiter: Any) -> None:
        for resource in ("a", "b", "c"):
            for entity_id in ("x", "y", "z"):
                limiter.set_limits(entity_id, [RPM], resource)
        page = limiter.list_entities_with_custom_limits("b", limit=1)
        assert list(limiter.list_entities_with_custom_limits("b", cursor=page.cursor)) == ["y", "z"]
        for other in ("a", "c"):
            with pytest.raises(ValidationError, match="not of this list"):
                limiter.list_entities_with_custom_limits(other, cursor=page.cursor)
