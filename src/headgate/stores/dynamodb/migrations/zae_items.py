"""The items of zae-limiter tables, in all layouts from release 0.1 to 0.17: their keys and attributes.

    what                    PK                           SK                            releases
    entity                  ENTITY#{id}                  #META                         all
    one bucket              ENTITY#{id}                  #BUCKET#{resource}#{limit}    to 0.6
    all buckets             ENTITY#{id}                  #BUCKET#{resource}            0.7 to 0.10.0
    a shard of them         BUCKET#{id}#{resource}#{n}   #STATE                        from 0.10.1
    one limit               ENTITY#{id}                  #LIMIT#{resource}#{limit}     to 0.7
                            RESOURCE#{resource}, SYSTEM# #LIMIT#{limit}                0.6, 0.7
    all limits              ENTITY#{id}                  #CONFIG#{resource}            from 0.8
                            RESOURCE#{resource}, SYSTEM# #CONFIG                       from 0.8
    usage                   ENTITY#{id}                  #USAGE#{resource}#{start}     all
    audit event             AUDIT#{id}                   #AUDIT#{event}                from 0.2
    namespace, by its id    _/SYSTEM#                    #NSID#{id}                    from 0.10

From 0.10 on every PK begins with the id of a namespace and a slash. Before 0.6 the fields are in a map `data`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NamedTuple

from ..exchange import Attributes, Item
from ..keys import DEFAULT as DEFAULT
from ..keys import REGISTRY

# Its schema versions, and the releases that write them.
SCHEMAS = {"1.0.0": "0.1 to 0.6", "0.7.0": "0.7", "0.8.0": "0.8 to 0.10.0", "0.9.0": "0.10.1", "0.10.0": "0.11 to 0.17"}

ENTITIES, LIMITS, BUCKETS, USAGE, AUDIT = "entities", "limits", "buckets", "usage", "audit"
DERIVED = "derived"  # repeats other items, or belongs to a running process: nothing is lost
UNKNOWN = "unknown"

# Kind by PK and SK. Groups of a kind differ in their `owner` and `part`.
_KINDS = [
    (kind, re.compile(pattern))
    for kind, pattern in (
        (ENTITIES, r"ENTITY#(?P<owner>[^#]+)\|#META"),
        (BUCKETS, r"ENTITY#(?P<owner>[^#]+)\|#BUCKET#(?P<part>[^#]+)(#[^#]+)?"),
        (BUCKETS, r"BUCKET#(?P<owner>[^#]+)#(?P<part>[^#]+)#\d+\|#STATE"),
        (LIMITS, r"ENTITY#(?P<owner>[^#]+)\|#LIMIT#(?P<part>[^#]+)#[^#]+"),
        (LIMITS, r"ENTITY#(?P<owner>[^#]+)\|#CONFIG#(?P<part>[^#]+)"),
        (LIMITS, r"RESOURCE#(?P<part>[^#]+)\|#(CONFIG|LIMIT#[^#]+)"),
        (LIMITS, r"SYSTEM#\|#(CONFIG|LIMIT#[^#]+)"),
        (USAGE, r"ENTITY#(?P<owner>[^#]+)\|#USAGE#(?P<part>[^#]+#\d{4}-\d\d-\d\d)T.*"),
        (AUDIT, r"AUDIT#(?P<owner>[^#]+)\|#AUDIT#(?P<part>[^#]+)"),
        (DERIVED, r"SYSTEM#\|#(VERSION|NAMESPACE#.+|NSID#.+|RESOURCES|ENTITY_CONFIG_RESOURCES|PROVISIONER|PENDING.*)"),
        (DERIVED, r"BUCKET#.+\|#OP#.+"),
        (DERIVED, r"ENTITY#.+\|#RESOURCE#.+"),
    )
]
_NAMESPACE = re.compile(r"([^/#]+)/(.*)", re.DOTALL)

# The attributes that an item may have, besides its keys. `*` is the name of a limit.
_OWNER = ("entity_id", "resource", "ttl", "cascade", "parent_id", "pgen", "pinc", "config_version")
_ALLOWED = {
    ENTITIES: ("entity_id", "name", "parent_id", "cascade", "metadata", "created_at", "pgen", "pinc"),
    LIMITS: (
        *(field for field in _OWNER if field != "cascade"),
        *("limit_name", "capacity", "burst", "refill_amount", "refill_period_seconds", "created_at"),
        *("on_unavailable", "audit_retention_days", "l_*_cp", "l_*_bx", "l_*_ra", "l_*_rp"),
    ),
    BUCKETS: (
        *_OWNER,
        *("limit_name", "tokens_milli", "last_refill_ms", "capacity_milli", "burst_milli", "refill_amount_milli"),
        *("refill_period_ms", "total_consumed_milli", "rf", "shard_count", "b_*_tk", "b_*_cp", "b_*_bx", "b_*_ra"),
        # Copies of what is read from the limits.
        *("b_*_rp", "b_*_tc", "vu", "disabled", "bypass", "b_*_soft"),
    ),
}
# Features that headgate has no equivalent of, by the end of the attribute's name.
_FEATURES = {
    **dict.fromkeys(("sched", "tz"), "a schedule"),
    **dict.fromkeys(("rsched", "rsa", "ws", "wa", "wtc", "gc", "rn", "tu"), "a quota"),
    "soft": "a soft limit",
    "disabled": "that it is disabled or bypassed",
    "cascade": "a cascade of its own",
}


class ItemGroup(NamedTuple):
    """Items that become one thing. `ns`: the id of their namespace, "" if they have none."""

    kind: str
    ns: str
    owner: str = ""
    part: str = ""

    def __str__(self) -> str:
        if self.kind == LIMITS and not self.owner:
            return f"limits of resource {self.part!r}" if self.part else "limits of the system"
        names = {
            ENTITIES: f"entity {self.owner!r}",
            LIMITS: f"limits of entity {self.owner!r} on {self.part!r}",
            BUCKETS: f"buckets of entity {self.owner!r} on {self.part!r}",
            USAGE: f"usage of entity {self.owner!r} of {self.part!r}",
            AUDIT: f"audit event {self.part!r} of {self.owner!r}",
        }
        return names.get(self.kind, f"item {self.owner!r} {self.part!r}")

    @property
    def prefix(self) -> str:
        return f"{self.ns}/" if self.ns else ""

    def starts(self) -> list[tuple[str, str]]:
        """PK, and the start of SK, of all items that may belong to it, except shards. Empty: it is one item."""
        pk = f"{self.prefix}ENTITY#{self.owner}"
        match self.kind:
            case "buckets":
                return [(pk, f"#BUCKET#{self.part}"), (self.shard_pk(0), "#STATE")]
            case "usage":
                return [(pk, f"#USAGE#{self.part}")]
            case "limits" if self.owner:
                return [(pk, f"#LIMIT#{self.part}#"), (pk, f"#CONFIG#{self.part}")]
            case "limits":
                pk = f"{self.prefix}RESOURCE#{self.part}" if self.part else f"{self.prefix}SYSTEM#"
                return [(pk, "#LIMIT#"), (pk, "#CONFIG")]
        return []

    def shard_pk(self, shard: int) -> str:
        return f"{self.prefix}BUCKET#{self.owner}#{self.part}#{shard}"


def group_of(item: Item) -> ItemGroup:
    pk, sk = item["PK"]["S"], item["SK"]["S"]
    inside = _NAMESPACE.fullmatch(pk)
    ns, rest = (inside[1], inside[2]) if inside else ("", pk)
    for kind, pattern in _KINDS:
        found = pattern.fullmatch(f"{rest}|{sk}")
        if found:
            named = found.groupdict()
            whole = {"owner": pk, "part": sk} if kind == DERIVED else {}
            return ItemGroup(kind, REGISTRY if kind == DERIVED else ns, **{**named, **whole})
    return ItemGroup(UNKNOWN, ns, pk, sk)


def is_whole(item: Item) -> bool:
    """Whether the other items of its group do not matter, so that they need not be read."""
    sk = item["SK"]["S"]
    if sk == "#STATE":
        return item.get("shard_count", {}).get("N") == "1"
    return sk.startswith("#CONFIG") and any(re.fullmatch("l_.+_cp", name) for name in item)


def fields_of(item: Item) -> dict[str, Any]:
    """All attributes as plain values, without the keys."""
    found = {name: plain(value) for name, value in item.items() if not re.fullmatch(r"([GL]SI\d)?[PS]K", name)}
    return found | (found.pop("data") if "data" in found else {})


def plain(value: Attributes) -> Any:
    ((kind, content),) = value.items()
    match kind:
        case "N":
            number = Decimal(content)
            return int(number) if number == number.to_integral_value() else number
        case "M":
            return {name: plain(one) for name, one in content.items()}
        case "L":
            return [plain(one) for one in content]
        case "NULL":
            return None
    return content


def unsupported(kind: str, fields: Iterable[str]) -> list[str]:
    """Descriptions of the attributes that headgate has no equivalent of."""
    allowed = _ALLOWED.get(kind, ())
    found = {}
    for name in sorted(fields) if allowed else ():
        shape = re.sub(r"^([a-z])_.+_", r"\1_*_", name)
        if shape not in allowed:
            feature = "rsa" if shape.startswith("w_") else shape.rpartition("_")[2]
            found[_FEATURES.get(feature, f"the attribute {name!r}")] = True
    return list(found)
