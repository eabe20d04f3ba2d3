"""A batch as one call of settle.lua, and its reply as answers.

Requests of one kind (equal but for their keys) are described once, however many there are. Equal requests for the same
keys become one entry with a count: of equal requests at one moment, the first ones pass, and the rest do not. A request
for slots is an entry of its own, with its lease.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from struct import pack
from typing import Any, TypeAlias

from ...core.bucket import Bucket
from ...core.decide import FORCE, LOWER, PEEK, PENALIZE, RENEW, TAKE, Answer, Parts, Request, State
from ...core.errors import HeadgateError, PartlyAnswered
from ...core.limit import Limit
from ...core.slots import Slots
from ..replies import DESCRIBED, read_answers, stored_limit, stored_slots
from .exchange import Arguments
from .keys import Keys
from .script import SETTLE

_Place: TypeAlias = "tuple[int, ...]"
_ONE_RUN = [1, 1, 1]
_MODES = {TAKE: 0, FORCE: 1, PEEK: 2, PENALIZE: 3, LOWER: 4, RENEW: 5}
_BLOCK = 10**15  # of debt, as in settle.lua
_KEPT_KINDS = 256


class _Kind:
    """What requests have in common. `slots`: the level and limit name of each part that is about slots."""

    __slots__ = ("described", "joins", "parts", "repeatable", "simple", "slots")

    def __init__(self, request: Request) -> None:
        mode, self.parts = request.mode, request.parts
        self.slots = [(part.level, part.limit.name) for part in self.parts if part.limit.is_concurrent]
        self.joins = not self.slots and (mode is TAKE or mode is PEEK)
        # Slots that were taken twice would be renewed twice, but given back once.
        self.repeatable = mode in (PEEK, LOWER, RENEW) or (mode is TAKE and not self.slots)
        self.described = _described(request, len(self.slots))
        self.simple = mode is TAKE and not request.max_wait_ms and len(self.parts) == 1


class _Entry:
    """Equal requests. `members`: their indexes in the batch. `number`: that of their kind."""

    __slots__ = ("kind", "members", "number", "request")

    def __init__(self, request: Request, kind: _Kind, number: int, member: int) -> None:
        self.request = request
        self.kind = kind
        self.number = number
        self.members = [member]


class RedisBatch:
    """An encoded batch. `arguments` is the command that settles it.

    `repeatable`: if it is done twice by mistake, it may take too much, but never gives back too much. `simple`: each
    request that passed is answered with what is left, and nothing else.
    """

    __slots__ = ("_entries", "_simple", "_size", "arguments", "repeatable")

    def __init__(
        self, entries: list[_Entry], size: int, arguments: Arguments, *, repeatable: bool, simple: bool
    ) -> None:
        self._entries = entries
        self._size = size
        self._simple = simple
        self.arguments = arguments
        self.repeatable = repeatable

    def answers(self, reply: list[int]) -> list[Answer]:
        if self._simple and len(reply) == 2 * self._size:  # all have passed: what did not is told in more numbers
            return [Answer(True, 0, ((left, 0),)) for left in reply[1::2]]
        return read_answers(self._entries, self._size, reply, _bucket, _slots)

    def changed(self, results: Sequence[Answer | HeadgateError]) -> bool:
        """Whether it has changed anything: looks, refusals and corrupt rows have not."""
        for entry in self._entries:
            for member in entry.members:
                result, mode = results[member], entry.request.mode
                if isinstance(result, Answer) and mode is not PEEK and (mode is not TAKE or result.allowed):
                    return True
        return False

    def results(self, reply: list[int]) -> Sequence[Answer | HeadgateError]:
        try:
            return self.answers(reply)
        except PartlyAnswered as partly:
            return partly.results


class Encoder:
    """`kept_ms`: how long usage is kept; 0: none is counted. `listener`: the name under which the server notifies this
    process of free slots; empty if it cannot."""

    def __init__(self, keys: Keys, cold_milli: int, kept_ms: int = 0, listener: Callable[[], str] = lambda: "") -> None:
        self._keys = keys
        self._cold_milli = cold_milli
        self._kept_ms = kept_ms
        self._listener = listener
        self._lone_head = _doubles(0, cold_milli, kept_ms, *_ONE_RUN)
        self._kinds: dict[_Place, _Kind] = {}

    def encode(self, requests: Sequence[Request], now_ms: int | None, slot: int = 0) -> RedisBatch:
        if len(requests) == 1:
            _, kind = self._kind(requests[0])
            head = self._lone_head if now_ms is None else self._head(now_ms, _ONE_RUN)
            entries = [_Entry(requests[0], kind, 1, 0)]
            arguments = self._arguments(entries, head, kind.described, bool(kind.slots), slot)
            return RedisBatch(entries, 1, arguments, repeatable=kind.repeatable, simple=kind.simple)
        entries, kinds = self._merged(requests)
        head = self._head(now_ms or 0, _runs(entries))
        described = [each for kind in kinds for each in kind.described]
        arguments = self._arguments(entries, head, described, any(kind.slots for kind in kinds), slot)
        repeatable = all(kind.repeatable for kind in kinds)
        simple = len(entries) == len(requests) and all(kind.simple for kind in kinds)
        return RedisBatch(entries, len(requests), arguments, repeatable=repeatable, simple=simple)

    def _arguments(
        self, entries: list[_Entry], head: bytes, described: list[bytes | str], with_slots: bool, slot: int
    ) -> Arguments:
        leases: list[str] = []
        if with_slots:
            keys = [key for entry in entries for key in self._keys_of(entry)]
            leases = ["", self._listener(), *(entry.request.lease_id for entry in entries if entry.kind.slots)]
        else:
            row = self._keys.row
            keys = [row(key) for entry in entries for key in entry.request.keys]
        if self._cold_milli < 1000:
            keys.append(self._keys.birth(slot))
        return ("EVALSHA", SETTLE.sha, str(len(keys)), *keys, head, *described, *leases)

    def _head(self, now_ms: int, runs: list[int]) -> bytes:
        return _doubles(now_ms, self._cold_milli, self._kept_ms, *runs)

    def _keys_of(self, entry: _Entry) -> list[str]:
        rows = [self._keys.row(key) for key in entry.request.keys]
        for level, name in entry.kind.slots:
            rows += (*self._keys.slots(rows[level], name), self._keys.queue(rows[level], name))
        return rows

    def _merged(self, requests: Sequence[Request]) -> tuple[list[_Entry], Collection[_Kind]]:
        numbers: dict[_Place, int] = {}
        kinds: dict[_Place, _Kind] = {}
        entries: list[_Entry] = []
        latest: dict[str, _Entry] = {}  # by key
        number = 0
        plain: Parts | None = None  # those of the last kind, if it is a plain take
        last: _Entry | None = None
        for member, request in enumerate(requests):
            if last is not None and request is last.request and last.kind.joins:
                last.members.append(member)
                continue
            mode, keys, parts, max_wait_ms, _, _, _, place_ms = request
            if parts is not plain or mode is not TAKE or max_wait_ms or place_ms:
                place, kind = self._kind(request)
                kinds[place] = kind
                number = numbers.setdefault(place, len(kinds))
                plain = parts if mode is TAKE and not max_wait_ms and not place_ms else None
            last = latest.get(keys[0])
            if last is not None and _may_join(request, number, last, latest):
                last.members.append(member)
                continue
            last = entry = _Entry(request, kind, number, member)
            entries.append(entry)
            for key in keys:
                latest[key] = entry
        return entries, kinds.values()

    def _kind(self, request: Request) -> tuple[_Place, _Kind]:
        mode, _, parts, max_wait_ms, block_ms, keep_milli, _, place_ms = request
        place = (id(parts), id(mode), max_wait_ms, block_ms, keep_milli, place_ms)
        kept = self._kinds.get(place)
        if kept is None or kept.parts is not parts:
            if len(self._kinds) >= _KEPT_KINDS:
                self._kinds.clear()
            kept = self._kinds[place] = _Kind(request)
        return place, kept


def _may_join(request: Request, number: int, entry: _Entry, latest: dict[str, _Entry]) -> bool:
    """It may move next to an equal request, if no request in between has any of its keys."""
    keys = request.keys
    return (
        entry.number == number
        and entry.kind.joins
        and entry.request.keys == keys
        and (len(keys) == 1 or all(latest[key] is entry for key in keys))
    )


def _described(request: Request, slots: int) -> list[bytes | str]:
    """The numbers of a kind, and the names of its limits."""
    mode, keys, parts, max_wait_ms, block_ms, keep_milli, _, place_ms = request
    for_ms = place_ms if mode is TAKE else block_ms
    numbers = [_MODES[mode], max_wait_ms, for_ms, keep_milli, len(keys) + 3 * slots]
    for level, limit, amount_milli, revision in parts:
        numbers += [level, limit.capacity_milli, limit.refill_milli, limit.period_ms, amount_milli, revision]
    return [_doubles(*numbers), *(part.limit.name for part in parts)]


def _runs(entries: list[_Entry]) -> list[int]:
    runs: list[int] = []
    last_kind = last_count = 0
    for entry in entries:
        kind, count = entry.number, len(entry.members)
        if kind == last_kind and count == last_count:
            runs[-1] += 1
        else:
            runs += (kind, count, 1)
            last_kind, last_count = kind, count
    return runs


def _doubles(*numbers: int) -> bytes:
    """Integers that are all exact as doubles."""
    return pack(f"<{len(numbers)}d", *numbers)


def _bucket(limit: Limit, lease_id: str, capacity_milli: int, refill_milli: int, period_ms: int, *state: int) -> Bucket:
    tokens_milli, owed, *rest = state
    return Bucket(stored_limit(limit, capacity_milli, refill_milli, period_ms), tokens_milli - owed * _BLOCK, *rest)


def _slots(limit: Limit, lease_id: str, capacity_milli: int, refill_milli: int, period_ms: int, *state: int) -> Slots:
    return stored_slots(stored_limit(limit, capacity_milli, refill_milli, period_ms), lease_id, *state)


def read_row(reply: list[Any]) -> list[State]:
    """The buckets and slots of a row, from the reply of read.lua."""
    states: list[State] = []
    for at in range(0, len(reply), 1 + DESCRIBED):
        name, capacity_milli, refill_milli, period_ms, tokens, owed, *rest = reply[at : at + 1 + DESCRIBED]
        limit = Limit.from_stored(name.decode(), capacity_milli, refill_milli, period_ms)
        if limit.is_concurrent:
            settled_at_ms, _, blocked_until_ms, revision = rest
            states.append(Slots(limit, settled_at_ms, _holders(tokens), blocked_until_ms, revision))
        else:
            states.append(Bucket(limit, tokens - owed * _BLOCK, *rest))
    return states


def read_usage(reply: list[Any]) -> dict[str, dict[int, int]]:
    """The usage of a row by limit and hour, from the reply of usage.lua."""
    used: dict[str, dict[int, int]] = {}
    for name, hour, milli in zip(reply[::3], reply[1::3], reply[2::3]):
        hours = used.setdefault(name.decode(), {})
        hours[hour] = hours.get(hour, 0) + int(milli)
    return used


def _holders(reply: list[Any]) -> dict[str, tuple[int, int]]:
    return {
        lease_id.decode(): (int(milli), int(ends_ms))
        for lease_id, ends_ms, milli in zip(reply[::3], reply[1::3], reply[2::3])
    }
