"""Reading a zae-limiter table: its namespaces, and its items in groups, page by page."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from ....plan import Plan
from .. import keys
from ..deliver import Deliverer
from ..exchange import Item, MoreTime
from ..items import ItemKey, item_key_of, key_of, page_plan, query, query_plan, read_items_plan
from ..namespaces import ACTIVE
from .writes import moment_ms
from .zae_items import BUCKETS, ENTITIES, ItemGroup, fields_of, group_of, is_whole

_SYSTEM = keys.pk_system(keys.REGISTRY)
_DEFAULT = "default"
DELETED = "deleted"


class Renamed(NamedTuple):
    """A namespace, and its new id; "" if it is left out."""

    name: str
    id: str
    status: str = ACTIVE
    created_at_ms: int = 0
    deleted_at_ms: int | None = None


class Piece(NamedTuple):
    """A group. `on_page`: its items on this page; `items`: all of them."""

    group: ItemGroup
    on_page: list[Item]
    items: list[Item]


Page: TypeAlias = "tuple[list[Piece], ItemKey | None]"  # and where the next one starts


class ZaeTable:
    def __init__(self, deliver: Deliverer) -> None:
        self._deliver = deliver

    def namespaces_plan(self, namespace: str, now_ms: int) -> Plan[tuple[dict[str, Renamed], list[str]]]:
        """The namespaces by their ids in this table, and notes about them.

        A table from before release 0.10 has none: all of it goes to `namespace`.
        """
        items = yield from self._query_plan(_SYSTEM, "#N")
        records = [fields_of(item) for item in items if "namespace_name" in item]
        found, notes = _chosen(records)
        if found and _DEFAULT not in {each.name for each in found.values()}:
            found[_DEFAULT] = Renamed(_DEFAULT, secrets.token_urlsafe(8), created_at_ms=now_ms)
        return found or {"": Renamed(namespace, secrets.token_urlsafe(8), created_at_ms=now_ms)}, notes

    def page_plan(self, start: ItemKey | None, size: int, ours: frozenset[str]) -> Plan[Page]:
        """The groups with items on a page. `ours`: ids of namespaces to skip."""
        scan = {"Limit": size, "ConsistentRead": True}
        yield from MoreTime()
        reply, after = yield from page_plan(self._deliver, scan, start and key_of(start), "Scan")
        pieces = []
        for group, on_page in _grouped(reply["Items"], ours).items():
            whole = [item for item in on_page if is_whole(item)]
            pieces.append(Piece(group, on_page, whole or (yield from self._all_plan(group)) or on_page))
        return pieces, item_key_of(after) if after else None

    def parents_plan(self, pieces: Iterable[Piece]) -> Plan[dict[tuple[str, str], Mapping[str, Any]]]:
        """The stored parents of entities, by namespace and id."""
        wanted: dict[ItemKey, tuple[str, str]] = {}
        for piece in pieces:
            parent_id = fields_of(piece.items[0]).get("parent_id") if piece.group.kind == ENTITIES else None
            if parent_id is not None:
                wanted[f"{piece.group.prefix}ENTITY#{parent_id}", keys.META] = piece.group.ns, parent_id
        yield from MoreTime()
        found = yield from read_items_plan(self._deliver, wanted)
        return {wanted[each]: fields_of(item) for each, item in found.items()}

    def _all_plan(self, group: ItemGroup) -> Plan[list[Item]]:
        found: list[Item] = []
        for pk, sk in group.starts():
            found += yield from self._query_plan(pk, sk)
        if group.kind == BUCKETS:
            count = max((fields_of(item).get("shard_count", 1) for item in found), default=1)
            for shard in range(1, count):
                found += yield from self._query_plan(group.shard_pk(shard), keys.STATE)
        return [item for item in found if group_of(item) == group]

    def _query_plan(self, pk: str, sk: str) -> Plan[list[Item]]:
        return query_plan(self._deliver, query(pk, sk), more_time=True)


def _grouped(items: Iterable[Item], ours: frozenset[str]) -> dict[ItemGroup, list[Item]]:
    groups: dict[ItemGroup, list[Item]] = {}
    for item in items:
        pk, sk = item_key_of(item)
        if pk.partition("/")[0] not in ours and not sk.startswith(keys.sk_migration_prefix()):
            groups.setdefault(group_of(item), []).append(item)
    return groups


def _chosen(records: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Renamed], list[str]]:
    """The namespaces in use, then the deleted ones whose names are free."""
    found: dict[str, Renamed] = {}
    notes = []
    for fields in sorted(records, key=lambda fields: bool(fields.get("status") != ACTIVE)):
        ns, renamed = fields["namespace_id"], _renamed(fields)
        if ns in found:
            continue
        taken = {each.name for each in found.values() if each.id}
        if renamed.status not in (ACTIVE, DELETED) or renamed.name in taken:
            notes.append(f"namespace {renamed.name!r} with the id {ns!r} is {renamed.status}, and is left out")
            renamed = renamed._replace(id="")
        found[ns] = renamed
    return found, notes


def _renamed(fields: Mapping[str, Any]) -> Renamed:
    name, status = fields["namespace_name"], fields.get("status", ACTIVE)
    moments = [fields.get("created_at"), fields.get("deleted_at") if status == DELETED else None]
    created_at_ms, deleted_at_ms = (moment_ms(moment) if moment else None for moment in moments)
    return Renamed(name, secrets.token_urlsafe(8), status, created_at_ms or 0, deleted_at_ms)
