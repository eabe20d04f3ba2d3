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
from .quota import Quota
from .slots import Slots
from .units import MILLI

State: TypeAlias = "Bucket | Slots"


class Mode(Enum):
    TAKE = "take"  # if every bucket allows it within max_wait_ms
    FORCE = "force"  # whatever the buckets say
    PEEK = "peek"  # look, change nothing
    PENALIZE = "penalize"
    LOWER = "lower"  # leave the amount of tokens, if there are more
    RENEW = "renew"  # hold on to the slots of the lease


TAKE, FORCE, PEEK, PENALIZE, LOWER, RENEW = Mode


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
    """One atomic request. It names a bucket at most once. Slots are taken, held and given back for `lease_id`.

    `place_ms`: for how long a take that lacks nothing but slots keeps its place in the queue for them. Any other end of
    the take gives the place up, and so does giving back.

    Keys (see names.bucket_key) say whose buckets, parts what of each: a million callers share the parts.
    """

    mode: Mode
    keys: tuple[str, ...]
    parts: Parts
    max_wait_ms: int = 0
    block_ms: int = 0
    keep_milli: int = MILLI
    lease_id: str = ""
    place_ms: int = 0


def refund(request: Request) -> Request:
    """The request that gives back what `request` took."""
    parts = tuple(part._replace(amount_milli=-part.amount_milli) for part in request.parts)
    return Request(FORCE, request.keys, parts, lease_id=request.lease_id)


def state_of(part: Part, now_ms: int) -> State:
    """The state of a part that nothing is known of: full, or free."""
    _, limit, _, revision = part
    if limit.refill_milli > 0:
        return Bucket.full(limit, now_ms, revision)
    if limit.refill_milli:
        return Quota.full(limit, now_ms, revision)
    return Slots(limit, now_ms, revision=revision)


def is_of_kind(state: State, limit: Limit) -> bool:
    """Whether it can go on under the limit. A limit that changes its kind starts anew."""
    return type(state) is (Bucket if limit.refill_milli > 0 else Quota if limit.refill_milli else Slots)


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


def decide(request: Request, states: Sequence[State], now_ms: int) -> Answer:
    """Answer a request on its states, one for each part in order, and leave them as they are afterwards."""
    mode, _, parts, max_wait_ms, block_ms, keep_milli, lease_id, place_ms = request
    for part, state in zip(parts, states):
        if isinstance(state, Slots):
            state.serve(lease_id, part.limit.period_ms, place_ms)
    if mode is TAKE:
        return take(parts, states, now_ms, max_wait_ms)
    looked, longest = _look(parts, states, now_ms, changes=mode is not PEEK)
    if mode is RENEW:
        return _renew([state for state, _, _ in looked])
    for state, amount_milli, _ in looked:
        if mode is FORCE:
            state.force(amount_milli)
        elif mode is PENALIZE:
            state.penalize(block_ms, keep_milli)
        elif mode is LOWER:
            state.lower(amount_milli)
    return _answer(True, longest, looked)


def take(parts: Parts, states: Sequence[State], now_ms: int, max_wait_ms: int = 0) -> Answer:
    if len(parts) == 1 and isinstance(states[0], Bucket):
        return take_one(states[0], *parts[0][1:], now_ms, max_wait_ms)
    if (answer := _take_at_once(parts, states, now_ms)) is not None:
        return answer
    looked, longest = _look(parts, states, now_ms, changes=True)
    allowed = longest is not None and longest <= max_wait_ms
    if longest:  # tokens of a bucket can be had from the future, others cannot
        allowed = allowed and not any(wait_ms and state.limit.refill_milli <= 0 for state, _, wait_ms in looked)
    if allowed:
        for state, amount_milli, _ in looked:
            state.take(amount_milli)
    else:
        _queue_up(looked, max_wait_ms)
    return _answer(allowed, longest, looked)


def _take_at_once(parts: Parts, states: Sequence[State], now_ms: int) -> Answer | None:
    """What nearly every take of several comes to: the tokens are there. None if it takes a closer look."""
    levels = []
    for (_, limit, amount_milli, _), bucket in zip(parts, states):
        if bucket.__class__ is not Bucket or (bucket.limit is not limit and bucket.limit != limit):
            return None
        if bucket.settled_at_ms < now_ms:
            bucket.settle(now_ms)
        left_milli = bucket.tokens_milli - amount_milli
        if left_milli < 0 or bucket.blocked_until_ms:
            return None
        levels.append((left_milli, 0))
    for part, state in zip(parts, states):
        state.take(part.amount_milli)
    return Answer(True, 0, levels)


def _queue_up(looked: list[tuple[State, int, int | None]], max_wait_ms: int) -> None:
    """Keep a place for slots if they are all that is missing, and give it up if not."""
    waits = all(
        wait_ms is not None
        and (isinstance(state, Slots) or wait_ms <= (0 if isinstance(state, Quota) else max_wait_ms))
        for state, _, wait_ms in looked
    )
    for state, amount_milli, _ in looked:
        if isinstance(state, Slots):
            if waits and amount_milli > 0 and state.place_ms > 0:
                state.join(amount_milli)
            else:
                state.leave()


def take_one(
    bucket: Bucket, limit: Limit, amount_milli: int, revision: int, now_ms: int, max_wait_ms: int = 0
) -> Answer:
    """The same for one bucket, which is nearly all there is, in half the time."""
    if bucket.settled_at_ms < now_ms:
        bucket.settle(now_ms)
    if bucket.limit is not limit and bucket.limit != limit:
        bucket.reshape(limit, revision)
    left_milli = bucket.tokens_milli - amount_milli
    if left_milli >= 0 and not bucket.blocked_until_ms:  # as take() does, without the call
        bucket.tokens_milli = left_milli
        bucket.used_milli += amount_milli
        bucket.changed = True
        if limit.refill_milli < 0:
            bucket.follow_tokens()
        return Answer(True, 0, ((left_milli, 0),))
    wait_ms = bucket.wait_ms(amount_milli)
    allowed = wait_ms is not None and wait_ms <= max_wait_ms and (not wait_ms or limit.refill_milli > 0)
    if allowed:
        bucket.take(amount_milli)
    return Answer(allowed, wait_ms, ((bucket.available_milli(), wait_ms),))


def _look(
    parts: Parts, states: Sequence[State], now_ms: int, *, changes: bool
) -> tuple[list[tuple[State, int, int | None]], int | None]:
    """Each state at `now_ms` under the limit of its part, with the amount and its wait; and the longest wait."""
    looked: list[tuple[State, int, int | None]] = []
    longest: int | None = 0
    for (_, limit, amount_milli, revision), state in zip(parts, states):
        state.settle(now_ms)
        if state.limit is not limit and state.limit != limit:
            if not changes:
                state = copy(state)
            state.reshape(limit, revision)
        wait_ms = state.wait_ms(amount_milli)
        looked.append((state, amount_milli, wait_ms))
        if wait_ms != 0:
            longest = None if wait_ms is None or longest is None else max(longest, wait_ms)
    return looked, longest


def _renew(held: Sequence[State]) -> Answer:
    """What is lost has no end of waiting; the rest is renewed all the same."""
    renewed = [isinstance(slots, Slots) and slots.renew() for slots in held]
    levels = [(slots.available_milli(), 0 if kept else None) for slots, kept in zip(held, renewed)]
    return Answer(all(renewed), 0 if all(renewed) else None, levels)


def _answer(allowed: bool, longest: int | None, looked: list[tuple[State, int, int | None]]) -> Answer:
    return Answer(allowed, longest, [(state.available_milli(), wait_ms) for state, _, wait_ms in looked])
