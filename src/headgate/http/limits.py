"""Limits as they are written in rules and plans, where names may be left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from ..core.errors import ValidationError
from ..core.limit import Limit, by_name
from ..core.schedule import Schedule
from ..core.written import is_schedule, read_schedule

RuleLimits: TypeAlias = "tuple[Limit, ...] | Schedule"

_UNNAMED = "unnamed"
_SEPARATOR = re.compile(r";|,(?!(?:[^;/]|/(?![a-z]))*\bresets\b)")  # not the commas of a cron expression


def read_limits(spec: Any) -> tuple[Limit, ...]:
    """Read `"10/minute burst 20"`, several as `"10/second; 100/minute"` or a list, or `{"rpm": "10/minute"}`.

    A limit may be named, as in `"rpm=10/minute"`. Otherwise it is named after its period: `minute`, or `minute15` for
    `"5/15 minutes"`; slots are named `concurrent`. So two limits over the same period have the same name, and when one
    replaces the other, what was used stays used.
    """
    limits = tuple(by_name(_limits(spec)).values())
    if not limits:
        raise ValidationError(f"limits must be like '10/minute' or ['10/second', '100/minute'], not {spec!r}")
    return limits


def read_rule_limits(spec: Any) -> RuleLimits:
    """What `read_limits` reads, or a schedule: a `Schedule`, or a mapping with `otherwise`, `tz` and `hours`."""
    if isinstance(spec, Schedule):
        return spec
    return read_schedule(spec, read_limits) if is_schedule(spec) else read_limits(spec)


def variants(limits: RuleLimits) -> list[tuple[Limit, ...]]:
    """All limits that may hold, the usual ones first."""
    return limits.variants if isinstance(limits, Schedule) else [limits]


def _limits(spec: Any) -> Iterable[Limit]:
    if isinstance(spec, Limit):
        return [spec]
    if isinstance(spec, str):
        return [_limit(part) for part in _SEPARATOR.split(spec)]
    if isinstance(spec, Mapping):
        return [Limit.parse(name, text) for name, text in spec.items()]
    if isinstance(spec, Iterable) and not isinstance(spec, (bytes, bytearray)):
        return [limit for part in spec for limit in _part(part)]
    return []


def _part(part: Any) -> Iterable[Limit]:
    if not isinstance(part, (str, Limit)):
        raise ValidationError(f"limits must be strings like '10/minute' or Limit objects, not {part!r}")
    return _limits(part)


def _limit(text: str) -> Limit:
    name, named, spec = text.partition("=")
    if named:
        return Limit.parse(name.strip(), spec)
    try:
        limit = Limit.parse(_UNNAMED, text)
    except ValidationError as error:
        raise ValidationError(str(error).replace(f"limit {_UNNAMED!r}", "limit")) from None
    return limit.changed(name=_name(limit))


def _name(limit: Limit) -> str:
    if limit.is_concurrent:
        return "concurrent"
    if limit.calendar is not None:
        return f"quota-{limit.calendar.per or 'cron'}"
    period = str(Limit.from_stored(_UNNAMED, 1, 1, limit.period_ms)).partition("/")[2]
    unit = period.lstrip("0123456789")
    return ("quota-" if limit.is_quota else "") + unit + period.removesuffix(unit)
