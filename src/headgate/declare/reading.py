"""Reading a file of limits. A file with mistakes is rejected as a whole, with a list of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from os import PathLike
from typing import Any

from ..core.limit import Limit
from ..core.names import check_entity_id, check_namespace, check_resource
from ..core.written import is_schedule
from ..files import MAX_BYTES, Node, read_document
from ..files.schedule import read_schedule
from ..http.rules_file import read_rules
from ..limiter.acquire.options import check_on_unavailable
from ..limiter.config.entities import entity_value
from ..limiter.config.limits import MAX_ANCESTORS
from .declaration import Declaration, DeclaredEntity, DeclaredLimits, Limits

_MOST_BYTES = 16 * MAX_BYTES
_SECTIONS = ("namespace", "system", "resources", "entities", "plans", "rules")
_LEVEL = ("limits", "inherit")
_ENTITY = ("name", "parent", "cascade", "metadata", *_LEVEL, "resources")


def read_limits_file(path: str | PathLike[str], to_id: Callable[[Any], str] = check_entity_id) -> Declaration:
    """Read a `.yaml` or `.toml` file of limits, or raise DocumentError with all its mistakes.

    `to_id` checks an entity's id, and returns the id to use.
    """
    root = read_document(path, _MOST_BYTES)
    found = root.fields(_SECTIONS)
    system = found["system"].fields((*_LEVEL, "on_unavailable"), ["limits"]) if "system" in found else {}
    entities, lines = _read_entities(found["entities"], to_id) if "entities" in found else ({}, {})
    read_rules(found)
    declaration = Declaration(
        namespace=found["namespace"].read(check_namespace) if "namespace" in found else None,
        system=_read_limits(system),
        on_unavailable=system["on_unavailable"].read(check_on_unavailable) if "on_unavailable" in system else None,
        resources=_read_resources(found["resources"]) if "resources" in found else {},
        entities=entities,
        plans=found["plans"].plain() if "plans" in found else None,
        rules=found["rules"].plain() if "rules" in found else None,
        file=root.document.file,
        lines=lines,
    )
    root.document.check()
    return declaration


def _read_limits(fields: Mapping[str, Node]) -> Limits | None:
    if "limits" not in fields:
        if "inherit" in fields:
            fields["inherit"].wrong("inherit needs limits: add some, or leave it out")
        return None
    node = fields["limits"]
    inherit = fields["inherit"].flag() is not False if "inherit" in fields else True
    if is_schedule(node.plain()):
        schedule = read_schedule(node, _read_named)
        usual = {} if schedule is None else {limit.name: limit for limit in schedule.otherwise}
        return DeclaredLimits(usual, inherit=inherit, schedule=schedule)
    return DeclaredLimits({limit.name: limit for limit in _read_named(node) or ()}, inherit=inherit)


def _read_named(node: Node) -> list[Limit] | None:
    """None if something is wrong with them, which is recorded."""
    entries = node.entries()
    if node.value == {}:
        node.wrong("limits must not be empty: add one like rpm: 100/minute, or leave them out")
    limits = [entry.read(partial(Limit.parse, name)) for name, entry in entries.items()]
    named = [limit for limit in limits if limit is not None]
    return named if named and len(named) == len(limits) else None


def _read_resources(node: Node) -> dict[str, Limits]:
    resources: dict[str, Limits] = {}
    for name, entry in node.entries().items():
        entry.attempt(check_resource, name)
        resources[name] = _read_limits(entry.fields(_LEVEL, ["limits"])) or {}
    return resources


def _read_entities(node: Node, to_id: Callable[[Any], str]) -> tuple[dict[str, DeclaredEntity], dict[str, int]]:
    entities: dict[str, DeclaredEntity] = {}
    nodes: dict[str, Node] = {}  # the node of its parent, or else its own
    for name, entry in node.entries().items():
        entity_id = entry.attempt(to_id, name)
        fields = entry.fields(_ENTITY)
        entity = _read_entity(fields, to_id)
        if entity_id is not None:
            entities[entity_id] = entity
            nodes[entity_id] = fields.get("parent", entry)
    parents = {entity_id: entity.parent_id for entity_id, entity in entities.items()}
    for entity_id, why in wrong_parents(parents):
        nodes[entity_id].wrong(why)
    return entities, {entity_id: entry.line for entity_id, entry in nodes.items()}


def _read_entity(fields: Mapping[str, Node], to_id: Callable[[Any], str]) -> DeclaredEntity:
    limits: dict[str | None, Limits] = {}
    default = _read_limits(fields)
    if default is not None:
        limits[None] = default
    if "resources" in fields:
        limits.update(_read_resources(fields["resources"]))
    return DeclaredEntity(
        name=fields["name"].read(_check_name) if "name" in fields else None,
        parent_id=fields["parent"].read(to_id) if "parent" in fields else None,
        cascade=fields["cascade"].flag() or False if "cascade" in fields else False,
        metadata=fields["metadata"].read(_check_metadata) or {} if "metadata" in fields else {},
        limits=limits,
    )


def _check_name(name: Any) -> Any:
    return entity_value(name, None, False, None)["name"]


def _check_metadata(metadata: Any) -> Any:
    return entity_value(None, None, False, metadata)["metadata"]


def wrong_parents(parents: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """The entities whose chain of known parents has a cycle, or is too long, and why."""
    for entity_id in parents:
        path = [entity_id]
        while (above := parents.get(path[-1])) is not None and len(path) <= MAX_ANCESTORS + 1:
            path.append(above)
            if above == entity_id:
                yield entity_id, f"parent {path[1]!r} of {entity_id!r} makes a cycle: {' -> '.join(path)}"
                break
        else:
            if len(path) > MAX_ANCESTORS + 1 and len(set(path)) == len(path):
                yield entity_id, f"parent {path[1]!r} gives {entity_id!r} more than {MAX_ANCESTORS} ancestors"
