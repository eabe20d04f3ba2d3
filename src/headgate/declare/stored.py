"""What a namespace has, by place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..core.names import StoredId
from ..core.records import ABSENT, Record
from ..limiter import keys
from ..limiter.config.edits import Level, resource_level, system_level
from ..limiter.engine import Engine
from ..plan import GetRecords, ListRecords, Plan
from .declaration import Place

_AT_ONCE = 100  # records that are read in one call
_PAGE = 500


@dataclass(slots=True)
class Stored:
    """Records by place. `applied`: the version of the record that whoever applies something writes too."""

    records: dict[Place, Record] = field(default_factory=dict)
    applied: int = ABSENT


def applied_key(namespace: str) -> str:
    """Who applied a declaration last, and when. A new version of it stops those who looked before."""
    return f"{namespace}/applied"


def level_at(engine: Engine, place: Place) -> Level:
    """Where the limits of a place are. Ids in places are stored ids."""
    if place.kind == "system":
        return system_level(engine)
    if place.kind == "resource":
        return resource_level(engine, str(place.resource))
    entity_id = StoredId(place.entity_id)
    key = keys.entity_limits_key(engine.namespace, entity_id, place.resource)
    index = keys.custom_key(engine.namespace, place.resource, entity_id)
    return Level(key, "limits.set", "limits.deleted", entity_id, place.resource, index)


def key_at(engine: Engine, place: Place) -> str:
    if place.kind == "entity":
        return keys.entity_key(engine.namespace, StoredId(place.entity_id))
    if place.kind == "rules":
        return keys.rules_key(engine.namespace)
    if place.kind == "plans":
        return keys.plans_key(engine.namespace)
    return level_at(engine, place).key


def read_places_plan(engine: Engine, places: Iterable[Place]) -> Plan[Stored]:
    """What there is at these places, and of the entities above those among them."""
    stored = Stored()
    stored.applied = yield from _applied_plan(engine)  # first: what is read is no older
    wanted = list(places)
    while wanted:
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            records = yield from GetRecords([key_at(engine, place) for place in some])
            stored.records |= {place: record for place, record in zip(some, records) if record is not None}
        wanted = sorted(_parents(stored, wanted))
    return stored


def _parents(stored: Stored, read: Iterable[Place]) -> Iterator[Place]:
    """The places of parents not yet read."""
    known = set(stored.records)
    for place in set(read):
        record = stored.records.get(place) if place.kind == "entity" else None
        if record and record.value["parent_id"] is not None:
            above = Place("entity", record.value["parent_id"])
            if above not in known:
                known.add(above)
                yield above


def read_all_plan(engine: Engine) -> Plan[Stored]:
    namespace = engine.namespace
    stored = yield from read_places_plan(engine, [Place("system"), Place("plans"), Place("rules")])
    for prefix, place_of in (
        (keys.resources_prefix(namespace), _resource_place),
        (keys.entities_prefix(namespace), _entity_place),
        (keys.entities_limits_prefix(namespace), _limits_place),
    ):
        cursor: str | None = None
        while True:
            page = yield from ListRecords(prefix, cursor, _PAGE)
            for error in page.corrupt:  # a declaration without it would delete it
                raise error
            stored.records |= {place_of(record.key.removeprefix(prefix)): record for record in page}
            cursor = page.cursor
            if cursor is None:
                break
    return stored


def _resource_place(rest: str) -> Place:
    return Place("resource", resource=rest)


def _entity_place(rest: str) -> Place:
    return Place("entity", rest)


def _limits_place(rest: str) -> Place:
    entity_id, _, resource = rest.partition("#")
    return Place("limits", entity_id, resource or None)


def _applied_plan(engine: Engine) -> Plan[int]:
    (record,) = yield from GetRecords([applied_key(engine.namespace)])
    return record.version if record else ABSENT
