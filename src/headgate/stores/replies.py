"""Answers from the reply of a server that decides by itself.

For equal requests the reply says how many passed. Then comes either what the last of them left of each limit or, if the
answer has more to say, each limit's state before it, from which `decide` makes the answer. CORRUPT instead of a number
is followed by the part and the field that cannot be used (core/stored.py), ANOTHER_WINDOW by the server's time and the
moment of each part: one is outside of the window that was sent for a quota. Nothing was done, and it has to be asked
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from ..core.decide import TAKE, Answer, Parts, Request, State, decide
from ..core.errors import HeadgateError, PartlyAnswered
from ..core.limit import Limit
from ..core.slots import NEVER_MS, Slots
from ..core.stored import corrupt_field

DESCRIBED = 9  # numbers that describe a state
CORRUPT = -1
ANOTHER_WINDOW = -2
_OTHERS = "\udcff"  # never a lease id: it cannot be encoded

ReadState: TypeAlias = "Callable[..., State]"  # from the requested limit, the lease id, and those numbers


class AnotherWindow(HeadgateError):
    """In place of an answer."""

    def __init__(self, now_ms: int, moments_ms: Sequence[int]) -> None:
        super().__init__(now_ms, moments_ms)
        self.now_ms = now_ms
        self.moments_ms = tuple(moments_ms)


class AskAgain(PartlyAnswered):
    """Some requests need other windows."""


class EqualRequests(Protocol):
    """Equal requests. `members`: their indexes in the batch."""

    request: Request
    members: list[int]


def read_answers(
    entries: Iterable[EqualRequests], size: int, reply: Sequence[int], bucket: ReadState, slots: ReadState
) -> list[Answer]:
    answers: list[Answer] = [None] * size  # type: ignore[list-item]  # all of them are set below
    errors: dict[int, HeadgateError] = {}
    kind_of_errors = PartlyAnswered
    at = 0
    for entry in entries:
        request, members = entry.request, entry.members
        passed, at = reply[at], at + 1
        parts = request.parts
        if passed == CORRUPT:
            errors |= dict.fromkeys(members, _corrupt(request, *reply[at : at + 2]))
            at += 2
            continue
        if passed == ANOTHER_WINDOW:
            after = at + 1 + len(parts)
            errors |= dict.fromkeys(members, AnotherWindow(reply[at], reply[at + 1 : after]))
            kind_of_errors, at = AskAgain, after
            continue
        if passed == len(members) and request.mode is TAKE and not request.max_wait_ms:
            if passed == 1 == len(parts):
                answers[members[0]] = Answer(True, 0, ((reply[at], 0),))
                at += 1
                continue
            lefts, at = reply[at : at + len(parts)], at + len(parts)
            _answer_passed(answers, members, parts, lefts)
            continue
        states: list[State] = []
        for part in parts:
            read = bucket if part.limit.refill_milli else slots
            states.append(read(part.limit, request.lease_id, *reply[at : at + DESCRIBED]))
            at += DESCRIBED
        for member in members:
            answers[member] = decide(request, states, 0)
    if errors:
        raise kind_of_errors([errors.get(member, answer) for member, answer in enumerate(answers)])
    return answers


def _corrupt(request: Request, number: int, field: int) -> HeadgateError:
    part = request.parts[number - 1]
    return corrupt_field(request.keys[part.level], part.limit.name, field)


def _answer_passed(answers: list[Answer], members: list[int], parts: Parts, lefts: Sequence[int]) -> None:
    """From what the last one left, back to what the first one left."""
    if len(parts) == 1:
        left, amount = lefts[0], parts[0].amount_milli
        for member in reversed(members):
            answers[member] = Answer(True, 0, ((left, 0),))
            left += amount
        return
    for member in reversed(members):
        answers[member] = Answer(True, 0, [(left, 0) for left in lefts])
        lefts = [left + part.amount_milli for left, part in zip(lefts, parts)]


def stored_slots(
    limit: Limit,
    lease_id: str,
    held_milli: int,
    own_milli: int,
    settled_at_ms: int,
    fits_at_ms: int,
    blocked_until_ms: int,
    revision: int,
) -> Slots:
    """Slots that answer like those of the server: all other holders as one, holding until the request fits."""
    ends_ms = fits_at_ms or NEVER_MS
    holders = {lease_id: (own_milli, ends_ms)} if own_milli else {}
    if held_milli > own_milli:
        holders[_OTHERS] = held_milli - own_milli, ends_ms
    return Slots(limit, settled_at_ms, holders, blocked_until_ms, revision)


def stored_limit(limit: Limit, capacity_milli: int, refill_milli: int, period_ms: int) -> Limit:
    if (limit.capacity_milli, limit.refill_milli, limit.period_ms) == (capacity_milli, refill_milli, period_ms):
        return limit
    return Limit.from_stored(limit.name, capacity_milli, refill_milli, period_ms)
