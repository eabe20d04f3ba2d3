"""What is stored in a namespace and can be declared, by item; the same as a declaration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.limit import by_name
from ..core.records import ABSENT, Record
from ..core.text import readable
from ..limiter import keys
from ..limiter.config.levels import StoredLevel, inherits, limits_in, schedule_in
from ..limiter.engine import Engine
from ..plan import GetRecords, ListRecords, Plan
from .declaration import (
    RULES,
    SYSTEM,
    TIERS,
    Declaration,
    DeclaredEntity,
    DeclaredItem,
    DeclaredLimits,
    Limits,
    entity_item,
)

_AT_ONCE = 100  # records that are read in one call
_PAGE = 500


@dataclass(slots=True)
class StoredItems:
    """Records by item. `applied`: the version of the record that every apply writes."""

    records: dict[DeclaredItem, Record] = field(default_factory=dict)
    applied: int = ABSENT


def applied_key(namespace: str) -> str:
    """Who last applied a declaration, and when. A new version of it stops every apply that read the older one."""
    return f"{namespace}/applied"


def read_items_plan(engine: Engine, items: Iterable[DeclaredItem]) -> Plan[StoredItems]:
    """The records of these items, and of all ancestors of the entities among them."""
    stored = StoredItems()
    stored.applied = yield from _applied_plan(engine)  # first: what is read is no older
    wanted = list(items)
    while wanted:
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            records = yield from GetRecords([item.key(engine.namespace) for item in some])
            stored.records |= {item: record for item, record in zip(some, records) if record is not None}
        wanted = sorted(_parents(stored, wanted), key=str)
    return stored


def _parents(stored: StoredItems, read: Iterable[DeclaredItem]) -> Iterator[DeclaredItem]:
    """The parents that are not read yet."""
    known = set(stored.records)
    for item in set(read):
        record = stored.records.get(item) if item.kind == "entity" else None
        if record and record.value["parent_id"] is not None:
            parent = entity_item(record.value["parent_id"])
            if parent not in known:
                known.add(parent)
                yield parent


def read_all_plan(engine: Engine) -> Plan[StoredItems]:
    namespace = engine.namespace
    stored = yield from read_items_plan(engine, [SYSTEM, TIERS, RULES])

    def limits_item(key: str) -> DeclaredItem:
        return DeclaredItem("limits", StoredLevel.from_key(namespace, key))

    for prefix, item_of in (
        (keys.resources_prefix(namespace), limits_item),
        (keys.entities_prefix(namespace), lambda key: entity_item(keys.last_part(key))),
        (keys.entities_limits_prefix(namespace), limits_item),
    ):
        cursor: str | None = None
        while True:
            page = yield from ListRecords(prefix, cursor, _PAGE)
            for error in page.corrupt:  # a declaration without it would delete it
                raise error
            stored.records |= {item_of(record.key): record for record in page}
            cursor = page.cursor
            if cursor is None:
                break
    return stored


def _applied_plan(engine: Engine) -> Plan[int]:
    (record,) = yield from GetRecords([applied_key(engine.namespace)])
    return record.version if record else ABSENT


# As a declaration


def export_plan(engine: Engine) -> Plan[Declaration]:
    """Everything in the limiter's namespace that can be declared. Hashed ids are exported as hashes."""
    stored = yield from read_all_plan(engine)
    by_name_of_item = sorted(stored.records.items(), key=lambda item: str(item[0]))
    found = {item: readable(record.value) for item, record in by_name_of_item}
    system = found.get(SYSTEM)
    return Declaration(
        namespace=engine.namespace,
        system=None if system is None else _limits(system),
        on_unavailable=(system or {}).get("on_unavailable"),
        resources={
            str(item.level.resource): _limits(value) for item, value in found.items() if item.level.source == "resource"
        },
        entities=_entities(found),
        plans=found.get(TIERS, {}).get("plans"),
        rules=found.get(RULES, {}).get("rules"),
    )


def _entities(found: Mapping[DeclaredItem, Mapping[str, Any]]) -> dict[str, DeclaredEntity]:
    limits: dict[str, dict[str | None, Limits]] = {}
    for item, value in found.items():
        if item.entity_id is not None:
            own = limits.setdefault(item.entity_id, {})
            if item.kind == "limits":
                own[item.level.resource] = _limits(value)
    return {
        entity_id: DeclaredEntity(**found.get(entity_item(entity_id), {}), limits=own)
        for entity_id, own in sorted(limits.items())
    }


def _limits(value: Mapping[str, Any]) -> Limits:
    return DeclaredLimits(by_name(limits_in(value)), inherit=inherits(value), schedule=schedule_in(value))
