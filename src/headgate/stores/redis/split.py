"""A batch over many slots of a cluster.

A script sees one slot. A request with all keys in one slot is decided there, in one step. A request over several slots
(a cascade whose links are apart) is decided in each of them; if one refuses, what the others took is given back. So
nothing is oversold, and after a refusal nothing stays taken. In between, other requests may be refused for tokens that
are about to be given back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn, TypeAlias

from ...core.decide import TAKE, Answer, Level, Parts, Request, refund
from ...core.errors import HeadgateError, PartlyAnswered, RateLimiterUnavailable
from ...core.slots import OVERTAKES
from ...plan import Plan
from ..server import MoreTime
from .keys import Keys
from .router import Rejected, raised

log = logging.getLogger("headgate")

Answered: TypeAlias = "Answer | HeadgateError"
# Requests of one kind go on sharing their parts, so that those that meet at an ancestor are encoded there once.
_Shared: TypeAlias = "dict[tuple[int, tuple[int, ...]], tuple[list[int], Parts]]"
SettleSlots: TypeAlias = (
    "Callable[[dict[int, Sequence[Request]], int | None], Plan[list[Sequence[Answered] | RateLimiterUnavailable]]]"
)


class _Piece:
    """The parts of a request in one slot. `places`: their indexes in the request."""

    __slots__ = ("answered", "places", "request", "slot")

    def __init__(self, slot: int, request: Request, places: Sequence[int]) -> None:
        self.slot = slot
        self.request = request
        self.places = places
        self.answered: Answered = RateLimiterUnavailable("not asked")

    @property
    def taken(self) -> bool:
        return isinstance(self.answered, Answer) and self.answered.allowed

    def levels(self, answer: Answer, *, given_back: bool) -> Iterator[tuple[int, Level]]:
        """The place and the level of each part. `given_back`: after what was taken is."""
        undone = given_back and self.request.mode is TAKE
        for place, part, (available_milli, wait_ms) in zip(self.places, self.request.parts, answer.levels):
            yield place, (available_milli + (part.amount_milli if undone else 0), wait_ms)


def settle_split_plan(
    settle_slots: SettleSlots, keys: Keys, batch: Sequence[Request], now_ms: int | None
) -> Plan[list[Answer]]:
    shared: _Shared = {}
    split = [_pieces(request, keys, shared) for request in batch]
    yield from _settle_pieces_plan(settle_slots, (piece for pieces in split for piece in pieces), now_ms)
    yield from _give_back_plan(settle_slots, split, now_ms)
    answers = [_joined(request, pieces) for request, pieces in zip(batch, split)]
    found = [answer for answer in answers if isinstance(answer, Answer)]
    if len(found) < len(answers):
        _raise_lost(answers)
    return found


def _raise_lost(answers: Sequence[Answered]) -> NoReturn:
    rejected = [answer for answer in answers if isinstance(answer, Rejected)]
    if len(rejected) == len(answers):
        raise raised(rejected[0])
    raise PartlyAnswered(answers)  # even if none has an answer: other nodes of the cluster may be up


def _pieces(request: Request, keys: Keys, shared: _Shared) -> list[_Piece]:
    slots = [keys.slot(keys.row(key)) for key in request.keys]
    if len(set(slots)) == 1:
        return [_Piece(slots[0], request, range(len(request.parts)))]
    request = _without_deadlock(request, slots)
    pieces = []
    for slot in sorted(set(slots)):
        levels = tuple(level for level, at in enumerate(slots) if at == slot)
        kind = (id(request.parts), levels)
        if kind not in shared:
            shared[kind] = _parts_at(request.parts, levels)
        places, parts = shared[kind]
        if parts:
            of_slot = request._replace(keys=tuple(request.keys[level] for level in levels), parts=parts)
            pieces.append(_Piece(slot, of_slot, places))
    return pieces


def _without_deadlock(request: Request, slots: Sequence[int]) -> Request:
    """Two requests, each first in one of two queues, would wait for each other: one over several queues joins none."""
    queues = {slots[part.level] for part in request.parts if part.limit.is_concurrent}
    return request._replace(place_ms=OVERTAKES) if request.place_ms and len(queues) > 1 else request


def _parts_at(parts: Parts, levels: tuple[int, ...]) -> tuple[list[int], Parts]:
    places = [place for place, part in enumerate(parts) if part.level in levels]
    return places, tuple(parts[place]._replace(level=levels.index(parts[place].level)) for place in places)


def _settle_pieces_plan(settle_slots: SettleSlots, pieces: Iterable[_Piece], now_ms: int | None) -> Plan[None]:
    by_slot: dict[int, list[_Piece]] = {}
    for piece in pieces:
        by_slot.setdefault(piece.slot, []).append(piece)
    batches: dict[int, Sequence[Request]] = {slot: [piece.request for piece in of] for slot, of in by_slot.items()}
    results = yield from settle_slots(batches, now_ms)
    for of_slot, result in zip(by_slot.values(), results):
        for number, piece in enumerate(of_slot):
            piece.answered = result if isinstance(result, RateLimiterUnavailable) else result[number]


def _give_back_plan(settle_slots: SettleSlots, split: list[list[_Piece]], now_ms: int | None) -> Plan[None]:
    """Undo what was taken for requests that did not get everything. One without an answer may not have been."""
    undone = [
        _Piece(piece.slot, refund(piece.request), piece.places)
        for pieces in split
        if _is_incomplete(pieces)
        for piece in pieces
        if piece.taken
    ]
    if not undone:
        return
    yield from MoreTime()
    yield from _settle_pieces_plan(settle_slots, undone, now_ms)
    for piece in undone:
        if isinstance(piece.answered, HeadgateError):
            log.warning("a part of a refused request could not be given back: %s", piece.answered)


def _is_incomplete(pieces: list[_Piece]) -> bool:
    return len(pieces) > 1 and pieces[0].request.mode is TAKE and not all(piece.taken for piece in pieces)


def _joined(request: Request, pieces: list[_Piece]) -> Answered:
    if len(pieces) == 1:
        return pieces[0].answered
    answers: list[Answer] = []
    for piece in pieces:
        if isinstance(piece.answered, HeadgateError):
            return piece.answered
        answers.append(piece.answered)
    allowed = all(answer.allowed for answer in answers)
    levels: list[Level] = [(0, 0)] * len(request.parts)
    for piece, answer in zip(pieces, answers):
        for place, level in piece.levels(answer, given_back=answer.allowed and not allowed):
            levels[place] = level
    return Answer(allowed, _longest([answer.wait_ms for answer in answers]), levels)


def _longest(waits_ms: list[int | None]) -> int | None:
    """None, if one of them is: it never fits."""
    known = [wait_ms for wait_ms in waits_ms if wait_ms is not None]
    return max(known, default=0) if len(known) == len(waits_ms) else None
