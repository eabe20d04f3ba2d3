"""A batch as one call of settle.sql, and its reply as answers.

Equal requests for the same buckets become one entry with a count: of equal requests at one moment, the first ones pass,
and the rest do not. A request for slots is an entry of its own, with its lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TypeAlias
from zlib import crc32

from ...core.bucket import Bucket
from ...core.calendar import Calendar
from ...core.decide import FORCE, LOWER, PEEK, PENALIZE, RENEW, TAKE, Answer, Parts, Request
from ...core.limit import AT_ONCE, Limit
from ...core.quota import Quota
from ...core.slots import OVERTAKES, Slots
from ..replies import read_answers, stored_limit, stored_slots
from . import literal

Place: TypeAlias = "tuple[str, str]"  # bucket key and limit name

LOWEST_PERIOD = -(1 << 32)
_MODES = {TAKE: 0, FORCE: 1, PEEK: 2, PENALIZE: 3, LOWER: 4, RENEW: 5}


class _Entry:
    """Equal requests. `members`: their indexes in the batch."""

    __slots__ = ("members", "request")

    def __init__(self, request: Request, member: int) -> None:
        self.request = request
        self.members = [member]


class PostgresBatch:
    """An encoded batch. `arguments`: all but the time, how long usage is kept, and how long to wait for locks.
    A quota comes with its window at `now_ms`, or at its own of the `moments`.
    `plain`: it only takes from one bucket, for take.sql, or from one quota. `looks`: it changes nothing.

    `repeatable`: if it is done twice by mistake, it may take too much, but never gives back too much.
    """

    __slots__ = ("_entries", "arguments", "listener", "looks", "of_quota", "plain", "repeatable", "requests")

    def __init__(
        self, requests: Sequence[Request], listener: str, now_ms: int, moments: Mapping[Place, int] | None = None
    ) -> None:
        """`listener`: the name under which the server notifies this process of free slots; empty if it cannot."""
        self._entries = _merged(requests)
        self.requests = requests
        self.listener = listener
        self.plain = len(self._entries) == 1 and _is_plain(requests[0])
        self.of_quota = self.plain and requests[0].parts[0].limit.is_quota
        self.looks = not self.plain and all(entry.request.mode is PEEK for entry in self._entries)
        self.repeatable = self.plain or all(_is_repeatable(entry.request) for entry in self._entries)
        if self.plain:
            self.arguments = _plain_arguments(self._entries[0], now_ms, moments or {})
        else:
            self.arguments = _arguments(self._entries, listener, now_ms, moments or {})

    def answers(self, reply: Sequence[int]) -> list[Answer]:
        return read_answers(self._entries, len(self.requests), reply, _bucket, _slots)


def _is_plain(request: Request) -> bool:
    mode, _, parts, max_wait_ms, *_ = request
    return mode is TAKE and len(parts) == 1 and not max_wait_ms and bool(parts[0].limit.refill_milli)


def _is_repeatable(request: Request) -> bool:
    # Slots that were taken twice would be renewed twice, but given back once.
    return request.mode in (PEEK, LOWER, RENEW) or (request.mode is TAKE and not _has_slots(request.parts))


def _merged(requests: Sequence[Request]) -> list[_Entry]:
    entries: list[_Entry] = []
    latest: dict[str, _Entry] = {}  # by key
    for member, request in enumerate(requests):
        entry = latest.get(request.keys[0]) if request.keys else None
        if entry is not None and _may_join(request, entry, latest):
            entry.members.append(member)
            continue
        entry = _Entry(request, member)
        entries.append(entry)
        for key in request.keys:
            latest[key] = entry
    return entries


def _may_join(request: Request, entry: _Entry, latest: dict[str, _Entry]) -> bool:
    """It may move next to an equal request, if no request in between has any of its keys."""
    keys = request.keys
    return (
        keys == entry.request.keys
        and _are_equal(request, entry.request)
        and (len(keys) == 1 or all(latest[key] is entry for key in keys))
    )


def _are_equal(request: Request, other: Request) -> bool:
    """Of one kind, and interchangeable."""
    mode, _, parts, max_wait_ms, _, _, lease_id, _ = request
    return (
        mode is other.mode
        and (mode is TAKE or mode is PEEK)
        and max_wait_ms == other.max_wait_ms
        and (parts is other.parts or parts == other.parts)
        and not (lease_id or _has_slots(parts))
    )


def _has_slots(parts: Parts) -> bool:
    return any(not part.limit.refill_milli for part in parts)


def _period(limit: Limit) -> int:
    """As it is stored: below zero a number that tells calendars apart."""
    return limit.period_ms if limit.calendar is None else _number_of(limit.calendar)


@lru_cache(maxsize=1024)
def _number_of(calendar: Calendar) -> int:
    return -1 - crc32(repr(calendar).encode())


def stored_quota(limit: Limit, capacity_milli: int, period_ms: int) -> Limit:
    """The limit of a stored quota; without its calendar, if that is not the one of `limit`."""
    if period_ms == _period(limit):
        same = capacity_milli == limit.capacity_milli
        return (
            limit if same else Limit.from_stored(limit.name, capacity_milli, AT_ONCE, limit.period_ms, limit.calendar)
        )
    return Limit.from_stored(limit.name, capacity_milli, AT_ONCE, max(period_ms, 0))


def _plain_arguments(entry: _Entry, now_ms: int, moments: Mapping[Place, int]) -> tuple[bytes, ...]:
    request = entry.request
    ((level, limit, amount_milli, revision),) = request.parts
    key = request.keys[level]
    shape: tuple[int, ...] = (limit.capacity_milli, limit.refill_milli, limit.period_ms)
    if limit.refill_milli == AT_ONCE:
        window = limit.calendar.window(moments.get((key, limit.name), now_ms)) if limit.calendar else (0, 0)
        shape = (limit.capacity_milli, _period(limit), *window)
    numbers = (len(entry.members), *shape, amount_milli, revision)
    return (key.encode(), limit.name.encode(), *[b"%d" % number for number in numbers])


def _arguments(
    entries: Sequence[_Entry], listener: str, now_ms: int, moments: Mapping[Place, int]
) -> tuple[bytes, ...]:
    places = _places(entries)
    numbers = {place: number for number, place in enumerate(places, 1)}  # PostgreSQL counts from one
    asked: list[int] = []
    windows: dict[tuple[int, ...], int] = {}
    leases: list[str] = []
    for entry in entries:
        mode, keys, parts, max_wait_ms, block_ms, keep_milli, lease_id, place_ms = entry.request
        lease = 0
        if _has_slots(parts):
            lease = len(leases) + 1
            leases += [lease_id, listener] if place_ms > 0 else [lease_id]
            if mode is TAKE:
                block_ms = place_ms - OVERTAKES
        asked += (_MODES[mode], len(entry.members), max_wait_ms, block_ms, keep_milli, lease, len(parts))
        for level, limit, amount_milli, revision in parts:
            place, refill_milli = (keys[level], limit.name), limit.refill_milli
            if limit.calendar is not None:
                window = (_period(limit), *limit.calendar.window(moments.get(place, now_ms)))
                refill_milli = -windows.setdefault(window, 2 + 3 * len(windows))
            asked += (numbers[place], limit.capacity_milli, refill_milli, limit.period_ms, amount_milli, revision)
    if windows:
        asked[:0] = (-3 * len(windows), *chain.from_iterable(windows))
    keys_and_names = literal.texts(key for key, _ in places), literal.texts(name for _, name in places)
    return (*keys_and_names, literal.numbers(asked), literal.texts(leases))


def _places(entries: Sequence[_Entry]) -> list[Place]:
    """Key and limit name of each bucket, once, in the order in which settle.sql locks them."""
    requests = [entry.request for entry in entries]
    return sorted({(request.keys[part.level], part.limit.name) for request in requests for part in request.parts})


def _bucket(limit: Limit, lease_id: str, capacity_milli: int, refill_milli: int, period_ms: int, *state: int) -> Bucket:
    *numbers, _ = state
    if refill_milli == AT_ONCE:
        return Quota(stored_quota(limit, capacity_milli, period_ms), *numbers)
    return Bucket(stored_limit(limit, capacity_milli, refill_milli, period_ms), *numbers)


def _slots(limit: Limit, lease_id: str, capacity_milli: int, refill_milli: int, period_ms: int, *state: int) -> Slots:
    held_milli, *rest, own_milli = state
    limit = stored_limit(limit, capacity_milli, refill_milli, period_ms)
    return stored_slots(limit, lease_id, held_milli, own_milli, *rest)
