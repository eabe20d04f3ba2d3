"""The buckets and the usage of zae-limiter, in headgate.

A bucket has millitokens as of the moment it was last refilled at: what is missing from its ceiling then, less what has
been refilled since, is missing now, to the fraction of a millitoken.

A shard has its share of the ceiling and of the refill, rounded down, and its own moment. One that has more than its
share was the whole bucket and has not been cut down since it was split: it is held against the whole ceiling. One that
was never used is full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ....core.limit import Limit
from ....core.names import check_entity_id, check_limit_name, check_resource
from ....core.units import MILLI
from ....core.usage import DAY_MS, HOUR_MS
from .. import keys
from ..attributes import item_of
from ..conditional_writes import Place, time_to_live
from ..rows import PREFIX, used_name, written_limit
from ..usage_counters import MOVES
from .writes import Addition, Context, NewItem, moment_ms
from .zae_items import Group
from .zae_limits import names_in, of_bucket

KEPT_MS = 90 * DAY_MS  # how long headgate keeps usage, and zae-limiter did, unless told otherwise
_RESERVED = "wcu"  # what zae-limiter counts its own writes with
_COUNTED = ("entity_id", "resource", "window", "window_start", "total_events", "ttl")


class _Shard(NamedTuple):
    limit: Limit
    tokens_milli: int
    at_ms: int
    shards: int = 1

    def missing(self, now_ms: int) -> int:
        """Of its share, at a moment; in millitokens times the period, as the items of buckets have it."""
        limit = self.limit
        share = limit.capacity_milli // self.shards
        ceiling = share if self.tokens_milli <= share else limit.capacity_milli
        refilled = (now_ms - self.at_ms) * (limit.refill_milli // self.shards)
        return max(0, (ceiling - self.tokens_milli) * limit.period_ms - refilled)


def bucket_writes(group: Group, found: Sequence[Mapping[str, Any]], context: Context) -> list[Addition]:
    """Nothing needs to be remembered of buckets that are full. What was counted as consumed stays behind."""
    now_ms = context.now_ms
    buckets: dict[str, list[_Shard]] = {}
    for shard in _shards(found):
        buckets.setdefault(shard.limit.name, []).append(shard)
    said: dict[str, str | int] = {"shard_count": 1, "at": now_ms, _RESERVED: 0}
    full_in_ms = 0
    for name, shards in buckets.items():
        limit = shards[0].limit  # the first shard is the one that zae-limiter believes
        lack = sum(-(-shard.missing(now_ms) * limit.period_ms // shard.limit.period_ms) for shard in shards)
        if not lack:
            continue
        full_in_ms = max(full_in_ms, -(-lack // limit.refill_milli))
        spelled: dict[str, str | int] = {"lm": written_limit(limit), "vt": now_ms * limit.refill_milli + lack, "tc": 0}
        said |= {f"{PREFIX}{name}_{suffix}": value for suffix, value in spelled.items()}
    said["ttl"] = time_to_live(None, max(full_in_ms, KEPT_MS))
    place = Place(context.ns, check_entity_id(group.owner), check_resource(group.part), 0)
    item = {**place.key, **place.fixed(), **item_of(said)}
    return [Addition(item, absent=_RESERVED)] if full_in_ms else []


def _shards(found: Sequence[Mapping[str, Any]]) -> Iterator[_Shard]:
    """Of the newest layout there is: what an upgrade of zae-limiter has left behind is not read by it either."""
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


def usage_writes(group: Group, found: Sequence[Mapping[str, Any]], context: Context) -> list[NewItem | Addition]:
    """The hours of a day, but for the first: zae-limiter adds that one, its day and its month up under one key."""
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
    place = Place(context.ns, check_entity_id(group.owner), check_resource(resource), 0)
    hours: dict[str, str | int] = {
        "PK": keys.pk_hours(place.ns, place.entity_id),
        "SK": keys.sk_hours(resource, day),
        "entity_id": place.entity_id,
        "resource": resource,
        "ttl": time_to_live(None, left_ms),
        "GSI4PK": place.ns,
        "GSI4SK": keys.gsi4_sk_hours(place.ns, place.entity_id),
    }
    # The item of the buckets says that there are such hours, even if all buckets are full.
    told = item_of({"shard_count": 1, MOVES: 1, "ttl": time_to_live(None, KEPT_MS)})
    return [NewItem(item_of({**hours, **used})), Addition({**place.key, **place.fixed(), **told})]
