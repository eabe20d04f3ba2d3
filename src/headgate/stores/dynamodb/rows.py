"""A bucket as an item of the table: virtual time instead of tokens.

An item says of each limit when its bucket is full again: `V`, in units of milliseconds times refill. That is the same
knowledge as tokens, a remainder and the moment they were counted at,

    capacity * period - max(0, V - now * refill) = tokens * period + remainder

but the passing of time does not change it. So nothing has to be read or settled before it is used: to take `x` is to
add `x * period` to V as long as V is not too high, and two who do it at once are in nobody's way.

A bucket that is spread over `n` shards has `n` items that look alike. Each has the whole capacity and refill, and what
is taken from one of them counts `n` times there: no share is ever rounded.
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
SUFFIXES = ("lm", "vt", "at", "rv", "tc", "sv", "sl")  # of all that an item may have of a limit
USED = "u_"
MOST_SHARDS = "most_shards"

Held: TypeAlias = "tuple[int, int]"  # millislots, and when they run out


class LimitState(NamedTuple):
    """One limit of an item.

    `at_ms`: when it was last written, by the writer's clock. `written`: the limit as the item has it, with a penalty if
    there is one. Of slots (slot_items.py), `v` is how many are taken, and `holders` says by which leases.
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

    `writes`: how often it has been written, ever. `used`: what it has counted, by attribute. `most_shards`: of the
    first shard, of how many it was one when there were most, if they have been taken back.
    """

    states: Mapping[str, LimitState]
    shard_count: int
    ttl: int
    writes: int
    used: Mapping[str, int] = MappingProxyType({})
    most_shards: int = 1

    def bucket(self, part: Part, now_ms: int) -> Bucket:
        """The bucket of a part, settled at a moment."""
        state = self.states.get(part.limit.name)
        if state is None:
            return Bucket.full(part.limit, now_ms, part.revision)
        return bucket_of(state, now_ms)


NEW = Row({}, 1, 0, 0)  # of an item that does not exist: everything is full


def bucket_of(state: LimitState, now_ms: int) -> Bucket:
    limit = state.limit
    missing = max(0, state.v - now_ms * limit.refill_milli)
    tokens, remainder = divmod(limit.capacity_milli * limit.period_ms - missing, limit.period_ms)
    return Bucket(limit, tokens, now_ms, remainder, state.blocked_until_ms, state.revision)


def virtual_time(bucket: Bucket) -> int:
    limit = bucket.limit
    missing = (limit.capacity_milli - bucket.tokens_milli) * limit.period_ms - bucket.remainder
    return bucket.settled_at_ms * limit.refill_milli + missing


def written_limit(limit: Limit, blocked_until_ms: int = 0) -> str:
    """What conditions compare: a writer who does not know of a changed limit, or of a penalty, writes nothing."""
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
    """Of a shard that there is no longer, what it has counted stays, and it says to be one of no shards."""
    if item is None:
        return False
    with reading(item):
        return number(item, "shard_count") > 0


@contextmanager
def reading(item: Item) -> Iterator[None]:
    """Whatever keeps an item from being read is said to be wrong with it."""
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
    states: dict[str, LimitState] = {}
    for attribute, value in item.items():
        if attribute.startswith(PREFIX) and attribute.endswith("_vt") and f"{attribute[:-2]}lm" not in item:
            raise ValueError(f"{attribute} has no limit")
        if attribute.startswith(PREFIX) and attribute.endswith("_lm"):
            name = attribute[len(PREFIX) : -len("_lm")]
            limit, blocked_until_ms = read_limit(name, value["S"])
            states[name] = _sound(
                limit,
                number({"vt": item[f"{PREFIX}{name}_vt"]}, "vt"),  # which has to be there
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
) -> LimitState:
    highest = LATEST_MS * limit.refill_milli + (limit.capacity_milli - LOWEST_MILLI) * limit.period_ms
    sound = is_sound_bucket(1, 0, 0, at_ms, 0, blocked_until_ms, revision)
    if not sound or not limit.refill_milli or not -highest <= v <= highest:
        raise ValueError(f"limit {limit.name} has {shown((v, at_ms, revision, blocked_until_ms))}")
    return LimitState(limit, v, at_ms, revision, written, blocked_until_ms, consumed_milli)


def counted(item: Item, attribute: str) -> int:
    """The same of what was used. Of a corrupt item, what can be read."""
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
