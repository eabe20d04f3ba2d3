"""What the values of records have to look like, by their keys (limiter/keys.py has those)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from .calendar import NoCalendar
from .limit import Limit
from .records import Record
from .schedule import Schedule
from .stored import LATEST_MS, MAX_REVISION
from .units import shown

_POLICIES = ("block", "allow", "local", None)
_STATUSES = ("active", "deleted", "purging")


def checked(record: Record) -> Record:
    """The record, with its flaw if it has one."""
    if record.flaw:
        return record
    form = _FORMS.get(record.key.partition("/")[2].partition("#")[0])
    if form is None:
        return record
    try:
        form(record.value)
    except _Wrong as wrong:
        return replace(record, flaw=str(wrong))
    except NoCalendar:
        pass  # the record is sound; using its limits raises the error
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # ValidationError, of a limit, is a ValueError
        missing = isinstance(error, KeyError)
        return replace(record, flaw=f"it lacks {error}" if missing else f"its value cannot be read ({error})")
    return record


class _Wrong(Exception):
    """Says what."""


def _field(value: Mapping[str, Any], name: str, is_sound: Callable[[Any], bool]) -> None:
    found = value[name]
    if not is_sound(found):
        raise _Wrong(f"its {name} is {shown(found)}")


def _is_time(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LATEST_MS


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_limits(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(limit, dict) and Limit.from_dict(limit) for limit in value)


def _entity(value: Mapping[str, Any]) -> None:
    _field(value, "name", _is_text_or_none)
    _field(value, "parent_id", _is_text_or_none)
    _field(value, "cascade", lambda found: isinstance(found, bool))
    _field(value, "metadata", lambda found: isinstance(found, dict))


def _limits(value: Mapping[str, Any]) -> None:
    _field(value, "limits", _is_limits)
    if value.get("schedule") is not None:
        Schedule.from_dict(value["schedule"], [Limit.from_dict(limit) for limit in value["limits"]])
    if value.get("on_unavailable") not in _POLICIES:
        raise _Wrong(f"its on_unavailable is {shown(value['on_unavailable'])}")


def _revision(value: Mapping[str, Any]) -> None:
    _field(value, "revision", lambda found: type(found) is int and 0 <= found <= MAX_REVISION)


def _namespace(value: Mapping[str, Any]) -> None:
    _field(value, "id", _is_text)
    _field(value, "status", lambda found: found in _STATUSES)
    _field(value, "created_at_ms", _is_time)
    _field(value, "deleted_at_ms", lambda found: found is None or _is_time(found))


def _lease(value: Mapping[str, Any]) -> None:
    _field(value, "key", lambda found: isinstance(found, str) and "/" in found and "#" in found)
    _field(value, "slots", lambda found: isinstance(found, bool))
    _field(value, "taken", lambda found: all(_is_taken(*one) for one in found))
    _field(value, "ttl_ms", _is_time)
    for name in ("limits", "limiter_limits"):
        if value.get(name) is not None:
            _field(value, name, _is_limits)


def _is_taken(key: Any, name: Any, milli: Any) -> bool:
    return isinstance(key, str) and isinstance(name, str) and type(milli) is int


def _audit(value: Mapping[str, Any]) -> None:
    _field(value, "at_ms", _is_time)
    for name in ("actor", "action", "namespace"):
        _field(value, name, _is_text)


def _alert(value: Mapping[str, Any]) -> None:
    for name in ("at", "resets_at"):
        _field(value, name, lambda found: datetime.fromisoformat(found).tzinfo is not None)
    for name in ("entity_id", "resource", "limit_name"):
        _field(value, name, _is_text)
    for name in ("threshold", "used", "amount"):
        _field(value, name, lambda found: type(found) in (int, float))
    _field(value, "delivered", lambda found: isinstance(found, bool))


_FORMS: dict[str, Callable[[Mapping[str, Any]], None]] = {
    "entity": _entity,
    "limits": _limits,
    "revision": _revision,
    "namespace": _namespace,
    "lease": _lease,
    "audit": _audit,
    "audited": _audit,
    "alert": _alert,
}
