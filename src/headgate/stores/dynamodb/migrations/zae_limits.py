"""The limits of zae-limiter, in headgate.

A limit's ceiling is called burst before release 0.10, where `capacity` is but another word for the refill; later it is
called capacity, as here. The most specific level that has limits is the only one that counts, in both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from ....core.limit import Limit
from ....core.names import check_entity_id, check_resource
from ....core.units import MILLI
from ..attributes import attribute
from ..documents import EntityLimitsHome, LimitsHome
from .writes import Context, NewItem
from .zae_items import DEFAULT, Group

# How attributes with the numbers of a limit end, and what they were called when a limit was an item of its own.
_CONFIG = {"cp": "capacity", "bx": "burst", "ra": "refill_amount", "rp": "refill_period_seconds"}
_BUCKET = {"cp": "capacity_milli", "bx": "burst_milli", "ra": "refill_amount_milli", "rp": "refill_period_ms"}


def limits_writes(group: Group, found: Sequence[Mapping[str, Any]], context: Context) -> list[NewItem]:
    value: dict[str, Any] = {"limits": [limit.as_dict() for limit in _limits(found)]}
    for fields in found:
        value |= {"on_unavailable": fields["on_unavailable"]} if fields.get("on_unavailable") else {}
    if value == {"limits": []}:
        return []
    # No other level counts beside this one.
    alone = {"inherit": attribute(False)} if value["limits"] else {}
    return [NewItem({**_home(group, context.ns).item(value, 1), **alone})]


def _limits(found: Sequence[Mapping[str, Any]]) -> list[Limit]:
    """Of the newest layout there is: what an upgrade of zae-limiter has left behind is not read by it either."""
    together = [configured(name, fields) for fields in found for name in names_in(fields, "l", "cp")]
    return together or [configured(None, fields) for fields in found if "limit_name" in fields]


def _home(group: Group, ns: str) -> LimitsHome:
    resource = "" if group.part in ("", DEFAULT) else check_resource(group.part)
    if group.owner:
        return EntityLimitsHome("", ns, check_entity_id(group.owner), resource)
    return LimitsHome("", ns, resource or None)


def names_in(fields: Mapping[str, Any], prefix: str, suffix: str) -> list[str]:
    """The limits that an item with all of them has."""
    return [name[2 : -len(suffix) - 1] for name in fields if re.fullmatch(f"{prefix}_.+_{suffix}", name)]


def configured(name: str | None, fields: Mapping[str, Any]) -> Limit:
    """A limit as it is configured. Without a name, of an item of its own."""
    return _limit(name, {each: fields.get(f"l_{name}_{each}" if name else _CONFIG[each]) for each in _CONFIG}, fields)


def of_bucket(name: str | None, fields: Mapping[str, Any]) -> Limit:
    """A limit as a bucket has it: in thousandths."""
    milli = {each: fields.get(f"b_{name}_{each}" if name else _BUCKET[each]) for each in _BUCKET}
    return _limit(name, {each: None if n is None else Decimal(n) / MILLI for each, n in milli.items()}, fields)


def _limit(name: str | None, numbers: Mapping[str, Any], fields: Mapping[str, Any]) -> Limit:
    capacity = numbers["cp"] if numbers["bx"] is None else numbers["bx"]
    return Limit(name or fields["limit_name"], capacity, numbers["ra"], numbers["rp"])
