"""Reading what the aggregator has counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Any, NamedTuple

from ..core.errors import ValidationError
from ..core.names import check_entity_id, check_resource
from ..core.units import from_milli
from ..plan import Plan
from ..stores.dynamodb import keys
from ..stores.dynamodb.deliver import Deliverer
from ..stores.dynamodb.exchange import Failed, Item, Send
from ..stores.dynamodb.items import attribute, value_of
from .aggregator.usage_items import USED
from .aggregator.windows import check_window, count_windows, is_moment, read_start, start_text, window_start


class Usage(NamedTuple):
    """Tokens consumed in one window, by limit, net of what was given back."""

    window_start: datetime
    consumed: Mapping[str, int | float]
    events: int


@dataclass(frozen=True)
class Summary:
    """Of one limit over a range. `average` is per window, those without any use included; `peak` is the largest one."""

    total: int | float
    average: float
    peak: int | float
    peak_start: datetime

    def as_dict(self) -> dict[str, Any]:
        return {
            "total": self.total,
            "average": self.average,
            "peak": self.peak,
            "peak_start": self.peak_start.isoformat(),
        }


def usage_plan(
    deliverer: Deliverer, ns: str, entity_id: str, resource: str, window: str, start: datetime, end: datetime
) -> Plan[list[Usage]]:
    """The windows from the one `start` is in to the last that begins before `end`, oldest first.

    `window` is hour, day or month. Windows without use are left out. `ns` is the namespace's id.
    """
    check_entity_id(entity_id)
    check_resource(resource)
    first, after = _range(window, start, end)
    last = window_start(window, after - 1)
    parameters: dict[str, Any] = {
        "TableName": deliverer.table,
        "KeyConditionExpression": "PK = :pk AND SK BETWEEN :first AND :last",
        "ExpressionAttributeValues": {
            ":pk": attribute(keys.pk_entity(ns, entity_id)),
            ":first": attribute(keys.sk_usage(resource, window, start_text(first))),
            ":last": attribute(keys.sk_usage(resource, window, start_text(last))),
        },
    }
    found: list[Usage] = []
    while True:
        reply = yield from deliverer.one_plan(Send("Query", parameters, repeatable=True))
        assert not isinstance(reply, Failed)  # a query has no condition
        found += [_usage(item) for item in reply["Items"]]
        if "LastEvaluatedKey" not in reply:
            return found
        parameters["ExclusiveStartKey"] = reply["LastEvaluatedKey"]


def summarize(usage: Iterable[Usage], window: str, start: datetime, end: datetime) -> dict[str, Summary]:
    """Of each limit, over the range that the usage was read for."""
    windows = count_windows(window, *_range(window, start, end))
    totals: dict[str, Fraction] = {}
    peaks: dict[str, tuple[int | float, datetime]] = {}
    for found in usage:
        for limit, consumed in found.consumed.items():
            totals[limit] = totals.get(limit, Fraction(0)) + _milli(consumed)
            if limit not in peaks or consumed > peaks[limit][0]:
                peaks[limit] = consumed, found.window_start
    return {
        limit: Summary(from_milli(int(total)), float(total / 1000 / windows), *peaks[limit])
        for limit, total in totals.items()
    }


def _milli(tokens: int | float) -> Fraction:
    return Fraction(str(tokens)) * 1000


def _range(window: str, start: datetime, end: datetime) -> tuple[int, int]:
    """The beginning of the first window, and the end, in seconds."""
    check_window(window)
    for what, moment in (("start", start), ("end", end)):
        if not isinstance(moment, datetime) or moment.tzinfo is None:
            raise ValidationError(f"{what} must be a datetime with a time zone, not {moment!r}")
    first, after = window_start(window, int(start.timestamp())), _rounded_up(end)
    if not (is_moment(first) and is_moment(after) and start < end):
        raise ValidationError(f"the range from {start} to {end} holds no time: start must be before end, from 1970 on")
    return first, after


def _rounded_up(moment: datetime) -> int:
    return -int(-moment.timestamp() // 1)


def _usage(item: Item) -> Usage:
    consumed = {name[len(USED) :]: from_milli(value_of(item[name])) for name in sorted(item) if name.startswith(USED)}
    return Usage(read_start(item["window_start"]["S"]), consumed, value_of(item["total_events"]))
