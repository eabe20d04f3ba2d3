"""Items of the older layout, and what they are in this one.

    what                   PK                  SK
    entity                 ENTITY#{id}         #META
    one bucket             ENTITY#{id}         #BUCKET#{resource}#{limit}
    one limit              ENTITY#{id}         #LIMIT#{resource}#{limit}    (its default: resource _default_)
    limit of a resource    RESOURCE#{resource} #LIMIT#{limit}
    limit of the system    SYSTEM#             #LIMIT#{limit}, and #CONFIG: on_unavailable
    usage                  ENTITY#{id}         #USAGE#{resource}#{start}
    audit event            AUDIT#{id}          #AUDIT#{event}
    names of resources     SYSTEM#             #RESOURCES                   (the indexes say it now)

Fields are in a map `data`, or, later, in the item itself. A bucket has millitokens as of `last_refill_ms`, of at most
`burst_milli`: what is called capacity here is the burst there, and capacity there is no more than another word for the
refill. Which window a usage item is of says its `window`; those at midnight may have counted hours and days together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from ....core.errors import ValidationError
from ....core.limit import Limit
from ....core.names import check_entity_id, check_limit_name, check_resource
from ....core.units import MILLI
from .. import keys
from ..attributes import item_of
from ..documents import EntityHome, EntityLimitsHome, LimitsHome
from ..exchange import Attributes, Item
from ..forms import MARGIN_SECONDS, Place
from ..rows import PREFIX, written_limit

WINDOWS = {"hourly": "hour", "daily": "day", "monthly": "month"}
_USAGE = ("entity_id", "resource", "window", "window_start", "total_events", "ttl")  # all other numbers are of limits


class Group(NamedTuple):
    """Items that become one. `begins`: how their sort keys begin, if there may be several of them."""

    kind: str
    pk: str
    sk: str
    begins: tuple[str, ...] = ()

    @property
    def several(self) -> bool:
        return bool(self.begins)


def group_of(pk: str, sk: str) -> Group:
    kind = pk.partition("#")[0]
    what, _, rest = sk[1:].partition("#")
    match kind, what:
        case "ENTITY", "META":
            return Group("entities", pk, sk)
        case "ENTITY", "BUCKET" | "LIMIT":
            begin = f"#{what}#{rest.partition('#')[0]}#"
            return Group("buckets" if what == "BUCKET" else "limits", pk, begin, (begin,))
        case "RESOURCE", "LIMIT":
            return Group("limits", pk, "#LIMIT#", ("#LIMIT#",))
        case "SYSTEM", "LIMIT" | "CONFIG":
            return Group("limits", pk, "#LIMIT#", ("#LIMIT#", "#CONFIG"))
        case "ENTITY", "USAGE":
            return Group("usage", pk, sk)
        case "AUDIT", "AUDIT":
            return Group("audit", pk, sk)
        case "SYSTEM", "RESOURCES":
            return Group("resources", pk, sk)
    return Group("unknown", pk, sk)


def convert(group: Group, items: Sequence[Item], ns: str, now_ms: int) -> list[dict[str, Attributes]]:
    """The new items. An error if the old ones cannot be read, or are not allowed any more."""
    found = [_fields(item) for item in items]
    owner = group.pk.partition("#")[2]
    match group.kind:
        case "entities":
            return [_entity(check_entity_id(owner), found[0], ns)]
        case "buckets":
            return _buckets(Place(ns, check_entity_id(owner), _resource(group), 0), found, now_ms)
        case "limits":
            return [_limits(group, owner, found, ns)]
        case "usage":
            return [_usage(check_entity_id(owner), found[0], ns)]
        case "audit":
            return [_audit(owner, group.sk, found[0], ns)]
        case "resources":
            return []
    raise ValidationError("no item of the older layout has such a key")


def _fields(item: Item) -> dict[str, Any]:
    values = {name: _plain(value) for name, value in item.items() if name != "data"}
    return values | (_plain(item["data"]) if "data" in item else {})


def _plain(value: Attributes) -> Any:
    ((kind, content),) = value.items()
    match kind:
        case "N":
            number = Decimal(content)
            return int(number) if number == number.to_integral_value() else number
        case "M":
            return {name: _plain(one) for name, one in content.items()}
        case "L":
            return [_plain(one) for one in content]
        case "NULL":
            return None
    return content


def _json(value: Any) -> str:
    return json.dumps(value, default=float)


def _resource(group: Group) -> str:
    return check_resource(group.sk.split("#")[2])


def _entity(entity_id: str, fields: Mapping[str, Any], ns: str) -> dict[str, Attributes]:
    parent_id = fields.get("parent_id")
    value = {
        "name": fields.get("name"),
        "parent_id": None if parent_id is None else check_entity_id(parent_id, "parent_id"),
        "cascade": bool(fields.get("cascade", False)),
        "metadata": json.loads(_json(fields.get("metadata") or {})),
    }
    return EntityHome("", ns, entity_id).item(value, 1)


def _limits(group: Group, owner: str, found: Sequence[Mapping[str, Any]], ns: str) -> dict[str, Attributes]:
    limits = [
        Limit(
            fields["limit_name"],
            fields.get("burst", fields["capacity"]),
            fields["refill_amount"],
            fields["refill_period_seconds"],
        )
        for fields in found
        if "limit_name" in fields
    ]
    value: dict[str, Any] = {"limits": [limit.as_dict() for limit in limits]}
    home: LimitsHome
    if group.pk.startswith("ENTITY#"):
        resource = group.sk.split("#")[2]
        resource = "" if resource == keys.DEFAULT else check_resource(resource)
        home = EntityLimitsHome("", ns, check_entity_id(owner), resource)
    elif owner:
        home = LimitsHome("", ns, check_resource(owner))
    else:
        home = LimitsHome("", ns)
        policies = [fields["on_unavailable"] for fields in found if fields.get("on_unavailable")]
        value |= {"on_unavailable": policies[0]} if policies else {}
    return home.item(value, 1)


def _buckets(place: Place, found: Sequence[Mapping[str, Any]], now_ms: int) -> list[dict[str, Attributes]]:
    """One item, or none if all are full: nothing needs to be remembered of full buckets.

    What was counted as consumed stays behind: it has been counted already.
    """
    item: dict[str, str | int] = {"shard_count": 1, "at": now_ms, "wcu": 0}
    full_at_ms = 0
    for fields in found:
        capacity_milli = fields.get("burst_milli", fields["capacity_milli"])
        limit = Limit(
            fields["limit_name"],
            Decimal(capacity_milli) / MILLI,
            Decimal(fields["refill_amount_milli"]) / MILLI,
            Decimal(fields["refill_period_ms"]) / MILLI,
        )
        missing = max(0, limit.capacity_milli - fields["tokens_milli"]) * limit.period_ms
        full_v = fields["last_refill_ms"] * limit.refill_milli + missing
        full_at_ms = max(full_at_ms, -(-full_v // limit.refill_milli))
        name = f"{PREFIX}{limit.name}"
        item |= {f"{name}_lm": written_limit(limit), f"{name}_vt": full_v, f"{name}_tc": 0}
    if full_at_ms <= now_ms:
        return []
    item["ttl"] = -(-full_at_ms // 1000) + MARGIN_SECONDS
    return [{**place.key, **place.fixed(), **item_of(item)}]


def _usage(entity_id: str, fields: Mapping[str, Any], ns: str) -> dict[str, Attributes]:
    resource, start = check_resource(fields["resource"]), fields["window_start"]
    datetime.strptime(start, "%Y-%m-%dT%H:%M:%SZ")
    window = WINDOWS[fields["window"]]
    pk = keys.pk_entity(ns, entity_id)
    consumed = {
        f"u_{check_limit_name(name)}": number * MILLI
        for name, number in fields.items()
        if name not in _USAGE and isinstance(number, (int, Decimal))
    }
    return item_of(
        {
            "PK": pk,
            "SK": keys.sk_usage(resource, window, start),
            "entity_id": entity_id,
            "resource": resource,
            "window": window,
            "window_start": start,
            "total_events": fields.get("total_events", 0),
            "ttl": fields.get("ttl"),
            **consumed,
            "GSI2PK": keys.gsi2_pk(ns, resource),
            "GSI2SK": keys.gsi2_sk_usage(window, start, entity_id),
            "GSI4PK": ns,
            "GSI4SK": pk,
        }
    )


def _audit(owner: str, sk: str, fields: Mapping[str, Any], ns: str) -> dict[str, Attributes]:
    """Everything it says, flat; what is not a plain value as JSON."""
    pk = keys.pk_audit(ns, owner)
    told = {
        name: value if isinstance(value, (str, int, Decimal)) else _json(value)
        for name, value in fields.items()
        if value is not None and not name.startswith(("PK", "SK", "GSI"))
    }
    return item_of({**told, "PK": pk, "SK": sk, "GSI4PK": ns, "GSI4SK": pk})
