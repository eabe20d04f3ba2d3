"""Declarations of all kinds, and what must be so of a namespace whatever was applied to it."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from headgate import Limit, SyncRateLimiter
from headgate.declare import Declaration, DeclaredEntity, DeclaredLimits

LIGHTLY = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
IDS = ["a", "a-b", "a.b", "b", "None", "0x1", "1e5", "true", "x:y@z"]
RESOURCES = ["api", "v1/chat:all", "null", "2024-01-01"]

# What has to be stored and listed is of a few kinds, and what has to be written and read is of all kinds.
FEW_LIMITS = [
    {"rpm": Limit.per_minute("rpm", 10)},
    {"rpm": Limit.per_minute("rpm", 20), "tpm": Limit.per_day("tpm", 5, burst=9)},
    {"on": Limit.concurrent("on", 3, ttl=90)},
]
amount = st.integers(1, 10**12) | st.sampled_from([0.001, 1.5])
any_limit = st.builds(Limit.custom, st.just("rpm"), amount, amount, st.sampled_from([1, 60, 7 * 86_400, 90, 0.25]))
any_limits = any_limit.map(lambda one: {one.name: one})
text = st.text(st.characters(codec="utf-8"), max_size=8)
scalar = st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False) | text
value = st.recursive(scalar, lambda deeper: st.lists(deeper, max_size=2) | st.dictionaries(text, deeper, max_size=2))
rules = st.lists(st.sampled_from(["search", "chat", "on"]), unique=True, max_size=3).map(
    lambda ids: [{"id": id, "path": f"/{id}/**", "limits": "10/minute", "priority": 3} for id in ids]
)


@st.composite
def declarations(draw: st.DrawFn, *, of_all_kinds: bool = False) -> Declaration:
    limits = st.builds(
        lambda limits, inherit: DeclaredLimits(limits, inherit=inherit),
        any_limits if of_all_kinds else st.sampled_from(FEW_LIMITS),
        st.booleans(),
    )
    names = st.none() | (text if of_all_kinds else st.just("Acme"))
    some = [{}, {"plan": "pro"}, {"plan": "free", "n": 1}]
    metadata = st.dictionaries(text, value, max_size=3) if of_all_kinds else st.sampled_from(some)
    ids = draw(st.lists(st.sampled_from(IDS), unique=True, max_size=2 if of_all_kinds else 6))
    entities = {}
    for at, entity_id in enumerate(ids):
        # Whoever is above was drawn before, so that nobody is above himself.
        entities[entity_id] = DeclaredEntity(
            name=draw(names),
            parent_id=draw(st.sampled_from([None, *ids[:at]])),
            cascade=draw(st.booleans()),
            metadata=draw(metadata),
            limits=draw(st.dictionaries(st.sampled_from([None, *RESOURCES]), limits, max_size=2)),
        )
    system = draw(st.none() | limits)
    some_rules = draw(st.none() | rules)
    return Declaration(
        system=system,
        on_unavailable=draw(st.sampled_from([None, "allow"])) if system else None,
        resources=draw(st.dictionaries(st.sampled_from(RESOURCES), limits, max_size=2)),
        entities=entities,
        plans={"pro": {rule["id"]: "100/minute" for rule in some_rules}} if some_rules else None,
        rules=some_rules,
    )


def check_lists(limiter: SyncRateLimiter, declaration: Declaration) -> None:
    """Children and those with limits of their own are listed as they are."""
    for entity_id, entity in declaration.entities.items():
        if entity.parent_id is not None:
            assert entity_id in {child.entity_id for child in limiter.get_children(entity.parent_id)}
    for one in limiter.list_entities():
        for child in limiter.get_children(one.entity_id):
            assert child.parent_id == one.entity_id
    for resource in [None, *RESOURCES]:
        with_limits = [entity_id for entity_id, one in declaration.entities.items() if resource in one.limits]
        assert list(limiter.list_entities_with_custom_limits(resource)) == sorted(with_limits)


def events(limiter: SyncRateLimiter) -> list[dict[str, Any]]:
    return [event.as_dict() for event in limiter.get_audit_events(limit=1000)]
