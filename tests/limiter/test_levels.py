"""Levels: what they come to together is what a plain model says, and the limits a limiter is made with."""

from __future__ import annotations

import copy
import pickle
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import (
    Ask,
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    StoredLimits,
    SyncRateLimiter,
    ValidationError,
    VersionConflict,
)
from headgate.core.names import StoredId
from headgate.limiter.config.levels import STORED, LimitLevel, StoredLevel
from headgate.limiter.config.limits import read_level, write_level
from headgate.limiter.config.preview import preview_level
from headgate.testing import ManualClock

NAMES = ["rpm", "tpm", "calls", "on"]
RESOURCES = ["chat", "search"]
ENTITIES = ["ann", "bob"]
NOBODY, ELSEWHERE = "carl", "other"  # of which nothing is stored
EVERYWHERE = [(entity, resource) for entity in [*ENTITIES, NOBODY] for resource in [*RESOURCES, ELSEWHERE]]


class Change(NamedTuple):
    """Of what is stored for an entity (None: everyone) on a resource (None: every one). No limits: deleted."""

    entity_id: str | None
    resource: str | None
    limits: dict[str, int]
    inherit: bool


amounts = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 9), max_size=3)
changes = st.builds(
    Change, st.sampled_from([None, *ENTITIES]), st.sampled_from([None, *RESOURCES]), amounts, st.booleans()
)
Stored = dict["tuple[str | None, str | None]", Change]


def limits_of(amounts: Mapping[str, int]) -> list[Limit]:
    return [Limit.per_minute(name, amount) for name, amount in amounts.items()]


def model(stored: Stored, own: Mapping[str, int], entity_id: str, resource: str) -> dict[str, tuple[Limit, str]]:
    """The law, word for word: each name from the most specific level; one that does not inherit is the last."""
    found: dict[str, tuple[Limit, str]] = {}
    for place, source in (
        ((entity_id, resource), "entity"),
        ((entity_id, None), "entity_default"),
        ((None, resource), "resource"),
        ((None, None), "system"),
    ):
        if place in stored:
            for limit in limits_of(stored[place].limits):
                found.setdefault(limit.name, (limit, source))
            if not stored[place].inherit:
                return found
    for limit in limits_of(own):
        found.setdefault(limit.name, (limit, "limiter"))
    return found


def make(limiter: SyncRateLimiter, change: Change) -> None:
    entity_id, resource, limits, inherit = change
    if entity_id is not None:
        if limits:
            limiter.set_limits(entity_id, limits_of(limits), resource, inherit=inherit)
        else:
            limiter.delete_limits(entity_id, resource)
    elif resource is not None:
        if limits:
            limiter.set_resource_defaults(resource, limits_of(limits), inherit=inherit)
        else:
            limiter.delete_resource_defaults(resource)
    elif limits:
        limiter.set_system_defaults(limits_of(limits), inherit=inherit)
    else:
        limiter.delete_system_defaults()


@settings(max_examples=150, deadline=None)
@given(st.lists(changes, max_size=8), amounts)
def test_resolution_equals_a_plain_model(made: list[Change], own: dict[str, int]) -> None:
    """After every change, for everyone everywhere; and the preview of the change said so, and what it drops."""
    stored: Stored = {}
    with SyncRateLimiter(f"memory://{uuid.uuid4().hex}", limits=limits_of(own) or None) as limiter:
        for change in made:
            before = {place: model(stored, own, *place) for place in EVERYWHERE}
            wanted = limits_of(change.limits) or None
            preview = limiter.preview_limits(change.entity_id, change.resource, wanted, inherit=change.inherit)
            make(limiter, change)
            stored.pop(change[:2], None)
            if change.limits:
                stored[change[:2]] = change
            dropped: dict[tuple[str, str], set[str]] = {}
            for place in EVERYWHERE:
                expected = model(stored, own, *place)
                resolved = limiter.resolve_limits(*place)
                assert {limit.name: (limit, resolved.sources[limit.name]) for limit in resolved.limits} == expected
                assert resolved.source == next((source for _, source in expected.values()), None)
                dropped[place] = before[place].keys() - expected.keys()
            assert set().union(*dropped.values()) <= preview.dropped.keys(), "nothing disappears that was not said"
            for name, resources in preview.dropped.items():
                for resource in resources:
                    assert name in dropped[change.entity_id or NOBODY, resource or ELSEWHERE]
            if change.entity_id is not None and change.resource is not None:
                assert preview.before.sources == {name: source for name, (_, source) in before[change[:2]].items()}
                assert preview.after == limiter.resolve_limits(change.entity_id, change.resource)


@settings(max_examples=60, deadline=None)
@given(st.lists(changes, max_size=6), amounts, st.dictionaries(st.sampled_from(NAMES), st.just(1), min_size=1))
def test_an_acquire_obeys_what_is_resolved(made: list[Change], own: dict[str, int], consume: dict[str, int]) -> None:
    """All of it, and nothing else: a name that does not hold is an error, and the others are taken from."""
    with SyncRateLimiter(f"memory://{uuid.uuid4().hex}", limits=limits_of(own) or None) as limiter:
        for change in made:
            make(limiter, change)
        limits, _ = limiter.resolve_limits("ann", "chat")
        capacities = {limit.name: limit.capacity for limit in limits}
        if consume.keys() <= capacities.keys():
            assert limiter.try_acquire("ann", "chat", consume)
            left = {name: capacity - consume.get(name, 0) for name, capacity in capacities.items()}
            assert limiter.available("ann", "chat") == left
        else:
            with pytest.raises(ValidationError):
                limiter.try_acquire("ann", "chat", consume)
            assert limiter.get_buckets("ann") == []


def test_results_are_plain_values() -> None:
    """They are compared, copied and sent elsewhere like the lists and tuples they are."""
    with SyncRateLimiter("memory://", limits=[Limit.per_day("rpm", 1)]) as limiter:
        resolved = limiter.resolve_limits("e", "r")
        for other in (copy.copy(resolved), copy.deepcopy(resolved), pickle.loads(pickle.dumps(resolved))):
            assert (other, other.sources, other.on_unavailable) == (resolved, {"rpm": "limiter"}, None)
        limiter.set_limits("e", [Limit.per_day("rpm", 1)], inherit=False)
        stored = pickle.loads(pickle.dumps(limiter.get_limits("e")))
        assert (stored, stored.inherit, stored.version) == ([Limit.per_day("rpm", 1)], False, 1)
        assert StoredLimits() == []


# The limits that a limiter is made with


@pytest.mark.parametrize("kind", [RateLimiter, SyncRateLimiter])
@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ([], "must not be empty"),
        ("rpm=1/minute", "must be a list of Limit"),
        (Limit.per_day("rpm", 1), "must be a list of Limit"),
        (7, "must be a list of Limit"),
        (["rpm"], "must be Limit objects"),
        ([Limit.per_day("rpm", 1), Limit.per_day("rpm", 2)], "given twice"),
    ],
)
def test_a_limiters_own_limits_are_checked_when_it_is_made(kind: Any, limits: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        kind("memory://", limits=limits)


def test_a_limiters_own_limits_do_not_change_with_the_callers_list() -> None:
    given_limits = [Limit.per_day("rpm", 1)]
    with SyncRateLimiter("memory://", limits=given_limits) as limiter:
        given_limits.clear()
        assert limiter.try_acquire("e", "r", {"rpm": 1})
        assert not limiter.try_acquire("e", "r", {"rpm": 1})


def test_what_a_dead_holder_used_is_given_back_under_the_limits_of_its_limiter() -> None:
    """The bucket is gone by then, and the limiter that reconciles was made without them."""
    url, clock = f"memory://{uuid.uuid4().hex}", ManualClock()
    own = [Limit.per_second("rps", 10)]
    with SyncRateLimiter(url, limits=own, clock=clock) as taker, SyncRateLimiter(url, clock=clock) as sweeper:
        decision = taker.try_acquire("e", "r", {"rps": 4}, record_lease=True, restore_on_expiry=True)
        assert decision.lease is not None
        decision.lease.detach()
        assert [used.consumed for used in taker.get_usage("e")] == [{"rps": 4}]
        taker.reset("e", "r")
        clock.advance(60)
        assert sweeper.reconcile().restored == 1
        assert [used.consumed for used in taker.get_usage("e")] in ([], [{"rps": 0}])


# While the store is away, and was never there


def test_a_limiters_own_limits_hold_here_when_the_store_was_never_there() -> None:
    pytest.importorskip("redis")
    own = [Limit.per_day("rpm", 2)]
    with SyncRateLimiter("redis://127.0.0.1:1/0", limits=own, on_unavailable="local") as limiter:
        decisions = [limiter.try_acquire("e", "r", {"rpm": 1}) for _ in range(3)]
        assert [(one.allowed, one.degraded) for one in decisions] == [(True, True), (True, True), (False, True)]
        with pytest.raises(RateLimiterUnavailable):  # it may be stored, for all we know
            limiter.try_acquire("e", "r", {"tpm": 1})
        with pytest.raises(RateLimiterUnavailable):
            limiter.try_acquire("e", "r", {"rpm": 1}, on_unavailable="block")
        each = limiter.try_acquire_each([Ask("f", "r"), Ask("f", "r", {"rpm": 2})])
        assert [(one.allowed, one.degraded) for one in each] == [(True, True), (False, True)]
        with limiter.acquire_many(["g#r"]) as leases:
            assert leases["g#r"].degraded


# A level as a value


def stored_limits(limits: Mapping[str, int], inherit: bool) -> StoredLimits | None:
    return StoredLimits(limits_of(limits), inherit=inherit) if limits else None


@settings(max_examples=60, deadline=None)
@given(made=st.lists(changes, max_size=6), change=changes, hashes=st.booleans())
def test_a_level_reads_writes_and_previews_as_the_limiters_methods_do(
    made: list[Change], change: Change, hashes: bool
) -> None:
    level = LimitLevel(change.entity_id, change.resource)
    wanted = stored_limits(change.limits, change.inherit)
    with (
        SyncRateLimiter("memory://", hash_entity_ids=hashes) as by_method,
        SyncRateLimiter("memory://", hash_entity_ids=hashes) as by_level,
    ):
        for one in made:
            make(by_method, one)
            there = LimitLevel(one.entity_id, one.resource)
            was_there = bool(read_level(by_level, there))
            assert write_level(by_level, there, stored_limits(one.limits, one.inherit)) == was_there
        expected = by_method.preview_limits(
            change.entity_id, change.resource, limits_of(change.limits) or None, inherit=change.inherit
        )
        assert preview_level(by_level, level, wanted) == expected
        assert by_level.get_limits_version(change.entity_id, change.resource) == expected.version
        for limiter in (by_method, by_level):
            for entity_id, resource in EVERYWHERE:
                assert limiter.resolve_limits(entity_id, resource) == by_method.resolve_limits(entity_id, resource)
        actions = [
            [(event.action, event.entity_id) for event in each.get_audit_events()] for each in (by_method, by_level)
        ]
        assert actions[0] == actions[1]


@pytest.mark.parametrize(
    ("level", "source", "name", "action"),
    [
        (LimitLevel("ann", "chat"), "entity", "ann on chat", "limits"),
        (LimitLevel("ann"), "entity_default", "ann on every resource", "limits"),
        (LimitLevel(resource="chat"), "resource", "everyone on chat", "resource_defaults"),
        (LimitLevel(), "system", "everyone on every resource", "system_defaults"),
    ],
)
def test_each_level_has_one_name_and_is_the_source_of_its_limits(
    level: LimitLevel, source: str, name: str, action: str
) -> None:
    assert (level.source, str(level)) == (source, name)
    assert level.as_dict() == {"entity_id": level.entity_id, "resource": level.resource, "source": source}
    with SyncRateLimiter("memory://") as limiter:
        assert write_level(limiter, level, StoredLimits(limits_of({"rpm": 3}))) is False
        assert limiter.resolve_limits("ann", "chat").sources == {"rpm": source}
        with pytest.raises(VersionConflict):
            write_level(limiter, level, None, expected_version=7)
        assert write_level(limiter, level, None, expected_version=read_level(limiter, level).version) is True
        newest = [event.action for event in limiter.get_audit_events(limit=2)]
        assert newest == [f"{action}.deleted", f"{action}.set"]


def test_the_stored_form_of_a_level_has_the_hashed_id() -> None:
    with SyncRateLimiter("memory://", hash_entity_ids=True) as limiter:
        stored = LimitLevel("ann", "chat").stored(limiter.engine)
        assert "ann" not in f"{stored} {stored.key('default')} {stored.index_key('default')}"
        assert stored.stored(limiter.engine) == stored
        write_level(limiter, stored, StoredLimits(limits_of({"rpm": 3})))
        assert limiter.get_limits("ann", "chat") == limits_of({"rpm": 3})
        with pytest.raises(ValidationError, match="resource"):
            LimitLevel("ann", "a#b").stored(limiter.engine)


names = st.text(st.characters(categories=["Ll", "Nd"], include_characters="-_./:"), min_size=1, max_size=12)


@settings(deadline=None)
@given(st.none() | names, st.none() | names, names)
def test_the_key_of_a_level_reads_back_as_the_level(
    entity_id: str | None, resource: str | None, namespace: str
) -> None:
    level = StoredLevel(None if entity_id is None else StoredId(entity_id), resource)
    assert StoredLevel.from_key(namespace, level.key(namespace)) == level
    searched = level.searched()
    assert [one and one.source for one in searched] == [
        source if one is not None else None for one, source in zip(searched, STORED)
    ]
    assert next(one for one in searched if one is not None) == level
    with pytest.raises(ValueError, match="is not the key of a level"):
        StoredLevel.from_key(namespace, f"{namespace}/revision")


def test_the_system_level_keeps_the_outage_policy() -> None:
    with SyncRateLimiter("memory://") as limiter:
        wanted = StoredLimits(limits_of({"rpm": 3}), on_unavailable="allow")
        assert preview_level(limiter, LimitLevel(), wanted).after.on_unavailable == "allow"
        write_level(limiter, LimitLevel(), wanted)
        assert limiter.get_system_on_unavailable() == "allow"
        with pytest.raises(ValidationError, match="on_unavailable must be"):
            write_level(limiter, LimitLevel(), StoredLimits(wanted, on_unavailable="sometimes"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "call",
    [
        lambda limiter: limiter.set_limits(None, limits_of({"rpm": 3})),
        lambda limiter: limiter.set_limits(None, limits_of({"rpm": 3}), "chat"),
        lambda limiter: limiter.get_limits(None),
        lambda limiter: limiter.delete_limits(None),
        lambda limiter: limiter.delete_limits(None, "chat"),
        lambda limiter: limiter.set_resource_defaults(None, limits_of({"rpm": 3})),
        lambda limiter: limiter.get_resource_defaults(None),
        lambda limiter: limiter.delete_resource_defaults(None),
    ],
)
def test_a_missing_entity_or_resource_is_an_error_and_never_means_everyone(call: Any) -> None:
    with SyncRateLimiter("memory://") as limiter:
        limiter.set_system_defaults(limits_of({"rpm": 7}))
        limiter.set_resource_defaults("chat", limits_of({"tpm": 7}))
        with pytest.raises(ValidationError, match=r"(entity_id|resource) must be a string, not None"):
            call(limiter)
        assert limiter.get_system_defaults() == limits_of({"rpm": 7})
        assert limiter.get_resource_defaults("chat") == limits_of({"tpm": 7})
