"""The difference between a declaration and what is stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from ..core.errors import ValidationError
from ..core.names import StoredId, check_resource
from ..core.records import ABSENT
from ..files import DocumentError
from ..http.rules import Rule, Rules
from ..http.tiers import ANY_RULE, Tiers
from ..limiter.config.edits import described
from ..limiter.config.entities import entity_value
from ..limiter.config.levels import StoredLevel, level_value, resource_level
from ..limiter.engine import Engine
from ..plan import Plan
from .declaration import (
    RULES,
    SYSTEM,
    TIERS,
    Declaration,
    DeclaredEntity,
    DeclaredItem,
    Limits,
    entity_item,
    inherits,
    scheduled,
)
from .reading import wrong_parents
from .stored import StoredItems, read_all_plan, read_items_plan

T = TypeVar("T")
Value: TypeAlias = "dict[str, Any]"
Wanted: TypeAlias = "Mapping[DeclaredItem, Value]"
Ids: TypeAlias = "Mapping[str, StoredId]"  # by the ids in the declaration
Parents: TypeAlias = "Mapping[str, str | None]"  # an entity's id, and its parent's

_NO_PROPERTIES = entity_value(None, None, False, None)
_LONGEST = 100


@dataclass(frozen=True, slots=True)
class Difference:
    """One change. `before` and `after`: what is stored, and what will be stored; None: nothing."""

    item: DeclaredItem
    before: Value | None
    after: Value | None
    value: Value | None = field(repr=False)  # the record
    version: int = field(repr=False)

    @property
    def kind(self) -> Literal["created", "changed", "removed"]:
        if self.before is None:
            return "created"
        return "removed" if self.after is None else "changed"

    def __str__(self) -> str:
        """As a line of text."""
        return _line(self.item, self.before, self.after)

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.item.as_dict(), "before": self.before, "after": self.after}


class Diff(list[Difference]):
    """All changes, in the order in which they are applied; empty if there are none.

    `parents`: of all entities concerned, as they will be. `versions`: of the same entities, as they are.
    `applied`: the version of the record that every apply writes.
    """

    def __init__(
        self,
        differences: Iterable[Difference],
        parents: Parents,
        versions: Mapping[str, int],
        applied: int,
    ) -> None:
        super().__init__(differences)
        self.parents = parents
        self.versions = versions
        self.applied = applied


def diff_plan(engine: Engine, declaration: Declaration, *, prune: bool = False) -> Plan[Diff]:
    """What applying a declaration would change; with `prune` it removes everything that is stored and not declared.

    DocumentError, or ValidationError if it was not read from a file, if it cannot be applied to what is stored.
    """
    if declaration.namespace not in (None, engine.namespace):
        raise _refused(declaration, [(1, f"it is for namespace {declaration.namespace!r}, not {engine.namespace!r}")])
    ids = {entity_id: engine.stored_id(entity_id) for entity_id in _ids(declaration)}
    wanted = dict(_wanted(declaration, ids))
    stored = yield from (read_all_plan(engine) if prune else _read_plan(engine, wanted, ids))
    parents = _parents(wanted, stored, prune)
    _check_parents(declaration, ids, parents, prune)
    if not prune:
        _check_tiers(declaration, wanted, stored)
    differences = [*_changed(wanted, stored, _depths(parents)), *(_removed(wanted, stored) if prune else ())]
    versions = {entity_id: record.version for entity_id, record in _of_entities(stored.records)}
    return Diff(differences, parents, versions, stored.applied)


def _ids(declaration: Declaration) -> Iterator[str]:
    for entity_id, entity in declaration.entities.items():
        yield entity_id
        if entity.parent_id is not None:
            yield entity.parent_id


def _wanted(declaration: Declaration, ids: Ids) -> Iterator[tuple[DeclaredItem, Value]]:
    """The record of each item that is declared."""
    if declaration.system is not None:
        policy = {} if declaration.on_unavailable is None else {"on_unavailable": declaration.on_unavailable}
        yield SYSTEM, _limits_value(declaration.system) | policy
    for resource, limits in declaration.resources.items():
        yield DeclaredItem("limits", resource_level(resource)), _limits_value(limits)
    for entity_id, entity in declaration.entities.items():
        yield entity_item(ids[entity_id]), _entity_value(entity, ids)
        for on, limits in entity.limits.items():
            level = StoredLevel(ids[entity_id], None if on is None else check_resource(on))
            yield DeclaredItem("limits", level), _limits_value(limits)
    if declaration.plans is not None:
        yield TIERS, {"plans": dict(declaration.plans)}
    if declaration.rules is not None:
        yield RULES, {"rules": declaration.rules}


def _limits_value(limits: Limits) -> Value:
    if not limits:
        raise ValidationError("limits must not be empty; to remove stored limits, leave them out and prune")
    return level_value(scheduled(limits) or limits.values(), inherits(limits))


def _entity_value(entity: DeclaredEntity, ids: Ids) -> Value:
    parent_id = None if entity.parent_id is None else ids[entity.parent_id]
    return entity_value(entity.name, parent_id, entity.cascade, dict(entity.metadata))


def _read_plan(engine: Engine, wanted: Wanted, ids: Ids) -> Plan[StoredItems]:
    """What is stored of the declared items, of entities they name as parents, and of rules and plans together."""
    together = [RULES, TIERS] if wanted.keys() & {RULES, TIERS} else []
    return (yield from read_items_plan(engine, dict.fromkeys([*wanted, *map(entity_item, ids.values()), *together])))


# Parents


def _of_entities(items: Mapping[DeclaredItem, T]) -> Iterator[tuple[str, T]]:
    return ((str(item.entity_id), value) for item, value in items.items() if item.kind == "entity")


def _parents(wanted: Wanted, stored: StoredItems, prune: bool) -> Parents:
    """The parent of every entity, once the declaration is applied."""
    found = {} if prune else {item: record.value for item, record in stored.records.items()}
    return {entity_id: value["parent_id"] for entity_id, value in _of_entities({**found, **wanted})}


def _check_parents(declaration: Declaration, ids: Ids, parents: Parents, prune: bool) -> None:
    missing = "is not in the file, and would be removed" if prune else "is neither in the file nor stored"
    wrong = {
        entity_id: f"parent {entity.parent_id!r} of {entity_id!r} {missing}"
        for entity_id, entity in declaration.entities.items()
        if entity.parent_id is not None and ids[entity.parent_id] not in parents
    }
    declared: dict[str, str] = {ids[entity_id]: entity_id for entity_id in declaration.entities}
    wrong |= {declared[stored_id]: why for stored_id, why in wrong_parents(parents) if stored_id in declared}
    if wrong:
        raise _refused(declaration, [(declaration.lines.get(entity_id, 1), why) for entity_id, why in wrong.items()])


# Rules and the plans that go with them


def _check_tiers(declaration: Declaration, wanted: Wanted, stored: StoredItems) -> None:
    """Declared rules must fit the stored plans, and declared plans the stored rules."""
    staying = {RULES, TIERS} - wanted.keys()
    if len(staying) != 1 or not staying <= stored.records.keys():
        return
    (item,) = staying
    found = {**wanted, item: stored.records[item].value}
    try:
        _check_fit(found[RULES]["rules"], found[TIERS]["plans"])
    except (ValidationError, TypeError) as error:
        why = f"the stored {item} would stay, and do not fit: {error}; declare both, or prune"
        raise _refused(declaration, [(1, why)]) from None


def _check_fit(rule_fields: Sequence[Mapping[str, Any]], tiers: Mapping[str, Any]) -> None:
    rules = Rules([Rule(**fields) for fields in rule_fields])
    known = {ANY_RULE, *(rule.id for rule in rules)}
    for name, by_rule in tiers.items():
        for rule_id in by_rule.keys() - known if isinstance(by_rule, Mapping) else ():
            raise ValidationError(f"plan {name!r} is for rule {rule_id!r}, which would not exist")
    Tiers(tiers, {}).check(rules)


def _refused(declaration: Declaration, problems: Sequence[tuple[int, str]]) -> ValidationError:
    if declaration.file is None:
        return ValidationError("; ".join(why for _, why in problems))
    return DocumentError([f"{declaration.file}:{line}: {why}" for line, why in sorted(problems)])


def _depths(parents: Parents) -> dict[str, int]:
    """How many ancestors each entity has: parents are written before their children."""
    depths: dict[str, int] = {}
    for entity_id in parents:
        path = [entity_id]
        while (above := parents.get(path[-1])) is not None and above not in depths and above not in path:
            path.append(above)
        for one in reversed(path):
            parent = parents.get(one)
            depths[one] = depths.get(parent, -1) + 1 if parent else 0
    return depths


# The changes


def _changed(wanted: Wanted, stored: StoredItems, depths: Mapping[str, int]) -> Iterator[Difference]:
    needless = _without_record(wanted)
    for item, value in sorted(wanted.items(), key=lambda pair: depths.get(pair[0].entity_id or "", -1)):
        record = stored.records.get(item)
        if record is None and item in needless:
            continue
        before, after = _described(record.value) if record else None, _described(value)
        if before != after:
            yield Difference(item, before, after, value, record.version if record else ABSENT)


def _without_record(wanted: Wanted) -> set[DeclaredItem]:
    """Entities that need no record: they have limits, but no properties and no children."""
    parents = {value["parent_id"] for _, value in _of_entities(wanted)}
    limited = {item.entity_id for item in wanted if item.kind == "limits" and item.entity_id is not None}
    return {entity_item(one) for one in limited - parents if wanted[entity_item(one)] == _NO_PROPERTIES}


def _removed(wanted: Wanted, stored: StoredItems) -> Iterator[Difference]:
    """An entity's limits before the entity, and children before their parents."""
    doomed = {item: record for item, record in stored.records.items() if item not in wanted}
    depths = _depths({entity_id: record.value["parent_id"] for entity_id, record in _of_entities(doomed)})

    def order(item: DeclaredItem) -> tuple[bool, int, str]:
        return item.kind == "entity", -depths.get(item.entity_id or "", 0), str(item)

    for item in sorted(doomed, key=order):
        yield Difference(item, _described(doomed[item].value), None, None, doomed[item].version)


def _described(value: Value) -> Value:
    return described(value) if "limits" in value else value


# A change as a line of text


def _line(item: DeclaredItem, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    """`+ entity acme: name "Acme"`, `~ limits of acme on llm: rpm 10/minute -> 20/minute`."""
    old, new = _flat(before or {}), _flat(after or {})
    if before is None:
        sign, shown = "+", _listed(new)
    elif after is None:
        sign, shown = "-", _listed(old)
    else:
        sign, shown = "~", list(_compared(old, new))
    return f"{sign} {item}{': ' if shown else ''}{', '.join(shown)}"


def _listed(parts: Mapping[str, str], sign: str = "") -> list[str]:
    return [f"{sign}{name} {text}" for name, text in parts.items()]


def _compared(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name, text in old.items():
        if new.get(name, text) != text:
            yield f"{name} {text} -> {new[name]}"
    yield from _listed({name: text for name, text in new.items() if name not in old}, "+")
    yield from _listed({name: text for name, text in old.items() if name not in new}, "-")


def _flat(value: Mapping[str, Any]) -> dict[str, str]:
    """The parts that are compared one by one: each limit, key of the metadata, rule and plan."""
    flat: dict[str, str] = {}
    for key, item in value.items():
        if item not in (None, False) or key == "inherit":
            flat |= _PARTS[key](item) if key in _PARTS else {key: _json(item)}
    return flat


def _rules(rules: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {rule["id"]: _json({key: item for key, item in rule.items() if key != "id"}) for rule in rules}


_PARTS: dict[str, Callable[[Any], dict[str, str]]] = {
    "limits": dict,
    "schedule": lambda hours: {"hours": hours},
    "parent_id": lambda parent_id: {"parent": parent_id},
    "metadata": lambda metadata: {f"metadata.{key}": _json(item) for key, item in metadata.items()},
    "plans": lambda tiers: {name: _json(tier) for name, tier in tiers.items()},
    "rules": _rules,
}


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
