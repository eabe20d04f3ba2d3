"""What would change if a declaration were applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ..core.errors import ValidationError
from ..core.names import check_resource
from ..core.records import ABSENT
from ..files import DocumentError
from ..http.rules import Rule, Rules
from ..http.tiers import ANY_RULE, Plans
from ..limiter.config.edits import described, entity_level
from ..limiter.config.entities import entity_value
from ..limiter.config.levels import level_value
from ..limiter.engine import Engine
from ..plan import Plan
from .declaration import Declaration, DeclaredEntity, Limits, Place, inherits
from .diff_format import told_line
from .reading import wrong_parents
from .stored import Stored, read_all_plan, read_places_plan

Value: TypeAlias = "dict[str, Any]"
Parents: TypeAlias = "Mapping[str, str | None]"  # an entity's id, and its parent's

_NOTHING_SAID = entity_value(None, None, False, None)
_RULES, _PLANS = Place("rules"), Place("plans")


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that there is to do. `before` and `after`: what is stored there, and what it will be; None: nothing."""

    place: Place
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
        """The line that people read."""
        return told_line(self.place, self.before, self.after)

    def as_dict(self) -> dict[str, Any]:
        place = {"what": self.place.kind, "entity_id": self.place.entity_id or None, "resource": self.place.resource}
        return {"kind": self.kind, **place, "before": self.before, "after": self.after}


class Diff(list[Difference]):
    """All there is to do, in the order in which it is done: nothing if it is empty.

    `parents` and `versions`: of all entities that it has to do with, as they will be, and as they are.
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
    """What applying a declaration would change; with `prune` it removes whatever is stored and not declared.

    DocumentError, or ValidationError if it was not read from a file, if it cannot be applied to what is stored.
    """
    if declaration.namespace not in (None, engine.namespace):
        raise _refused(declaration, [(1, f"it is for namespace {declaration.namespace!r}, not {engine.namespace!r}")])
    ids = {entity_id: _stored_id(engine, entity_id) for entity_id in _ids(declaration)}
    wanted = dict(_wanted(declaration, ids))
    if prune:
        stored = yield from read_all_plan(engine)
    else:
        above = [Place("entity", stored_id) for stored_id in ids.values()]
        together = [_RULES, _PLANS] if wanted.keys() & {_RULES, _PLANS} else []
        stored = yield from read_places_plan(engine, dict.fromkeys([*wanted, *above, *together]))
    kept = {place.entity_id for place in wanted} if prune else None
    parents = _parents(wanted, stored, kept)
    _check_parents(declaration, ids, parents, prune)
    if not prune:
        _check_plans(declaration, wanted, stored)
    differences = [*_changed(wanted, stored, _top_down(parents)), *(_removed(wanted, stored) if prune else ())]
    versions = {place.entity_id: record.version for place, record in stored.records.items() if place.kind == "entity"}
    return Diff(differences, parents, versions, stored.applied)


def _stored_id(engine: Engine, entity_id: str) -> str:
    return str(entity_level(engine, entity_id, None).entity_id)


def _ids(declaration: Declaration) -> Iterator[str]:
    for entity_id, entity in declaration.entities.items():
        yield entity_id
        if entity.parent_id is not None:
            yield entity.parent_id


def _wanted(declaration: Declaration, ids: Mapping[str, str]) -> Iterator[tuple[Place, Value]]:
    """The record at each place that something is declared of."""
    if declaration.system is not None:
        policy = {} if declaration.on_unavailable is None else {"on_unavailable": declaration.on_unavailable}
        yield Place("system"), _limits_value(declaration.system) | policy
    for resource, limits in declaration.resources.items():
        yield Place("resource", resource=check_resource(resource)), _limits_value(limits)
    for entity_id, entity in declaration.entities.items():
        yield Place("entity", ids[entity_id]), _entity_value(entity, ids)
        for on, limits in entity.limits.items():
            place = Place("limits", ids[entity_id], None if on is None else check_resource(on))
            yield place, _limits_value(limits)
    if declaration.plans is not None:
        yield Place("plans"), {"plans": dict(declaration.plans)}
    if declaration.rules is not None:
        yield Place("rules"), {"rules": declaration.rules}


def _limits_value(limits: Limits) -> Value:
    if not limits:
        raise ValidationError("limits must not be empty; to remove stored limits, leave them out and prune")
    return level_value(limits.values(), inherits(limits))


def _entity_value(entity: DeclaredEntity, ids: Mapping[str, str]) -> Value:
    parent_id: Any = None if entity.parent_id is None else ids[entity.parent_id]
    return entity_value(entity.name, parent_id, entity.cascade, dict(entity.metadata))


# Parents


def _parents(wanted: Mapping[Place, Value], stored: Stored, kept: set[str] | None) -> Parents:
    """Who will be below whom."""
    found = {place: record.value for place, record in stored.records.items()} | dict(wanted)
    return {
        place.entity_id: value["parent_id"]
        for place, value in found.items()
        if place.kind == "entity" and (kept is None or place.entity_id in kept)
    }


def _check_parents(declaration: Declaration, ids: Mapping[str, str], parents: Parents, prune: bool) -> None:
    missing = "is not in the file, and would be removed" if prune else "is neither in the file nor stored"
    wrong = {
        entity_id: f"parent {entity.parent_id!r} of {entity_id!r} {missing}"
        for entity_id, entity in declaration.entities.items()
        if entity.parent_id is not None and ids[entity.parent_id] not in parents
    }
    declared = {ids[entity_id]: entity_id for entity_id in declaration.entities}
    wrong |= {declared[stored_id]: why for stored_id, why in wrong_parents(parents) if stored_id in declared}
    if wrong:
        raise _refused(declaration, [(declaration.lines.get(entity_id, 1), why) for entity_id, why in wrong.items()])


def _check_plans(declaration: Declaration, wanted: Mapping[Place, Value], stored: Stored) -> None:
    """Rules that are declared go with plans that stay in the store, and the other way round."""
    staying = {_RULES, _PLANS} - wanted.keys()
    if len(staying) != 1 or not staying <= stored.records.keys():
        return
    found = {place: wanted[place] if place in wanted else stored.records[place].value for place in (_RULES, _PLANS)}
    plans = found[_PLANS]["plans"]
    try:
        rules = Rules([Rule(**fields) for fields in found[_RULES]["rules"]])
        known = {ANY_RULE, *(rule.id for rule in rules)}
        for name, by_rule in plans.items():
            for rule_id in by_rule.keys() - known if isinstance(by_rule, Mapping) else ():
                raise ValidationError(f"plan {name!r} is for a rule {rule_id!r}, which there would not be")
        Plans(plans, {}).check(rules)
    except (ValidationError, TypeError) as error:
        (place,) = staying
        why = f"the stored {place} would stay, and not go with it: {error}; declare both, or prune"
        raise _refused(declaration, [(1, why)]) from None


def _refused(declaration: Declaration, problems: Sequence[tuple[int, str]]) -> ValidationError:
    if declaration.file is None:
        return ValidationError("; ".join(why for _, why in problems))
    return DocumentError([f"{declaration.file}:{line}: {why}" for line, why in sorted(problems)])


def _top_down(parents: Parents) -> dict[str, int]:
    """Entities by how many are above each: nobody is moved below one that is still to be moved."""
    depths: dict[str, int] = {}
    for entity_id in parents:
        path = [entity_id]
        while (above := parents.get(path[-1])) is not None and above not in depths and above not in path:
            path.append(above)
        for one in reversed(path):
            parent = parents.get(one)
            depths[one] = depths.get(parent, -1) + 1 if parent else 0
    return depths


# What there is to do


def _changed(wanted: Mapping[Place, Value], stored: Stored, depths: Mapping[str, int]) -> Iterator[Difference]:
    needless = _without_record(wanted)
    for place, value in sorted(wanted.items(), key=lambda item: depths.get(item[0].entity_id, -1)):
        record = stored.records.get(place)
        if record is None and place in needless:
            continue
        before, after = _described(record.value) if record else None, _described(value)
        if before != after:
            yield Difference(place, before, after, value, record.version if record else ABSENT)


def _without_record(wanted: Mapping[Place, Value]) -> set[Place]:
    """Limits need no entity: those who have nothing else, and nobody below them."""
    parents = {value["parent_id"] for place, value in wanted.items() if place.kind == "entity"}
    limited = {place.entity_id for place in wanted if place.kind == "limits"}
    return {Place("entity", one) for one in limited - parents if wanted[Place("entity", one)] == _NOTHING_SAID}


def _removed(wanted: Mapping[Place, Value], stored: Stored) -> Iterator[Difference]:
    """The limits of an entity before itself, and whoever is below before those above."""
    doomed = {place: record for place, record in stored.records.items() if place not in wanted}
    depths = _top_down({place.entity_id: r.value["parent_id"] for place, r in doomed.items() if place.kind == "entity"})

    def order(place: Place) -> tuple[bool, int, str]:
        return place.kind == "entity", -depths.get(place.entity_id, 0), str(place)

    for place in sorted(doomed, key=order):
        yield Difference(place, _described(doomed[place].value), None, None, doomed[place].version)


def _described(value: Value) -> Value:
    return described(value) if "limits" in value else value
