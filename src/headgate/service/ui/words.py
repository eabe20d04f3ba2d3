"""Formatting of numbers, times and changes on the pages."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from ...core.errors import EntityExists, EntityNotFound, HeadgateError, RateLimiterUnavailable, VersionConflict
from ...core.limit import Limit
from ...limiter import ResolvedLimits

DONE = {
    "limits": "The limits are stored. They apply here at once, and in other processes within a minute.",
    "limits-deleted": "The limits are deleted.",
    "created": "The entity is created.",
    "updated": "The entity is updated.",
    "deleted": "The entity is deleted.",
    "reset": "The buckets and quotas are full, and all slots are free.",
    "penalized": "The penalty is in effect.",
    "registered": "The namespace is registered.",
    "namespace-deleted": "The namespace is deleted. It can be recovered until it is purged.",
    "recovered": "The namespace is recovered.",
    "purged": "The namespace and all its contents are removed.",
}
_BRIEF = 40
_DIGITS = re.compile(r"(?<![\w.-])\d{4,15}(?![\w.-])")
SOURCES = {
    "entity": "its own",
    "entity_default": "its own default",
    "resource": "from the resource",
    "system": "from the system",
    "limiter": "from the program",
    None: "from the caller",
}


def number(value: int | float) -> str:
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return f"{int(value):,}"


def grouped(value: Any) -> str:
    """A limit with its large numbers in groups of digits. Not for forms, where it would be typed."""
    return _DIGITS.sub(lambda found: f"{int(found[0]):,}", str(value))


def rate(value: float) -> str:
    """With a sensible number of digits."""
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def duration(seconds: float) -> str:
    """Rounded up, in the two largest units."""
    if seconds < 60:
        return f"{math.ceil(seconds * 10) / 10:g} s"
    whole = math.ceil(seconds)
    parts = [(whole // 86_400, "d"), (whole // 3_600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next(index for index, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def ago(moment: datetime) -> str:
    seconds = (datetime.now(timezone.utc) - moment).total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return "just now"


def when(moment: datetime) -> str:
    return f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def words_of(error: HeadgateError) -> str:
    """The library's message, unless it names a function, a key or the address of the store."""
    if isinstance(error, EntityNotFound):
        return f"entity {error.entity_id} does not exist{error.why and f' ({error.why})'}"
    if isinstance(error, EntityExists):
        return f"entity {error.entity_id} exists already"
    if isinstance(error, VersionConflict):
        return "it has changed in the meantime: check it, and repeat your change"
    if isinstance(error, RateLimiterUnavailable):
        return "the store does not answer at the moment: try again later"
    return str(error)


def brief(value: Any) -> str:
    """A JSON value, shortened."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _BRIEF else f"{text[: _BRIEF - 1]}\N{HORIZONTAL ELLIPSIS}"


class LimitChange(NamedTuple):
    """`kind`: added, removed, changed or same. `was_from`, `is_from`: its level before and after."""

    name: str
    before: str
    after: str
    kind: str
    words: str
    was_from: str | None = None
    is_from: str | None = None


def limit_changes(before: Iterable[Limit], after: Iterable[Limit]) -> list[LimitChange]:
    """The present limits in their order, then the new ones."""
    old, new = ({limit.name: limit for limit in limits} for limits in (before, after))
    found = []
    for name in dict.fromkeys([*old, *new]):
        was, will = old.get(name), new.get(name)
        found.append(LimitChange(name, str(was or ""), str(will or ""), *_difference(was, will)))
    return found


def effective_changes(before: ResolvedLimits, after: ResolvedLimits) -> list[LimitChange]:
    """The changes of the limits that apply, with their levels."""
    return [
        change._replace(was_from=before.sources.get(change.name), is_from=after.sources.get(change.name))
        for change in limit_changes(before.limits, after.limits)
    ]


def _difference(was: Limit | None, will: Limit | None) -> tuple[str, str]:
    """The kind of a change, and its size."""
    if was is None:
        return "added", ""
    if will is None:
        return "removed", ""
    return ("same", "") if was == will else ("changed", _how_much(was, will))


def _how_much(was: Limit, will: Limit) -> str:
    if _kind(was) != _kind(will):
        return f"now {_kind(will)}: starts full"
    capacity, period = (was.capacity_milli, will.capacity_milli), (was.period_ms, will.period_ms)
    others: dict[str, tuple[Any, Any]] = {"alerts": (was.alerts_milli, will.alerts_milli)}
    if was.is_concurrent:
        parts: dict[str, tuple[float, float]] = {"slots": capacity, "ttl": period}
    elif was.is_quota:
        parts = {"amount": capacity}
        others = {"window": ((was.calendar, was.period_ms), (will.calendar, will.period_ms)), **others}
    else:
        rates = (was.refill_milli / was.period_ms, will.refill_milli / will.period_ms)
        parts = {"rate": rates, "burst": capacity}
    found = [f"{what} {_percent(*both)}" for what, both in parts.items() if both[0] != both[1]]
    return ", ".join(found + [f"other {what}" for what, (before, after) in others.items() if before != after])


def _kind(limit: Limit) -> str:
    return "slots" if limit.is_concurrent else "a quota" if limit.is_quota else "a bucket"


def _percent(before: float, after: float) -> str:
    return f"{(after - before) / before:+,.0%}".replace("-", "\N{MINUS SIGN}")


class LineChange(NamedTuple):
    """`kind`: added, removed or same."""

    text: str
    kind: str


def line_changes(before: Sequence[str], after: Sequence[str]) -> list[LineChange]:
    """The changes of lines whose order matters."""
    found = []
    for _, old, to_old, new, to_new in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if before[old:to_old] == after[new:to_new]:
            found += [LineChange(line, "same") for line in before[old:to_old]]
        else:
            found += [LineChange(line, "removed") for line in before[old:to_old]]
            found += [LineChange(line, "added") for line in after[new:to_new]]
    return found


class FieldChange(NamedTuple):
    name: str
    before: str
    after: str


def field_changes(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[FieldChange]:
    """The changes of an audit event, field by field; limits by name."""
    old, new = _flat(before), _flat(after)
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    return [FieldChange(name, old.get(name, ""), new.get(name, "")) for name in names]


def _flat(value: Mapping[str, Any] | None, before: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, inner in (value or {}).items():
        if isinstance(inner, Mapping) and inner:
            found |= _flat(inner, "" if name == "limits" else f"{before}{name} ")
        elif inner not in (None, {}, [], ""):
            found[f"{before}{name}".strip() or "default"] = inner if isinstance(inner, str) else json.dumps(inner)
    return found
