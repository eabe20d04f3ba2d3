"""What a namespace has, as a declaration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.limit import by_name
from ..core.text import readable
from ..limiter.config.levels import inherits, limits_in
from ..limiter.engine import Engine
from ..plan import Plan
from .declaration import Declaration, DeclaredEntity, DeclaredLimits, Limits, Place
from .stored import read_all_plan


def export_plan(engine: Engine) -> Plan[Declaration]:
    """All that is stored in the limiter's namespace and can be declared. Of ids that are hashed, the hashes."""
    stored = yield from read_all_plan(engine)
    found = {
        place: readable(record.value) for place, record in sorted(stored.records.items(), key=lambda item: str(item[0]))
    }
    system = found.get(Place("system"))
    return Declaration(
        namespace=engine.namespace,
        system=None if system is None else _limits(system),
        on_unavailable=(system or {}).get("on_unavailable"),
        resources={str(place.resource): _limits(value) for place, value in found.items() if place.kind == "resource"},
        entities=_entities(found),
        plans=found.get(Place("plans"), {}).get("plans"),
        rules=found.get(Place("rules"), {}).get("rules"),
    )


def _entities(found: Mapping[Place, Mapping[str, Any]]) -> dict[str, DeclaredEntity]:
    limits: dict[str, dict[str | None, Limits]] = {}
    for place, value in found.items():
        if place.entity_id:
            own = limits.setdefault(place.entity_id, {})
            if place.kind == "limits":
                own[place.resource] = _limits(value)
    return {
        entity_id: DeclaredEntity(**found.get(Place("entity", entity_id), {}), limits=own)
        for entity_id, own in sorted(limits.items())
    }


def _limits(value: Mapping[str, Any]) -> Limits:
    return DeclaredLimits(by_name(limits_in(value)), inherit=inherits(value))
