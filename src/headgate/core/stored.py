"""What stored numbers have to be. Anything else was not written by headgate: it is corrupt.

It must not reach the arithmetic: a period of 0 divides by zero, and a bucket that was settled in a million years blocks
its entity for as long. Stores that decide by themselves check the same in their scripts, and say by the number of a
field (FIELDS) what they have found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .bucket import Bucket
from .errors import CorruptState, RateLimiterUnavailable
from .limit import AT_ONCE, Limit
from .names import parse_bucket_key
from .quota import Quota
from .units import MAX_DEBT_MILLI, MAX_PERIOD_MS, MAX_TOKENS, MILLI, shown

MAX_MILLI = MAX_TOKENS * MILLI
LATEST_MS = 10**15  # in 30,000 years
LOWEST_MILLI = -9 * MAX_DEBT_MILLI
MAX_REVISION = 2**53
MAX_USED_MILLI = 4 * 10**18

# In this order the scripts number them.
FIELDS = ("row", "capacity", "refill", "period", "tokens", "settled_at", "remainder", "blocked_until", "revision",
    "used", "holders", "format")  # fmt: skip


def corrupt_buckets(key: str, why: str) -> CorruptState:
    """The error of the row with a bucket key."""
    _, entity_id, resource = parse_bucket_key(key)
    return CorruptState(why, entity_id, resource)


def corrupt_field(key: str, limit_name: str, field: int) -> CorruptState | RateLimiterUnavailable:
    """The error that a script has reported by the number of a field."""
    if FIELDS[field] == "format":  # it is not corrupt, and must not be removed
        return RateLimiterUnavailable(f"unknown row format of {key}: upgrade headgate in every process")
    if field == 0:
        return corrupt_buckets(key, "the row cannot be decoded")
    of_limit = f" of limit {limit_name!r}" if limit_name else ""
    return corrupt_buckets(key, f"{FIELDS[field]}{of_limit} is not what headgate writes")


def is_sound_bucket(
    period_ms: int,
    capacity_milli: int,
    tokens_milli: int,
    settled_at_ms: int,
    remainder: int,
    blocked_until_ms: int,
    revision: int,
    used_milli: int = 0,
) -> bool:
    """Of a bucket whose limit is sound. It may be given anything."""
    try:
        return (
            0 <= remainder < period_ms
            and LOWEST_MILLI <= tokens_milli <= capacity_milli
            and 0 <= settled_at_ms <= LATEST_MS
            and 0 <= blocked_until_ms <= LATEST_MS
            and 0 <= revision <= MAX_REVISION
            and -MAX_USED_MILLI <= used_milli <= MAX_USED_MILLI
            # The sum of whole numbers is one, and a float among them shows.
            and type(tokens_milli + settled_at_ms + remainder + blocked_until_ms + revision + used_milli) is int
        )
    except TypeError:
        return False


def is_sound_limit(capacity_milli: Any, refill_milli: Any, period_ms: Any) -> bool:
    try:
        return (
            0 < capacity_milli <= MAX_MILLI
            and AT_ONCE <= refill_milli <= MAX_MILLI
            and (0 < period_ms <= MAX_PERIOD_MS or (refill_milli == AT_ONCE and period_ms == 0))
            and type(capacity_milli + refill_milli + period_ms) is int
        )
    except TypeError:
        return False


def is_sound_slots(settled_at_ms: Any, blocked_until_ms: Any, revision: Any, holders: Any) -> bool:
    """Of slots whose limit is sound. `holders` are by lease id."""
    try:
        return (
            is_sound_bucket(1, 0, 0, settled_at_ms, 0, blocked_until_ms, revision)
            and all(
                type(lease_id) is str and 0 < milli <= MAX_MILLI and 0 <= until_ms <= LATEST_MS
                and type(milli + until_ms) is int
                for lease_id, (milli, until_ms) in holders.items()
            )
        )  # fmt: skip
    except (TypeError, ValueError, AttributeError):
        return False


def bucket_as_stored(
    limit: Limit | None, name: str, capacity_milli: int, refill_milli: int, period_ms: int, *state: int
) -> Bucket | None:
    """The bucket, or quota, of stored numbers; None if they are corrupt. It has `limit` itself if that is the limit
    under which it was stored."""
    if limit is None or (limit.capacity_milli, limit.refill_milli, limit.period_ms) != (
        capacity_milli,
        refill_milli,
        period_ms,
    ):
        if not is_sound_limit(capacity_milli, refill_milli, period_ms):
            return None
        limit = Limit.from_stored(name, capacity_milli, refill_milli, period_ms)
    if refill_milli != AT_ONCE:
        return Bucket(limit, *state) if is_sound_bucket(period_ms, capacity_milli, *state) else None
    if not is_sound_bucket(LATEST_MS, capacity_milli, *state):
        return None
    _, settled_at_ms, ends_ms, *_ = state
    if limit.calendar is not None and limit.calendar.window(settled_at_ms).ends_ms != ends_ms:
        limit = Limit.from_stored(name, capacity_milli, refill_milli, period_ms)  # under another calendar
    return Quota(limit, *state)


def corrupt_limit(key: str, limit_name: Any, numbers: Sequence[Any]) -> CorruptState:
    """The error of one that is not sound."""
    return corrupt_buckets(key, f"limit {shown(limit_name)} has {', '.join(map(shown, numbers))}")
