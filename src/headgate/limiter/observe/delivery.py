"""Which process delivers the alerts of a namespace: one at a time, by a record with the time until which it may."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from ...core.errors import VersionConflict
from ...core.records import ABSENT, Delete, Put, Record
from ...plan import GetRecords, Plan, WriteRecords
from .. import keys
from ..engine import Engine

HOLD_MS = 20_000
_RENEW_MS = HOLD_MS // 2
_KEPT_MS = 60_000

Turn: TypeAlias = Literal["mine", "others", "done"]


def turn_plan(engine: Engine, holder: str, alert_id: str) -> Plan[Turn]:
    """Whether `holder` is to deliver an alert, another process does, or it is delivered (or gone).

    "mine" holds for at least half of HOLD_MS.
    """
    place = keys.delivery_key(engine.namespace)
    alert, held = yield from GetRecords([keys.alert_key(engine.namespace, alert_id), place], even_corrupt=True)
    if alert is None or alert.flaw or alert.value["delivered"]:
        return "done"
    now_ms = engine.clock.now_ms()
    left_ms = _until_ms(held) - now_ms
    if held is not None and held.value.get("holder") == holder:
        if left_ms > _RENEW_MS:
            return "mine"
    elif 0 < left_ms <= HOLD_MS:  # longer: by a clock that is wrong
        return "others"
    until_ms = now_ms + HOLD_MS
    version = ABSENT if held is None else None if held.flaw else held.version
    try:
        value = {"holder": holder, "until_ms": until_ms}
        yield from WriteRecords([Put(place, value, version, until_ms + _KEPT_MS)])
    except VersionConflict:
        return "others"
    return "mine"


def leave_plan(engine: Engine, holder: str) -> Plan[None]:
    """Let another process deliver at once."""
    place = keys.delivery_key(engine.namespace)
    (held,) = yield from GetRecords([place], even_corrupt=True)
    if held is not None and held.value.get("holder") == holder:
        try:
            yield from WriteRecords([Delete(place, held.version)])
        except VersionConflict:
            pass  # it has changed hands


def _until_ms(held: Record | None) -> int:
    until_ms: Any = 0 if held is None else held.value.get("until_ms")
    return until_ms if type(until_ms) is int else 0
