"""Requests, answers, and the decision between them.

A request names buckets and amounts. `decide` answers it all or nothing: it passes on every bucket, or
it changes none. A store brings the buckets and makes the decision atomic; it decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from enum import Enum
from typing import NamedTuple, TypeAlias

from .bucket import Bucket
from .limit import Limit
from .units import MILLI


class Mode(Enum):
    TAKE = "take"  # if every bucket allows it within max_wait_ms
    FORCE = "force"  # whatever the buckets say
    PEEK = "peek"  # look, change nothing
    PENALIZE = "penalize"


TAKE, FORCE, PEEK, PENALIZE = Mode


class Part(NamedTuple):
    """An amount on one bucket: the one of `limit` under the key at `level` of the request's keys.

    `revision` orders stored limits in time; 0 is a limit that came with the call.
    """

    level: int
    limit: Limit
    amount_milli: int
    revision: int = 0


Parts: TypeAlias = "tuple[Part, ...]"


class Request(NamedTuple):
    """One atomic request. It names a bucket at most once.

    Keys (see names.bucket_key) say whose buckets, parts what of each: a million callers share the parts.
    """

    mode: Mode
    keys: tuple[str, ...]
    parts: Parts
    max_wait_ms: int = 0
    block_ms: int = 0
    keep_milli: int = MILLI


def refund(request: Request) -> Request:
    """The request that gives back what `request` took."""
    return Request(FORCE, request.keys, tuple(part._replace(amount_milli=-part.amount_milli) for part in request.parts))


Level: TypeAlias = "tuple[int, int | None]"


class Answer:
    """What became of a request.

    `wait_ms`: how long a reservation sleeps, or how long a refused request would have to wait.
    `levels`: for each part in order, what its bucket has left in millitokens and its own wait.
    """

    __slots__ = ("allowed", "levels", "wait_ms")

    def __init__(self, allowed: bool, wait_ms: int | None, levels: Sequence[Level]) -> None:
        self.allowed = allowed
        self.wait_ms = wait_ms
        self.levels = levels


def decide(request: Request, buckets: Sequence[Bucket], now_ms: int) -> Answer:
    """Answer a request on its buckets, one for each part in order, and leave them as they are afterwards."""
    mode, _, parts, max_wait_ms, block_ms, keep_milli = request
    if mode is TAKE:
        return take(parts, buckets, now_ms, max_wait_ms)
    looked, longest = _look(parts, buckets, now_ms, changes=mode is not PEEK)
    for bucket, amount_milli, _ in looked:
        if mode is FORCE:
            bucket.force(amount_milli)
        elif mode is PENALIZE:
            bucket.penalize(block_ms, keep_milli)
    return _answer(True, longest, looked)


def take(parts: Parts, buckets: Sequence[Bucket], now_ms: int, max_wait_ms: int = 0) -> Answer:
    if len(parts) == 1:
        return take_one(parts[0], buckets[0], now_ms, max_wait_ms)
    looked, longest = _look(parts, buckets, now_ms, changes=True)
    allowed = longest is not None and longest <= max_wait_ms
    if allowed:
        for bucket, amount_milli, _ in looked:
            bucket.take(amount_milli)
    return _answer(allowed, longest, looked)


def take_one(part: Part, bucket: Bucket, now_ms: int, max_wait_ms: int = 0) -> Answer:
    """The same for one bucket, which is nearly all there is, in half the time."""
    _, limit, amount_milli, revision = part
    bucket.settle(now_ms)
    if bucket.limit is not limit and bucket.limit != limit:
        bucket.reshape(limit, revision)
    if amount_milli <= bucket.tokens_milli and not bucket.blocked_until_ms:
        bucket.take(amount_milli)
        return Answer(True, 0, ((bucket.tokens_milli, 0),))
    wait_ms = bucket.wait_ms(amount_milli)
    allowed = wait_ms is not None and wait_ms <= max_wait_ms
    if allowed:
        bucket.take(amount_milli)
    return Answer(allowed, wait_ms, ((bucket.available_milli(), wait_ms),))


def _look(
    parts: Parts, buckets: Sequence[Bucket], now_ms: int, *, changes: bool
) -> tuple[list[tuple[Bucket, int, int | None]], int | None]:
    """Each bucket at `now_ms` under the limit of its part, with the amount and its wait; and the longest wait."""
    looked: list[tuple[Bucket, int, int | None]] = []
    longest: int | None = 0
    for (_, limit, amount_milli, revision), bucket in zip(parts, buckets):
        bucket.settle(now_ms)
        if bucket.limit is not limit and bucket.limit != limit:
            if not changes:
                bucket = copy(bucket)
            bucket.reshape(limit, revision)
        wait_ms = bucket.wait_ms(amount_milli)
        looked.append((bucket, amount_milli, wait_ms))
        if wait_ms != 0:
            longest = None if wait_ms is None or longest is None else max(longest, wait_ms)
    return looked, longest


def _answer(allowed: bool, longest: int | None, looked: list[tuple[Bucket, int, int | None]]) -> Answer:
    return Answer(allowed, longest, [(bucket.available_milli(), wait_ms) for bucket, _, wait_ms in looked])
