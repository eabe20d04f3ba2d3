"""Audit: every change, by whom, when, from what to what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ...core.errors import EntityExists, ValidationError, VersionConflict
from ..clock import ManualClock
from .fixtures import RPM, TPM, Conformance


def told(events: Any) -> list[tuple[Any, ...]]:
    """The oldest first."""
    return [(one.action, one.entity_id, one.resource, one.before, one.after) for one in reversed(events)]


class AuditConformance(Conformance):
    def test_every_change_leaves_one_event_with_before_and_after(self, limiter: Any, clock: ManualClock) -> None:
        limiter.create_entity("e", name="E")
        entity: dict[str, Any] = {"name": "E", "parent_id": None, "cascade": False, "metadata": {}}
        limiter.update_entity("e", name="F")
        limiter.set_limits("e", [RPM])
        limiter.set_limits("e", [RPM, TPM])
        limiter.set_limits("e", [RPM], "api")
        limiter.try_acquire("e", "api", {"rpm": 10})
        limiter.penalize("e", "api", factor=0.5)
        limiter.reset("e", "api")
        limiter.delete_limits("e")
        limiter.delete_entity("e")
        rpm, tpm = {"rpm": "60/minute"}, {"tpm": "1000/minute burst 1500"}
        of_entity = told(limiter.get_audit_events("e"))
        assert of_entity == [
            ("entity.created", "e", None, None, entity),
            ("entity.updated", "e", None, entity, entity | {"name": "F"}),
            ("limits.set", "e", None, None, {"limits": rpm}),
            ("limits.set", "e", None, {"limits": rpm}, {"limits": rpm | tpm}),
            ("limits.set", "e", "api", None, {"limits": rpm}),
            ("buckets.penalized", "e", "api", None, {"seconds": None, "factor": 0.5}),
            ("buckets.reset", "e", "api", {"available": {"rpm": 25, "tpm": 750}}, None),
            ("limits.deleted", "e", None, {"limits": rpm | tpm}, None),
            ("entity.deleted", "e", None, entity | {"name": "F", "limits": {"api": rpm}}, None),
        ]
        limiter.set_resource_defaults("api", [RPM])
        limiter.delete_resource_defaults("api")
        limiter.set_system_defaults([RPM], on_unavailable="allow")
        limiter.delete_system_defaults()
        after = {"limits": rpm, "on_unavailable": "allow"}
        assert told(limiter.get_audit_events()) == [
            *of_entity,
            ("resource_defaults.set", None, "api", None, {"limits": rpm}),
            ("resource_defaults.deleted", None, "api", {"limits": rpm}, None),
            ("system_defaults.set", None, None, None, after),
            ("system_defaults.deleted", None, None, after, None),
        ]
        assert {int(event.at.timestamp() * 1000) for event in limiter.get_audit_events()} == {clock.now_ms()}

    def test_a_change_of_nothing_leaves_no_event(self, limiter: Any) -> None:
        limiter.create_entity("e")
        with pytest.raises(EntityExists):
            limiter.create_entity("e")
        limiter.set_limits("e", [RPM])
        limiter.set_limits("e", [RPM])
        limiter.update_entity("e", name=None)
        assert not limiter.delete_limits("e", "api")
        with pytest.raises(VersionConflict):
            limiter.update_entity("e", name="x", expected_version=7)
        assert [event.action for event in limiter.get_audit_events()] == ["limits.set", "entity.created"]

    def test_pages_are_newest_first(self, limiter: Any, clock: ManualClock) -> None:
        for number in range(7):
            limiter.set_resource_defaults(f"r{number}", [RPM])
            clock.advance(number % 2)
        found, cursor = [], None
        while True:
            page = limiter.get_audit_events(limit=3, cursor=cursor)
            assert len(page) <= 3
            found += [event.resource for event in page]
            cursor = page.cursor
            if cursor is None:
                break
        assert found == [f"r{number}" for number in range(6, -1, -1)]

    def test_events_name_the_actor_of_the_call_or_of_the_limiter(self, open_limiter: Callable[..., Any]) -> None:
        limiter = open_limiter(actor="deploy")
        limiter.set_system_defaults([RPM])
        limiter.set_system_defaults([TPM], actor="ann@example.org")
        assert [event.actor for event in limiter.get_audit_events()] == ["ann@example.org", "deploy"]
        for wrong in ("", "x" * 257, "a\nb", 7):
            with pytest.raises(ValidationError, match="actor"):
                limiter.set_system_defaults([RPM], actor=wrong)
            with pytest.raises(ValidationError, match="actor"):
                open_limiter(actor=wrong)
        assert limiter.get_system_defaults() == [TPM]

    def test_events_are_kept_for_audit_days(self, open_limiter: Callable[..., Any], clock: ManualClock) -> None:
        limiter = open_limiter(audit_days=2)
        limiter.create_entity("e")
        clock.advance(86400)
        limiter.set_limits("e", [RPM])
        clock.advance(86401)
        for events in (limiter.get_audit_events(), limiter.get_audit_events("e")):
            assert [event.action for event in events] == ["limits.set"]
        silent = open_limiter(audit_days=0)
        silent.set_limits("e", [TPM])
        silent.reset("e", "api")
        assert len(limiter.get_audit_events()) == 1

    def test_second_of_two_edits_is_a_version_conflict(self, limiter: Any) -> None:
        versions = [limiter.get_limits_version(*place) for place in (("e",), (), (None, "r"))]
        assert versions == [0, 0, 0]
        limiter.set_limits("e", [RPM], expected_version=0)
        seen = limiter.get_limits_version("e")
        limiter.set_limits("e", [TPM], expected_version=seen)
        with pytest.raises(VersionConflict):
            limiter.set_limits("e", [RPM], expected_version=seen)
        assert limiter.get_limits("e") == [TPM]
        with pytest.raises(VersionConflict):
            limiter.set_resource_defaults("r", [RPM], expected_version=3)
        with pytest.raises(VersionConflict):
            limiter.set_system_defaults([RPM], expected_version=3)
        assert limiter.get_resource_defaults("r") == limiter.get_system_defaults() == []

    def test_deleting_limits_of_another_version_is_a_conflict(self, limiter: Any) -> None:
        limiter.set_limits("e", [TPM])
        limiter.set_resource_defaults("r", [RPM])
        limiter.set_system_defaults([RPM])
        for version in (0, 10):
            with pytest.raises(VersionConflict):
                limiter.delete_limits("e", expected_version=version)
            with pytest.raises(VersionConflict):
                limiter.delete_resource_defaults("r", expected_version=version)
            with pytest.raises(VersionConflict):
                limiter.delete_system_defaults(expected_version=version)
        assert limiter.get_limits("e") == [TPM]
        assert limiter.get_resource_defaults("r") == limiter.get_system_defaults() == [RPM]
        assert limiter.delete_limits("e", expected_version=limiter.get_limits_version("e"))
        assert limiter.delete_resource_defaults("r", expected_version=limiter.get_limits_version(None, "r"))
        assert limiter.delete_system_defaults(expected_version=limiter.get_limits_version())
        assert not limiter.delete_limits("e", expected_version=0)
