"""Finding and removing corrupt data of a namespace."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

from ...core.errors import CorruptState, ValidationError
from ...core.names import StoredId, bucket_key
from ...core.records import Change, Delete, Page, Put, Record
from ...plan import DeleteBuckets, GetRecords, ListBuckets, ListRecords, Plan, WriteRecords
from .. import keys
from ..engine import Engine
from ..observe.audit import audit_event, audited_plan
from ..observe.overview import all_buckets_plan
from .edits import write_limits_plan
from .levels import StoredLevel

_PAGE = 1000


def find_corrupt_plan(engine: Engine, *, pages: int | None = None) -> Plan[list[CorruptState]]:
    """All stored data of the namespace that cannot be read: buckets, and records of all kinds.

    `pages`: read at most this many pages of each kind. If the record of the namespace itself is corrupt, repair it
    first: nothing else can be read before.
    """
    (namespace,) = yield from GetRecords([keys.namespace_key(engine.namespace)], even_corrupt=True)
    if namespace is not None and namespace.flaw:
        return [namespace.error]
    found: dict[str, CorruptState] = {}  # a store may list one twice
    records = yield from GetRecords(_single_keys(engine.namespace), even_corrupt=True)
    found |= {record.key: record.error for record in records if record is not None and record.flaw}
    lists: list[Callable[[str | None], Any]] = [
        *(partial(ListRecords, prefix, limit=_PAGE) for prefix in _prefixes(engine.namespace)),
        partial(ListBuckets, engine.namespace, None, None),
    ]
    for read in lists:
        found |= {str(error): error for error in (yield from _listed_plan(read, pages))}
    return list(found.values())


def _listed_plan(read: Callable[[str | None], Any], pages: int | None) -> Plan[list[CorruptState]]:
    found: list[CorruptState] = []
    cursor: str | None = None
    for _ in count() if pages is None else range(pages):
        page: Page[Any] = yield from read(cursor)
        found += page.corrupt
        cursor = page.cursor
        if cursor is None:
            break
    return found


def _single_keys(namespace: str) -> list[str]:
    of = (keys.revision_key, keys.system_limits_key, keys.rules_key, keys.plans_key)
    return [key(namespace) for key in of]


def _prefixes(namespace: str) -> list[str]:
    of = (
        keys.entities_prefix,
        keys.entities_limits_prefix,
        keys.resources_prefix,
        keys.leases_prefix,
        keys.audit_prefix,
    )
    return [prefix(namespace) for prefix in of]


def repair_plan(engine: Engine, found: Iterable[CorruptState], *, actor: str | None = None) -> Plan[list[CorruptState]]:
    """Remove what `find_corrupt()` has found, if it is still corrupt. Returns what was removed.

    Buckets start full again, and their usage counts are lost. A removed record is as if it had never been stored. The
    record of the namespace itself is written again.
    """
    repaired = []
    for error in list(found):
        if not isinstance(error, CorruptState):
            raise ValidationError(f"repair takes the results of find_corrupt(), not {error!r}")
        still = yield from _still_corrupt_plan(engine, error)
        if still is None:
            continue
        if error.record_key:
            yield from _repair_record_plan(engine, still, error, actor)
        else:
            yield from _repair_buckets_plan(engine, error, actor)
        repaired.append(error)
    if repaired:
        engine.cache.clear()
    return repaired


_BUCKETS = Record("", {}, 0, "corrupt")


def _still_corrupt_plan(engine: Engine, error: CorruptState) -> Plan[Record | None]:
    """It may have been repaired or overwritten meanwhile."""
    if error.record_key:
        (record,) = yield from GetRecords([error.record_key], even_corrupt=True)
        return record if record is not None and record.flaw else None
    rows = yield from all_buckets_plan(engine, StoredId(error.entity_id), error.resource)
    return _BUCKETS if rows.corrupt else None


def _repair_buckets_plan(engine: Engine, error: CorruptState, actor: str | None) -> Plan[None]:
    place: dict[str, Any] = {"entity_id": error.entity_id, "resource": error.resource}
    delete = DeleteBuckets([bucket_key(engine.namespace, StoredId(error.entity_id), error.resource)])
    yield from audited_plan(engine, "state.repaired", delete, **place, before={"corrupt": error.why}, actor=actor)


def _repair_record_plan(engine: Engine, record: Record, error: CorruptState, actor: str | None) -> Plan[None]:
    namespace, before = engine.namespace, {"record": record.key, "corrupt": record.flaw}
    if record.key == keys.namespace_key(namespace):
        event = audit_event(engine, "state.repaired", before=before, actor=actor, namespace=namespace)
        yield from WriteRecords([Put(record.key, _namespace_value(engine, record.value)), *event])
        engine.leave(namespace)
        return
    event = audit_event(engine, "state.repaired", before=before, actor=actor)
    if record.key == keys.revision_key(namespace):
        yield from WriteRecords([Put(record.key, {"revision": engine.clock.now_ms()}), *event])
        return
    changes: Sequence[Change] = [Delete(record.key), *event]
    if record.key.startswith(keys.limits_prefix(namespace)):
        yield from write_limits_plan(engine, [], [*changes, *_with_it(namespace, record.key)])
    else:
        yield from WriteRecords(changes)


def _with_it(namespace: str, key: str) -> Iterator[Delete]:
    """The index of entities with limits of their own."""
    index_key = StoredLevel.from_key(namespace, key).index_key(namespace)
    if index_key is not None:
        yield Delete(index_key)


def _namespace_value(engine: Engine, value: dict[str, Any]) -> dict[str, Any]:
    """Active, with its old id if that can be read: some stores keep its data under the id."""
    known = value.get("id")
    return {
        "id": known if isinstance(known, str) and known else secrets.token_urlsafe(8),
        "status": "active",
        "created_at_ms": engine.clock.now_ms(),
        "deleted_at_ms": None,
    }
