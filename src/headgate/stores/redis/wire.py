"""A batch as one call of settle.lua, and its reply as answers.

Callers of one kind (the same parts, wished for in the same way) are described once, whatever their number. Equal
requests for the same keys become one entry with a count: of equal requests at one moment the first so many pass,
and the others do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from typing import TypeAlias

from ...core.bucket import Bucket
from ...core.decide import PEEK, PENALIZE, TAKE, Answer, Mode, Parts, Request, decide
from ...core.limit import Limit
from .exchange import Arguments
from .keys import Keys
from .script import SETTLE

_Kind: TypeAlias = "list[bytes | str]"  # its numbers, and the names of its limits
_ONE_RUN = [1, 1, 1]
_MODES = {Mode.TAKE: 0, Mode.FORCE: 1, Mode.PEEK: 2, Mode.PENALIZE: 3}
_BLOCK = 10**15  # of debt, as in settle.lua
_DESCRIBED = 9  # numbers that describe a bucket
_KEPT_KINDS = 256


class _Entry:
    """Equal requests. `members` are their places in the batch."""

    __slots__ = ("kind", "members", "request")

    def __init__(self, request: Request, kind: int, member: int) -> None:
        self.request = request
        self.kind = kind
        self.members = [member]


class Batch:
    """`arguments` is the command that settles it.

    `repeatable`: sent twice by mistake, it takes at worst too much, and never gives back too much.
    """

    __slots__ = ("_entries", "_size", "arguments", "repeatable")

    def __init__(self, entries: list[_Entry], size: int, arguments: Arguments, repeatable: bool) -> None:
        self._entries = entries
        self._size = size
        self.arguments = arguments
        self.repeatable = repeatable

    def answers(self, reply: list[int]) -> list[Answer]:
        if len(reply) == 2:  # a plain take that passed, and nothing else
            (entry,) = self._entries
            if len(entry.members) == 1:
                return [Answer(True, 0, ((reply[1], 0),))]
        answers: list[Answer] = [None] * self._size  # type: ignore[list-item]  # all of them are set below
        at = 0
        for entry in self._entries:
            request, members = entry.request, entry.members
            passed, at = reply[at], at + 1
            parts = request.parts
            if passed == len(members) and request.mode is TAKE and not request.max_wait_ms:
                lefts, at = reply[at : at + len(parts)], at + len(parts)
                _answer_passed(answers, members, parts, lefts)
                continue
            buckets = []
            for part in parts:
                buckets.append(_bucket(part.limit, *reply[at : at + _DESCRIBED]))
                at += _DESCRIBED
            for member in members:
                answers[member] = decide(request, buckets, 0)
        return answers


def _answer_passed(answers: list[Answer], members: list[int], parts: Parts, lefts: list[int]) -> None:
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


class Encoder:
    def __init__(self, keys: Keys, cold_milli: int) -> None:
        self._keys = keys
        self._cold_milli = cold_milli
        self._lone_head = _doubles(0, cold_milli, *_ONE_RUN)
        self._kinds: dict[tuple[int, ...], tuple[Parts, _Kind]] = {}

    def encode(self, requests: Sequence[Request], now_ms: int | None, slot: int = 0) -> Batch:
        if len(requests) == 1:
            entries, kinds = [_Entry(requests[0], 1, 0)], self._kind(requests[0])[1]
            repeatable = _repeatable(requests[0])
            head = self._lone_head if now_ms is None else _doubles(now_ms, self._cold_milli, *_ONE_RUN)
        else:
            entries, kinds = self._merged(requests)
            repeatable = all(_repeatable(request) for request in requests)
            head = _doubles(now_ms or 0, self._cold_milli, *_runs(entries))
        row = self._keys.row
        keys = [row(key) for entry in entries for key in entry.request.keys]
        if self._cold_milli < 1000:
            keys.append(self._keys.birth(slot))
        arguments = ("EVALSHA", SETTLE.sha, len(keys), *keys, head, *kinds)
        return Batch(entries, len(requests), arguments, repeatable)

    def _merged(self, requests: Sequence[Request]) -> tuple[list[_Entry], _Kind]:
        numbers: dict[tuple[int, ...], int] = {}
        kinds: list[bytes | str] = []
        entries: list[_Entry] = []
        latest: dict[str, _Entry] = {}  # by key
        kind, last_mode, last_parts, last_wait_ms = 0, None, None, 0
        for member, request in enumerate(requests):
            mode, keys, parts, max_wait_ms, _, _ = request
            if parts is not last_parts or mode is not last_mode or max_wait_ms != last_wait_ms or mode is PENALIZE:
                last_mode, last_parts, last_wait_ms = mode, parts, max_wait_ms
                place, described = self._kind(request)
                kind = numbers.get(place, 0)
                if not kind:
                    kind = numbers[place] = len(numbers) + 1
                    kinds += described
            entry = latest.get(keys[0])
            if entry is not None and entry.kind == kind and _may_join(request, entry, latest):
                entry.members.append(member)
                continue
            entry = _Entry(request, kind, member)
            entries.append(entry)
            for key in keys:
                latest[key] = entry
        return entries, kinds

    def _kind(self, request: Request) -> tuple[tuple[int, ...], _Kind]:
        mode, _, parts, max_wait_ms, block_ms, keep_milli = request
        place = (id(parts), id(mode), max_wait_ms, block_ms, keep_milli)
        kept = self._kinds.get(place)
        if kept is None or kept[0] is not parts:
            if len(self._kinds) >= _KEPT_KINDS:
                self._kinds.clear()
            kept = self._kinds[place] = (parts, _described(request))
        return place, kept[1]


def _repeatable(request: Request) -> bool:
    return request.mode is TAKE or request.mode is PEEK


def _may_join(request: Request, entry: _Entry, latest: dict[str, _Entry]) -> bool:
    """If nothing that came in between is about any of its keys, it may as well have come before."""
    keys = request.keys
    return (
        entry.request.keys == keys
        and _repeatable(request)
        and (len(keys) == 1 or all(latest[key] is entry for key in keys))
    )


def _described(request: Request) -> _Kind:
    mode, keys, parts, max_wait_ms, block_ms, keep_milli = request
    numbers = [_MODES[mode], max_wait_ms, block_ms, keep_milli, len(keys)]
    for level, limit, amount_milli, revision in parts:
        numbers += [level, limit.capacity_milli, limit.refill_milli, limit.period_ms, amount_milli, revision]
    return [_doubles(*numbers), *(part.limit.name for part in parts)]


def _runs(entries: list[_Entry]) -> list[int]:
    runs: list[int] = []
    last_kind = last_count = 0
    for entry in entries:
        kind, count = entry.kind, len(entry.members)
        if kind == last_kind and count == last_count:
            runs[-1] += 1
        else:
            runs += (kind, count, 1)
            last_kind, last_count = kind, count
    return runs


def _doubles(*numbers: int) -> bytes:
    """Whole numbers that all are exact in a double."""
    return pack(f"<{len(numbers)}d", *numbers)


def _bucket(
    limit: Limit,
    capacity_milli: int,
    refill_milli: int,
    period_ms: int,
    tokens_milli: int,
    owed: int,
    settled_at_ms: int,
    remainder: int,
    blocked_until_ms: int,
    revision: int,
) -> Bucket:
    if (limit.capacity_milli, limit.refill_milli, limit.period_ms) != (capacity_milli, refill_milli, period_ms):
        limit = Limit.from_stored(limit.name, capacity_milli, refill_milli, period_ms)
    return Bucket(limit, tokens_milli - owed * _BLOCK, settled_at_ms, remainder, blocked_until_ms, revision)


def read_row(reply: list[int | bytes]) -> list[Bucket]:
    """The buckets of a row as read.lua tells them."""
    buckets = []
    for at in range(0, len(reply), 1 + _DESCRIBED):
        name = reply[at]
        assert isinstance(name, bytes)
        capacity_milli, refill_milli, period_ms, *state = (int(value) for value in reply[at + 1 : at + 1 + _DESCRIBED])
        limit = Limit.from_stored(name.decode(), capacity_milli, refill_milli, period_ms)
        buckets.append(_bucket(limit, capacity_milli, refill_milli, period_ms, *state))
    return buckets
