"""Events: what happens, said to the standard log and to a callback, as a name and fields.

Acquires are told only to those who listen: a callback, or a log that is open for DEBUG.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ...core.errors import ValidationError

log = logging.getLogger("headgate")

EventName: TypeAlias = Literal[
    "acquire.granted",
    "acquire.refused",
    "acquire.waited",
    "lease.lost",
    "penalized",
    "reconcile.done",
    "rule.bad_cost",
    "rule.misconfigured",
    "shadow.refused",
    "store.down",
    "store.up",
]
_LEVELS: dict[str, int] = {
    "lease.lost": logging.WARNING,
    "penalized": logging.INFO,
    "reconcile.done": logging.INFO,
    "rule.bad_cost": logging.WARNING,
    "rule.misconfigured": logging.ERROR,
    "shadow.refused": logging.INFO,
    "store.down": logging.WARNING,
    "store.up": logging.WARNING,
}


@dataclass(frozen=True, slots=True)
class Event:
    name: EventName
    fields: dict[str, Any]

    def __str__(self) -> str:
        return " ".join((self.name, *(f"{name}={value!r}" for name, value in self.fields.items())))


class Events:
    def __init__(self, on_event: Callable[[Event], object] | None) -> None:
        if on_event is not None and not callable(on_event):
            raise ValidationError(f"on_event must be a function that takes an Event, not {on_event!r}")
        self._on_event = on_event

    def watched(self) -> bool:
        """Whether anybody wants to know of every acquire."""
        return self._on_event is not None or log.isEnabledFor(logging.DEBUG)

    def tell(self, name: EventName, **fields: Any) -> None:
        event = Event(name, fields)
        level = _LEVELS.get(name, logging.DEBUG)
        if log.isEnabledFor(level):
            log.log(level, "%s", event, extra={"event": name, "fields": fields})
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                log.exception("on_event failed on %s", name)  # whoever acquires has nothing to do with it
