"""Audit: who changed what, and when. An event is written with the change that it describes, all or nothing.

A reset or a penalty cannot be written together with its event. There the event is written first, so that there is no
change without an event. If the change then fails, the event is removed; if the outcome is unknown, the event says
`confirmed: false`.
"""

from __future__ import annotations

import getpass
import logging
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ...core.errors import RateLimiterUnavailable, ValidationError
from ...core.names import REGISTRY
from ...core.records import Change, Delete, Page, Put, Record
from ...core.text import readable
from ...plan import ListRecords, Plan, WriteRecords
from .. import keys

if TYPE_CHECKING:
    from ..engine import Engine

log = logging.getLogger("headgate")

Action: TypeAlias = Literal[
    "buckets.penalized",
    "buckets.reset",
    "entity.created",
    "entity.deleted",
    "entity.updated",
    "limits.deleted",
    "limits.set",
    "namespace.deleted",
    "namespace.purged",
    "namespace.recovered",
    "namespace.registered",
    "plans.deleted",
    "plans.set",
    "resource_defaults.deleted",
    "resource_defaults.set",
    "rules.deleted",
    "rules.set",
    "state.repaired",
    "system_defaults.deleted",
    "system_defaults.set",
]
_LAST_MS = 10**15
_MOST_TOLD = 10**9  # by one process, which counts them: events of one millisecond are in order
_told = count()


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """A change. `before` and `after`: what it was about, None if there was, or is, nothing."""

    id: str
    at: datetime
    actor: str
    action: Action
    namespace: str
    entity_id: str | None
    resource: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "at": self.at.isoformat()}


def os_user() -> str:
    try:
        return check_actor(getpass.getuser())
    except (KeyError, OSError, ValidationError):  # a container may have no name for its user, or an odd one
        return "unknown"


def check_actor(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 256 or not value.isprintable():
        raise ValidationError(f"actor must be 1 to 256 printable characters, not {value!r}")
    return value


def newest_first(at_ms: int) -> str:
    """How an id begins, so that of the records that are listed in order the newest is the first."""
    order = _MOST_TOLD - 1 - next(_told) % _MOST_TOLD
    return f"{_LAST_MS - at_ms:015d}{order:09d}"


def audit_event(
    engine: Engine,
    action: Action,
    *,
    entity_id: str | None = None,
    resource: str | None = None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    actor: str | None = None,
    namespace: str | None = None,
) -> list[Put]:
    """The records of an event. Of an entity there are two, so that it can be found by both.

    `namespace`: of an event about a namespace itself, which outlives it.
    """
    by = engine.actor if actor is None else check_actor(actor)
    if not engine.audit_ms:
        return []
    at_ms = engine.clock.now_ms()
    value = {
        "at_ms": at_ms,
        "actor": by,
        "action": action,
        "namespace": namespace or engine.namespace,
        "entity_id": entity_id,
        "resource": resource,
        "before": before,
        "after": after,
    }
    event_id = f"{newest_first(at_ms)}{secrets.token_hex(4)}"
    kept_in = engine.namespace if namespace is None else REGISTRY
    places = [keys.audit_key(kept_in, event_id)]
    if entity_id is not None:
        places.append(keys.audited_key(kept_in, entity_id, event_id))
    return [Put(place, value, expires_at_ms=at_ms + engine.audit_ms) for place in places]


def audited_plan(
    engine: Engine,
    action: Action,
    do: Iterable[Any],
    *,
    entity_id: str,
    resource: str,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    actor: str | None = None,
) -> Plan[None]:
    """Make a change that is not one of records, with its event: neither is there without the other."""
    event = audit_event(engine, action, entity_id=entity_id, resource=resource, before=before, after=after, actor=actor)
    if event:
        yield from WriteRecords(event)
    try:
        yield from do
    except GeneratorExit:
        raise
    except BaseException as error:
        if event:
            yield from _correct_plan(event, in_doubt=isinstance(error, RateLimiterUnavailable))
        raise


def _correct_plan(event: Sequence[Put], *, in_doubt: bool) -> Plan[None]:
    changes: list[Change] = []
    for put in event:
        doubtful = put.value | {"after": {**(put.value["after"] or {}), "confirmed": False}}
        changes.append(replace(put, value=doubtful) if in_doubt else Delete(put.key))
    try:
        yield from WriteRecords(changes)
    except RateLimiterUnavailable as away:
        log.warning("the audit trail has an event that may not have happened, and it cannot be corrected: %s", away)


def get_audit_events_plan(
    engine: Engine, entity_id: str | None = None, *, limit: int = 100, cursor: str | None = None
) -> Plan[Page[AuditEvent]]:
    """Who changed what, the newest first: of an entity, or of everything in the namespace."""
    prefix = keys.audit_prefix(engine.namespace)
    if entity_id is not None:
        prefix = keys.audited_prefix(engine.namespace, engine.stored_id(entity_id))
    return (yield from _list_plan(prefix, limit, cursor))


def get_namespace_events_plan(engine: Engine, *, limit: int = 100, cursor: str | None = None) -> Plan[Page[AuditEvent]]:
    """Who registered, deleted, recovered and purged namespaces of the store, the newest first."""
    return (yield from _list_plan(keys.audit_prefix(REGISTRY), limit, cursor))


def _list_plan(prefix: str, limit: int, cursor: str | None) -> Plan[Page[AuditEvent]]:
    page = yield from ListRecords(prefix, cursor, limit)
    return Page([_event(record) for record in page], page.cursor, page.corrupt)


def _event(record: Record) -> AuditEvent:
    value = readable(record.value)
    at = datetime.fromtimestamp(value.pop("at_ms") / 1000, timezone.utc)
    return AuditEvent(keys.last_part(record.key), at, **value)
