"""A bucket as an item of the table: virtual time instead of tokens.

For each limit, an item has the time at which its bucket is full again: `V`, in milliseconds times refill. That is
equivalent to tokens, a remainder and the time they were counted at,

    capacity * period - max(0, V - now * refill) = tokens * period + remainder

but does not change as time passes. So nothing has to be read or settled first: taking `x` adds `x * period` to V if V
is not too high, and concurrent writers do not block each other.

A bucket with `n` shards has `n` items that look alike. Each has the whole capacity and refill, and an amount taken from
one of them counts `n` times there, so no share is ever rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from ...core.bucket import Bucket
from ...core.decide import Part
from ...core.errors import CorruptState
from ...core.limit import Limit
from ...core.stored import LATEST_MS, LOWEST_MILLI, is_sound_bucket, is_sound_limit
from ...core.units import shown
from . import keys
from .exchange import Item

PREFIX = "b_"
SUFFIXES = ("lm", "vt", "at", "rv", "tc", "sv", "sl")  # of all attributes of a limit
USED = "u_"
MOST_SHARDS = "most_shards"

Held: TypeAlias = "tuple[int, int]"  # millislots, and their expiry


class RowState(NamedTuple):
    """One limit of an item.

    `at_ms`: the last write, by the writer's clock. `written`: the limit as stored, with a penalty if there is one. For
    slots (slot_items.py), `v` is how many are taken, and `holders` the leases that hold them.
    """

    limit: Limit
    v: int
    at_ms: int
    revision: int
    written: str
    blocked_until_ms: int
    consumed_milli: int
    holders: Mapping[str, Held] = MappingProxyType({})


class Row(NamedTuple):
    """One item.

    `writes`: the number of writes so far. `used`: usage, by attribute. `most_shards`: on the first shard, the number of
    shards before they were merged.
    """

    states: Mapping[str, RowState]
    shard_count: int
    ttl: int
    writes: int
    used: Mapping[str, int] = MappingProxyType({})
    most_shards: int = 1

    def bucket(self, part: Part, now_ms: int) -> Bucket:
        """The bucket of a part, settled at this time."""
        state = self.states.get(part.limit.name)
        if state is None:
            return Bucket.full(part.limit, now_ms, part.revision)
        return bucket_of(state, now_ms)


NEW = Row({}, 1, 0, 0)  # an item that does not exist: everything is full


def bucket_of(state: RowState, now_ms: int) -> Bucket:
    limit = state.limit
    missing = max(0, state.v - now_ms * limit.refill_milli)
    tokens, remainder = divmod(limit.capacity_milli * limit.period_ms - missing, limit.period_ms)
    return Bucket(limit, tokens, now_ms, remainder, state.blocked_until_ms, state.revision)


def virtual_time(bucket: Bucket) -> int:
    limit = bucket.limit
    missing = (limit.capacity_milli - bucket.tokens_milli) * limit.period_ms - bucket.remainder
    return bucket.settled_at_ms * limit.refill_milli + missing


def written_limit(limit: Limit, blocked_until_ms: int = 0) -> str:
    """Conditions compare it: a writer that does not know of a changed limit, or of a penalty, writes nothing."""
    text = f"{limit.capacity_milli}/{limit.refill_milli}/{limit.period_ms}"
    return f"{text}!{blocked_until_ms}" if blocked_until_ms else text


def used_name(limit: str, hour: int) -> str:
    """The attribute that counts a limit's hour."""
    return f"{USED}{limit}_{hour}"


def parse_used(attribute: str) -> tuple[str, int]:
    """Limit and hour."""
    limit, _, hour = attribute[len(USED) :].rpartition("_")
    return limit, int(hour)


def read_used(item: Item) -> dict[str, int]:
    return {attribute: number(item, attribute) for attribute in used_names(item)}


def used_names(item: Item) -> list[str]:
    return [attribute for attribute in item if attribute.startswith(USED)]


def has_buckets(item: Item | None) -> bool:
    """A shard that was merged keeps the usage in it, and has a shard_count of 0."""
    if item is None:
        return False
    with reading(item):
        return number(item, "shard_count") > 0


@contextmanager
def reading(item: Item) -> Iterator[None]:
    """Turn every error while reading an item into CorruptState."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        _, entity_id, resource, _ = keys.parse_bucket_pk(item["PK"]["S"])
        raise CorruptState(f"its item cannot be read ({error!r})", entity_id, resource) from None


def read_row(item: Item) -> Row:
    with reading(item):
        return _read_row(item)


def _read_row(item: Item) -> Row:
    if number(item, "shard_count") <= 0:
        return NEW
    states: dict[str, RowState] = {}
    for attribute, value in item.items():
        if attribute.startswith(PREFIX) and attribute.endswith("_vt") and f"{attribute[:-2]}lm" not in item:
            raise ValueError(f"{attribute} has no limit")
        if attribute.startswith(PREFIX) and attribute.endswith("_lm"):
            name = attribute[len(PREFIX) : -len("_lm")]
            limit, blocked_until_ms = read_limit(name, value["S"])
            states[name] = _sound(
                limit,
                number({"vt": item[f"{PREFIX}{name}_vt"]}, "vt"),  # must exist
                number(item, f"{PREFIX}{name}_at"),
                number(item, f"{PREFIX}{name}_rv"),
                value["S"],
                blocked_until_ms,
                number(item, f"{PREFIX}{name}_tc"),
            )
    count, ttl, writes, most_shards = (number(item, name) for name in ("shard_count", "ttl", "wcu", MOST_SHARDS))
    return Row(states, count, ttl, writes, read_used(item), most_shards)


@lru_cache(10_000)
def read_limit(name: str, written: str) -> tuple[Limit, int]:
    shape, _, blocked = written.partition("!")
    capacity, refill, period = map(int, shape.split("/"))
    if not is_sound_limit(capacity, refill, period):
        raise ValueError(f"limit {name} is {written!r}")
    return Limit.from_stored(name, capacity, refill, period), int(blocked or 0)


def _sound(
    limit: Limit, v: int, at_ms: int, revision: int, written: str, blocked_until_ms: int, consumed_milli: int
) -> RowState:
    highest = LATEST_MS * limit.refill_milli + (limit.capacity_milli - LOWEST_MILLI) * limit.period_ms
    sound = is_sound_bucket(1, 0, 0, at_ms, 0, blocked_until_ms, revision)
    if not sound or not limit.refill_milli or not -highest <= v <= highest:
        raise ValueError(f"limit {limit.name} has {shown((v, at_ms, revision, blocked_until_ms))}")
    return RowState(limit, v, at_ms, revision, written, blocked_until_ms, consumed_milli)


def counted(item: Item, attribute: str) -> int:
    """A number that counts usage; 0 if it cannot be read."""
    try:
        return number(item, attribute)
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError):
        return 0


def number(item: Item, attribute: str) -> int:
    found = item.get(attribute)
    if not found:
        return 0
    text: str = found["N"]
    return int(text) if text.isdigit() else int(Decimal(text))  # it may be spelled 1.8E+27, or be negative
