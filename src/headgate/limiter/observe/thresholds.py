"""Alerts: the decision that brings the use of a limit over one of its thresholds says so, once.

Decisions are atomic, so exactly one of them crosses a threshold. What is given back may let another one cross it again:
a record in the store remembers until when a threshold is not told of again, which is when the limit is full. The record
and the alert are written together, so of many processes one tells. That happens beside the decision, which it neither
delays nor fails.

Alerts are kept for a week: the dashboard shows them, and the service sends them to its webhook.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.decide import FORCE, TAKE, Answer, Part, Request
from ...core.errors import HeadgateError, VersionConflict
from ...core.names import parse_bucket_key
from ...core.records import ABSENT, Page, Put, Record
from ...core.units import MILLI, from_milli
from ...core.usage import DAY_MS
from ...plan import GetRecords, ListRecords, Plan, WriteRecords
from .. import keys
from .audit import newest_first

if TYPE_CHECKING:
    from ..engine import Engine

log = logging.getLogger("headgate")

KEPT_MS = 7 * DAY_MS
_LAST_MS = int(datetime(9999, 1, 1, tzinfo=timezone.utc).timestamp()) * MILLI


@dataclass(frozen=True, slots=True)
class Alert:
    """The use of a limit has reached a threshold: 0.8 when 80 % are used. `resets_at`: when the limit is full again if
    nothing more is taken. `delivered`: whether a webhook has it."""

    id: str
    at: datetime
    entity_id: str
    resource: str
    limit_name: str
    threshold: float
    used: int | float
    amount: int | float
    resets_at: datetime
    delivered: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "at": self.at.isoformat(), "resets_at": self.resets_at.isoformat()}


class Crossing(NamedTuple):
    key: str  # of the bucket
    part: Part
    threshold_milli: int
    used_milli: int


def crossings(request: Request, answer: Answer) -> Iterator[Crossing]:
    """The thresholds that a request has brought the use of its limits over."""
    if not answer.allowed or request.mode not in (TAKE, FORCE):
        return
    for part, (available_milli, _) in zip(request.parts, answer.levels):
        limit = part.limit
        if limit.alerts_milli:
            used_milli = limit.capacity_milli - available_milli
            before_milli = used_milli - part.amount_milli
            for share in limit.alerts_milli:
                if before_milli * MILLI < share * limit.capacity_milli <= used_milli * MILLI:
                    yield Crossing(request.keys[part.level], part, share, used_milli)


def tell_plan(engine: Engine, crossed: Sequence[Crossing]) -> Plan[None]:
    """Write and tell those that no other process has told of."""
    for crossing in crossed:
        try:
            alert = yield from _write_plan(engine, crossing)
        except HeadgateError as error:
            # Twice is better than not at all.
            log.warning("an alert could not be stored, so it is reported as an event only: %s", error)
            alert = _alert(crossing, engine.clock.now_ms())
        if alert is not None:
            engine.observers.threshold(alert)


def _write_plan(engine: Engine, crossing: Crossing) -> Plan[Alert | None]:
    now_ms = engine.clock.now_ms()
    namespace, entity_id, resource = parse_bucket_key(crossing.key)
    key = keys.threshold_key(namespace, entity_id, resource, crossing.part.limit.name, crossing.threshold_milli)
    (told,) = yield from GetRecords([key], even_corrupt=True)
    if told is not None and not told.flaw and told.value.get("until_ms", 0) > now_ms:
        return None
    alert = _alert(crossing, now_ms)
    until_ms = int(alert.resets_at.timestamp() * MILLI)
    version = ABSENT if told is None else None if told.flaw else told.version
    try:
        yield from WriteRecords(
            [
                Put(key, {"until_ms": until_ms}, version, until_ms + KEPT_MS),
                Put(keys.alert_key(namespace, alert.id), _value(alert), ABSENT, now_ms + KEPT_MS),
            ]
        )
    except VersionConflict:
        return None  # another process tells
    return alert


def _alert(crossing: Crossing, now_ms: int) -> Alert:
    _, entity_id, resource = parse_bucket_key(crossing.key)
    limit = crossing.part.limit
    return Alert(
        id=f"{newest_first(now_ms)}{secrets.token_hex(4)}",
        at=_time(now_ms),
        entity_id=entity_id,
        resource=resource,
        limit_name=limit.name,
        threshold=crossing.threshold_milli / MILLI,
        used=from_milli(crossing.used_milli),
        amount=limit.capacity,
        resets_at=_time(_full_at_ms(crossing, now_ms)),
    )


def _full_at_ms(crossing: Crossing, now_ms: int) -> int:
    """When the limit is full again; of a window from first use, whose end is not known here, at the latest."""
    limit = crossing.part.limit
    if limit.calendar is not None:
        return limit.calendar.window(now_ms).ends_ms
    if limit.refill_milli > 0:
        return now_ms - -crossing.used_milli * limit.period_ms // limit.refill_milli
    return now_ms + limit.period_ms


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(min(ms, _LAST_MS) / MILLI, timezone.utc)


def _value(alert: Alert) -> dict[str, Any]:
    return {name: value for name, value in alert.as_dict().items() if name != "id"}


def list_alerts_plan(engine: Engine, *, limit: int = 100, cursor: str | None = None) -> Plan[Page[Alert]]:
    """Which limits were used up to a threshold in the last week, the newest first."""
    page = yield from ListRecords(keys.alerts_prefix(engine.namespace), cursor, limit)
    return Page([_read(record) for record in page], page.cursor, page.corrupt)


def _read(record: Record) -> Alert:
    value = dict(record.value)
    value["at"], value["resets_at"] = (datetime.fromisoformat(value[name]) for name in ("at", "resets_at"))
    return Alert(keys.last_part(record.key), **value)


def delivered_plan(engine: Engine, alert: Alert) -> Plan[None]:
    """Note that a webhook has it."""
    (record,) = yield from GetRecords([keys.alert_key(engine.namespace, alert.id)])
    if record is not None and not record.value.get("delivered"):
        expires_at_ms = int(alert.at.timestamp() * MILLI) + KEPT_MS
        value = record.value | {"delivered": True}
        try:
            yield from WriteRecords([Put(record.key, value, record.version, expires_at_ms)])
        except VersionConflict:
            pass  # another process has noted it
