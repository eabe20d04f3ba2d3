"""Namespaces: a store may have any number of them, and they are independent.

A namespace is registered when something is first taken or stored in it, not when it is read: a mistyped name leaves no
trace. A deleted namespace must not be used, but its data stays, and it can be recovered. Purging a deleted namespace
removes its data, in steps. If a purge is interrupted, the namespace stays marked: it can be purged again, or recovered
with the rest of its data.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any, Literal, TypeAlias

from ...core.errors import NamespaceNotFound, ValidationError, VersionConflict
from ...core.names import check_namespace
from ...core.records import ABSENT, Delete, Page, Put, Record
from ...plan import CountStored, GetRecords, ListRecords, ListStored, Plan, Purge, SingleFlight, WriteRecords
from .. import keys
from ..engine import Engine
from ..observe.audit import Action, audit_event

Status: TypeAlias = Literal["active", "deleted", "purging"]
KEPT_SECONDS = 60.0  # how long a limiter relies on its namespace before it checks again


@dataclass(frozen=True, slots=True)
class Namespace:
    """`status`: only an active namespace can be used. `id`: a new one each time the name is registered."""

    name: str
    id: str
    status: Status
    created_at: datetime
    deleted_at: datetime | None

    def as_dict(self) -> dict[str, Any]:
        deleted_at = self.deleted_at and self.deleted_at.isoformat()
        return {**asdict(self), "created_at": self.created_at.isoformat(), "deleted_at": deleted_at}


def enter_plan(engine: Engine, *, register: bool) -> Plan[None]:
    """Check that the limiter's namespace is not deleted; with `register`, register it if necessary."""
    if register:
        yield from register_namespace_plan(engine, engine.namespace)
    else:
        (record,) = yield from GetRecords([keys.namespace_key(engine.namespace)])
        if record is None:
            return
        _check_active(record)
    engine.entered_until = time.monotonic() + KEPT_SECONDS


def register_plan(engine: Engine) -> Plan[None]:
    """Before the first acquire."""
    if not engine.entered_until:
        yield from SingleFlight("register", partial(enter_plan, engine, register=True))


def register_namespace_plan(engine: Engine, name: str, *, actor: str | None = None) -> Plan[Namespace]:
    """The namespace of a name, created if necessary. Recover or purge a deleted one first."""
    key = keys.namespace_key(check_namespace(name))
    while True:
        (record,) = yield from GetRecords([key])
        if record is not None:
            return _check_active(record)
        value = {"id": secrets.token_urlsafe(8), "status": "active", "created_at_ms": engine.clock.now_ms()}
        try:
            yield from _write_plan(engine, Put(key, {**value, "deleted_at_ms": None}, ABSENT), "registered", actor)
        except VersionConflict:
            continue  # another client registered it


def _check_active(record: Record) -> Namespace:
    namespace = _namespace(record)
    if namespace.status != "active":
        raise NamespaceNotFound(
            f"namespace {namespace.name!r} is deleted: recover_namespace() restores it, purge_namespace() "
            "frees its name"
        )
    return namespace


def get_namespace_plan(engine: Engine, name: str) -> Plan[Namespace]:
    """A namespace by its name, also a deleted one, or NamespaceNotFound."""
    return _namespace((yield from _read_plan(name)))


def list_namespaces_plan(engine: Engine, *, limit: int = 100, cursor: str | None = None) -> Plan[Page[Namespace]]:
    """All namespaces of the store by name, also deleted ones."""
    page = yield from ListRecords(keys.namespaces_prefix(), cursor, limit)
    return Page([_namespace(record) for record in page], page.cursor, page.corrupt)


def delete_namespace_plan(engine: Engine, name: str, *, actor: str | None = None) -> Plan[Namespace]:
    """Delete a namespace: its clients get an error within a minute. Its data stays until it is purged."""
    record = yield from _read_plan(name)
    if record.value["status"] != "active":
        return _namespace(record)
    value = record.value | {"status": "deleted", "deleted_at_ms": engine.clock.now_ms()}
    return (yield from _write_plan(engine, Put(record.key, value, record.version), "deleted", actor))


def recover_namespace_plan(engine: Engine, name: str, *, actor: str | None = None) -> Plan[Namespace]:
    """Restore a deleted namespace with its data."""
    record = yield from _read_plan(name)
    if record.value["status"] == "active":
        return _namespace(record)
    value = record.value | {"status": "active", "deleted_at_ms": None}
    return (yield from _write_plan(engine, Put(record.key, value, record.version), "recovered", actor))


def count_namespace_plan(engine: Engine, name: str) -> Plan[int]:
    """The number of bucket rows and records of a namespace, or of an orphan."""
    if name not in (yield from list_orphans_plan(engine)):
        yield from _read_plan(name)
    return (yield from CountStored(name))


def purge_namespace_plan(engine: Engine, name: str, *, confirm: str, actor: str | None = None) -> Plan[int]:
    """Remove a deleted namespace and its data permanently. Returns how many rows and records that were.

    `confirm`: its name again.
    """
    record = yield from _read_plan(name)
    if record.value["status"] == "active":
        raise ValidationError(f"namespace {name!r} is active: delete it first, then purge it")
    yield from _check_confirmed_plan(name, confirm)
    value = record.value | {"status": "purging"}
    yield from WriteRecords([Put(record.key, value, record.version)])
    removed = 0
    while some := (yield from Purge(name)):
        removed += some
        yield from _check_still_plan(record.key, record.version + 1)
    gone = audit_event(
        engine, "namespace.purged", before=record.value, after={"removed": removed}, actor=actor, namespace=name
    )
    yield from WriteRecords([Delete(record.key, record.version + 1), *gone])
    engine.leave(name)
    return removed


def list_orphans_plan(engine: Engine) -> Plan[list[str]]:
    """Unregistered names that have data, left by clients that wrote while their namespace was purged."""
    stored = yield from ListStored()
    registered: set[str] = set()
    cursor: str | None = None
    while True:
        page = yield from ListRecords(keys.namespaces_prefix(), cursor, even_corrupt=True)
        registered |= {keys.last_part(record.key) for record in page}
        cursor = page.cursor
        if cursor is None:
            return [name for name in stored if name not in registered]


def purge_orphan_plan(engine: Engine, name: str, *, confirm: str, actor: str | None = None) -> Plan[int]:
    """Remove the data of an unregistered name. Returns how many rows and records that were."""
    if name not in (yield from list_orphans_plan(engine)):
        raise NamespaceNotFound(f"{name!r} is not an orphan: list_orphans() lists them")
    yield from _check_confirmed_plan(name, confirm)
    yield from WriteRecords(audit_event(engine, "namespace.purged", actor=actor, namespace=name))
    removed = 0
    while some := (yield from Purge(name)):
        removed += some
    return removed


def _check_confirmed_plan(name: str, confirm: str) -> Plan[None]:
    if confirm != name:
        count = yield from CountStored(name)
        raise ValidationError(f"purging {name!r} removes {count:,} rows and records: confirm must be {name!r}")


def _check_still_plan(key: str, version: int) -> Plan[None]:
    (record,) = yield from GetRecords([key])
    if record is None or record.version != version:
        raise VersionConflict(key)


def _read_plan(name: str) -> Plan[Record]:
    (record,) = yield from GetRecords([keys.namespace_key(check_namespace(name))])
    if record is None:
        raise NamespaceNotFound(f"namespace {name!r} does not exist: register_namespace() creates it")
    return record


def _write_plan(
    engine: Engine, change: Put, what: Literal["registered", "deleted", "recovered"], actor: str | None
) -> Plan[Namespace]:
    name = keys.last_part(change.key)
    actions: Mapping[str, Action] = {
        "registered": "namespace.registered",
        "deleted": "namespace.deleted",
        "recovered": "namespace.recovered",
    }
    event = audit_event(engine, actions[what], after={"status": change.value["status"]}, actor=actor, namespace=name)
    yield from WriteRecords([change, *event])
    if what != "registered":
        engine.leave(name)
    return _namespace(Record(change.key, change.value, (change.expected or ABSENT) + 1))


def _namespace(record: Record) -> Namespace:
    value = record.value
    return Namespace(
        name=keys.last_part(record.key),
        id=value["id"],
        status=value["status"],
        created_at=_moment(value["created_at_ms"]),
        deleted_at=None if value["deleted_at_ms"] is None else _moment(value["deleted_at_ms"]),
    )


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)
