"""The limits, the buckets and the usage of zae-limiter, in headgate.

The ceiling of a limit is called burst before release 0.10, where `capacity` is another word for the refill; later it
is called capacity, as here. In both, the most specific level that has limits is the only one that counts.

A bucket has millitokens as of its last refill. What was missing from its ceiling then, less what has been refilled
since, is missing now, to the fraction of a millitoken. A shard has its share of the ceiling and of the refill, rounded
down, and its own time of the last refill. A shard with more than its share was the whole bucket and has not been cut
since it was split: it counts against the whole ceiling. A shard that was never used is full.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from ....core.limit import Limit
from ....core.names import check_entity_id, check_limit_name, check_resource
from ....core.units import MILLI
from ....core.usage import DAY_MS, HOUR_MS
from .. import keys
from ..conditional_writes import time_to_live
from ..items import item_of
from ..places import ItemPlace
from ..record_items import RecordItem
from ..record_kinds import ENTITY_LIMITS, RESOURCE_LIMITS, SYSTEM_LIMITS
from ..rows import PREFIX, used_name, written_limit
from ..usage import MOVES
from .writes import Addition, Context, NewItem, moment_ms
from .zae_items import DEFAULT, ItemGroup

# How attributes with the numbers of a limit end, and their names when a limit was an item of its own.
_CONFIG = {"cp": "capacity", "bx": "burst", "ra": "refill_amount", "rp": "refill_period_seconds"}
_BUCKET = {"cp": "capacity_milli", "bx": "burst_milli", "ra": "refill_amount_milli", "rp": "refill_period_ms"}


def limits_writes(group: ItemGroup, found: Sequence[Mapping[str, Any]], context: Context) -> list[NewItem]:
    value: dict[str, Any] = {"limits": [limit.as_dict() for limit in _limits(found)]}
    for fields in found:
        value |= {"on_unavailable": fields["on_unavailable"]} if fields.get("on_unavailable") else {}
    if value == {"limits": []}:
        return []
    if value["limits"]:
        value["inherit"] = False  # in zae-limiter no other level counts beside this one
    return [NewItem(_limits_item(group, context.ns).item(value, 1))]


def _limits(found: Sequence[Mapping[str, Any]]) -> list[Limit]:
    """Of the newest layout in the item: zae-limiter does not read what its upgrades left behind either."""
    together = [configured(name, fields) for fields in found for name in names_in(fields, "l", "cp")]
    return together or [configured(None, fields) for fields in found if "limit_name" in fields]


def _limits_item(group: ItemGroup, ns: str) -> RecordItem:
    resource = "" if group.part in ("", DEFAULT) else check_resource(group.part)
    if group.owner:
        return RecordItem.of(ENTITY_LIMITS, ns, entity_id=check_entity_id(group.owner), resource=resource)
    return RecordItem.of(RESOURCE_LIMITS, ns, resource=resource) if resource else RecordItem.of(SYSTEM_LIMITS, ns)


def names_in(fields: Mapping[str, Any], prefix: str, suffix: str) -> list[str]:
    """The names of the limits in an item with all of them."""
    return [name[2 : -len(suffix) - 1] for name in fields if re.fullmatch(f"{prefix}_.+_{suffix}", name)]


def configured(name: str | None, fields: Mapping[str, Any]) -> Limit:
    """A configured limit. Without a name, from an item of its own."""
    return _limit(name, {each: fields.get(f"l_{name}_{each}" if name else _CONFIG[each]) for each in _CONFIG}, fields)


def of_bucket(name: str | None, fields: Mapping[str, Any]) -> Limit:
    """The limit of a bucket, in thousandths."""
    milli = {each: fields.get(f"b_{name}_{each}" if name else _BUCKET[each]) for each in _BUCKET}
    return _limit(name, {each: None if n is None else Decimal(n) / MILLI for each, n in milli.items()}, fields)


def _limit(name: str | None, numbers: Mapping[str, Any], fields: Mapping[str, Any]) -> Limit:
    capacity = numbers["cp"] if numbers["bx"] is None else numbers["bx"]
    return Limit(name or fields["limit_name"], capacity, numbers["ra"], numbers["rp"])


KEPT_MS = 90 * DAY_MS  # how long headgate keeps usage, and zae-limiter did, by default
_RESERVED = "wcu"  # zae-limiter counts its own writes with it
_COUNTED = ("entity_id", "resource", "window", "window_start", "total_events", "ttl")


class _Shard(NamedTuple):
    limit: Limit
    tokens_milli: int
    at_ms: int
    shards: int = 1

    def missing(self, now_ms: int) -> int:
        """What it lacks of its share at this time; in millitokens times the period, as in items of buckets."""
        limit = self.limit
        share = limit.capacity_milli // self.shards
        ceiling = share if self.tokens_milli <= share else limit.capacity_milli
        refilled = (now_ms - self.at_ms) * (limit.refill_milli // self.shards)
        return max(0, (ceiling - self.tokens_milli) * limit.period_ms - refilled)


def bucket_writes(group: ItemGroup, found: Sequence[Mapping[str, Any]], context: Context) -> list[Addition]:
    """Full buckets need no item. The total that zae-limiter counted as consumed is not migrated."""
    now_ms = context.now_ms
    buckets: dict[str, list[_Shard]] = {}
    for shard in _shards(found):
        buckets.setdefault(shard.limit.name, []).append(shard)
    said: dict[str, str | int] = {"shard_count": 1, "at": now_ms, _RESERVED: 0}
    full_in_ms = 0
    for name, shards in buckets.items():
        limit = shards[0].limit  # zae-limiter uses the limit of the first shard
        lack = sum(-(-shard.missing(now_ms) * limit.period_ms // shard.limit.period_ms) for shard in shards)
        if not lack:
            continue
        full_in_ms = max(full_in_ms, -(-lack // limit.refill_milli))
        spelled: dict[str, str | int] = {"lm": written_limit(limit), "vt": now_ms * limit.refill_milli + lack, "tc": 0}
        said |= {f"{PREFIX}{name}_{suffix}": value for suffix, value in spelled.items()}
    said["ttl"] = time_to_live(None, max(full_in_ms, KEPT_MS))
    place = ItemPlace(context.ns, check_entity_id(group.owner), check_resource(group.part), 0)
    item = {**place.key, **place.fixed(), **item_of(said)}
    return [Addition(item, absent=_RESERVED)] if full_in_ms else []


def _shards(found: Sequence[Mapping[str, Any]]) -> Iterator[_Shard]:
    """Of the newest layout in the item: zae-limiter does not read what its upgrades left behind either."""
    sharded = [fields for fields in found if "shard_count" in fields]
    together = sharded or [fields for fields in found if "rf" in fields]
    for fields in together:
        yield from _of_all_limits(fields, set() if not sharded else {_RESERVED})
    for fields in () if together else found:
        yield _Shard(of_bucket(None, fields), fields["tokens_milli"], fields["last_refill_ms"])


def _of_all_limits(fields: Mapping[str, Any], but: set[str]) -> Iterator[_Shard]:
    for name in sorted(set(names_in(fields, "b", "tk")) - but):
        shards = fields.get("shard_count", 1)
        yield _Shard(of_bucket(name, fields), fields[f"b_{name}_tk"], fields["rf"], shards)


def usage_writes(group: ItemGroup, found: Sequence[Mapping[str, Any]], context: Context) -> list[NewItem | Addition]:
    """The hours of a day except the first: zae-limiter adds that hour, its day and its month under one key."""
    resource, day = group.part.split("#")
    start_ms = moment_ms(f"{day}T00:00:00Z")
    used = {
        used_name(check_limit_name(name), moment_ms(fields["window_start"]) // HOUR_MS): int(amount * MILLI)
        for fields in found
        if fields["window"] == "hourly" and moment_ms(fields["window_start"]) != start_ms
        for name, amount in fields.items()
        if name not in _COUNTED and "#" not in name
    }
    left_ms = start_ms + DAY_MS + KEPT_MS - context.now_ms
    if not used or left_ms <= 0:
        return []
    place = ItemPlace(context.ns, check_entity_id(group.owner), check_resource(resource), 0)
    hours: dict[str, str | int] = {
        "PK": keys.pk_hours(place.ns, place.entity_id),
        "SK": keys.sk_hours(resource, day),
        "entity_id": place.entity_id,
        "resource": resource,
        "ttl": time_to_live(None, left_ms),
        "GSI4PK": place.ns,
        "GSI4SK": keys.gsi4_sk_hours(place.ns, place.entity_id),
    }
    # The item of the buckets shows that there is usage, even if all buckets are full.
    marker = item_of({"shard_count": 1, MOVES: 1, "ttl": time_to_live(None, KEPT_MS)})
    return [NewItem(item_of({**hours, **used})), Addition({**place.key, **place.fixed(), **marker})]
