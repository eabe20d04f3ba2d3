"""A bucket as an item of the table: virtual time instead of tokens.

For each limit, an item has the time at which its bucket is full again: `V`, in milliseconds times refill. That is
equivalent to tokens, a remainder and the time they were counted at,

    capacity * period - max(0, V - now * refill) = tokens * period + remainder

but does not change as time passes. So nothing has to be read or settled first: taking `x` adds `x * period` to V if V
is not too high, and concurrent writers do not block each other.

A quota does not refill as time passes. Its `V` is what is missing in its window, and the window is a part of the limit
as it is written, so that conditions compare it too: an amount is added to V in the window that was seen, or not at all.

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
from ...core.limit import AT_ONCE, Limit
from ...core.quota import Quota
from ...core.stored import LATEST_MS, LOWEST_MILLI, is_sound_bucket, is_sound_limit
from ...core.units import shown
from . import keys
from .exchange import Item

PREFIX = "b_"
SUFFIXES = ("lm", "vt", "at", "rv", "tc", "sv", "sl")  # of all attributes of a limit
USED = "u_"
MOST_SHARDS = "most_shards"
_QUOTA = "quota"  # in the place of the refill

Held: TypeAlias = "tuple[int, int]"  # millislots, and their expiry
_NOBODY: Mapping[str, Held] = MappingProxyType({})


class RowState(NamedTuple):
    """One limit of an item.

    `at_ms`: the last write, by the writer's clock. `written`: the limit as stored, with the end of a quota's window and
    a penalty, if there are such. For slots (slot_items.py), `v` is how many are taken, and `holders` the leases that
    hold them.
    """

    limit: Limit
    v: int
    at_ms: int
    revision: int
    written: str
    blocked_until_ms: int
    consumed_milli: int
    holders: Mapping[str, Held] = _NOBODY
    ends_ms: int = 0


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
        """The bucket or quota of a part, settled at this time. One that has changed its kind starts anew."""
        limit = part.limit
        state = self.states.get(limit.name)
        if state is not None and state.limit.is_quota is limit.is_quota:
            return bucket_of(state, now_ms)
        anew = (Quota if limit.is_quota else Bucket).full(limit, now_ms, part.revision)
        anew.changed = state is not None
        return anew

    def has(self, limit: Limit) -> bool:
        state = self.states.get(limit.name)
        return state is not None and state.limit.is_quota is limit.is_quota


NEW = Row({}, 1, 0, 0)  # an item that does not exist: everything is full


def bucket_of(state: RowState, now_ms: int) -> Bucket:
    limit = state.limit
    if limit.is_quota:
        given_back = state.v <= 0 and begins_with_use(limit)  # to full, which ends the window
        ends_ms, tokens = 0 if given_back else state.ends_ms, limit.capacity_milli - max(0, state.v)
        quota = Quota(limit, tokens, now_ms, ends_ms, state.blocked_until_ms, state.revision)
        quota.settle(now_ms)
        return quota
    missing = max(0, state.v - now_ms * limit.refill_milli)
    tokens, remainder = divmod(limit.capacity_milli * limit.period_ms - missing, limit.period_ms)
    return Bucket(limit, tokens, now_ms, remainder, state.blocked_until_ms, state.revision)


def fullness(state: RowState) -> int:
    """When it is full again, to compare shards. A quota is nearer to the end of its window the more it lacks."""
    limit = state.limit
    if limit.is_quota:
        return state.at_ms + (state.ends_ms - state.at_ms) * state.v // limit.capacity_milli
    return state.v // limit.refill_milli


def virtual_time(bucket: Bucket) -> int:
    limit = bucket.limit
    if limit.is_quota:
        return limit.capacity_milli - bucket.tokens_milli
    missing = (limit.capacity_milli - bucket.tokens_milli) * limit.period_ms - bucket.remainder
    return bucket.settled_at_ms * limit.refill_milli + missing


def units(limit: Limit) -> int:
    """Of V, for a millitoken."""
    return limit.period_ms if limit.refill_milli > 0 else 1


def begins_with_use(limit: Limit) -> bool:
    """Whether it is a quota whose window begins with its first use."""
    return limit.is_quota and limit.calendar is None


def full_v(limit: Limit, now_ms: int) -> int:
    """V of a full one."""
    return 0 if limit.is_quota else now_ms * limit.refill_milli


def written_limit(limit: Limit, blocked_until_ms: int = 0, ends_ms: int = 0) -> str:
    """Conditions compare it: a writer that does not know of a changed limit, a penalty or a new window of a quota
    writes nothing.
    """
    if limit.is_quota:
        window = limit.spelled.partition("/")[2] if limit.calendar else limit.period_ms
        text = f"{limit.capacity_milli}/{_QUOTA}/{ends_ms}/{window}"
    else:
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
            limit, blocked_until_ms, ends_ms = read_limit(name, value["S"])
            v = number({"vt": item[f"{PREFIX}{name}_vt"]}, "vt")  # must exist
            at_ms, revision = number(item, f"{PREFIX}{name}_at"), number(item, f"{PREFIX}{name}_rv")
            consumed = number(item, f"{PREFIX}{name}_tc")
            states[name] = _sound(
                RowState(limit, v, at_ms, revision, value["S"], blocked_until_ms, consumed, _NOBODY, ends_ms)
            )
    count, ttl, writes, most_shards = (number(item, name) for name in ("shard_count", "ttl", "wcu", MOST_SHARDS))
    return Row(states, count, ttl, writes, read_used(item), most_shards)


class WrittenLimit(NamedTuple):
    limit: Limit
    blocked_until_ms: int
    ends_ms: int


@lru_cache(10_000)
def read_limit(name: str, written: str) -> WrittenLimit:
    shape, _, blocked = written.partition("!")
    capacity, refill, *window = shape.split("/", 3)
    is_quota, ends, period, calendar = refill == _QUOTA, "0", window[-1], None
    if is_quota:
        refill, ends = f"{AT_ONCE}", window[0]
        if not period.isdigit():
            period, calendar = "0", Limit.parse(name, f"1/{period}").calendar
    numbers = int(capacity), int(refill), int(period)
    limit = Limit.from_stored(name, *numbers, calendar)
    sound = is_sound_limit(*numbers) and len(window) == 1 + is_quota and (calendar is None) is (limit.period_ms > 0)
    if not sound or limit.is_quota is not is_quota:
        raise ValueError(f"limit {name} is {written!r}")
    return WrittenLimit(limit, int(blocked or 0), int(ends))


def _sound(state: RowState) -> RowState:
    limit = state.limit
    sound = is_sound_bucket(1, 0, 0, state.at_ms, 0, state.blocked_until_ms, state.revision)
    highest = (limit.capacity_milli - LOWEST_MILLI) * units(limit)
    if limit.is_quota:
        sound = sound and 0 <= state.ends_ms <= LATEST_MS and state.v <= highest
    else:
        highest += LATEST_MS * limit.refill_milli
        sound = sound and bool(limit.refill_milli) and -highest <= state.v <= highest
    if not sound:
        raise ValueError(f"limit {limit.name} has {shown((*state[1:4], state.blocked_until_ms, state.ends_ms))}")
    return state


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
