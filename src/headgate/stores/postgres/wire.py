"""A batch as one call of settle.sql, and its reply as answers.

Equal requests for the same buckets become one entry with a count: of equal requests at one moment, the first ones pass,
and the rest do not. A request for slots is an entry of its own, with its lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.bucket import Bucket
from ...core.decide import FORCE, LOWER, PEEK, PENALIZE, RENEW, TAKE, Answer, Parts, Request
from ...core.limit import Limit
from ...core.slots import OVERTAKES, Slots
from ...core.stored import bucket_as_stored
from ..replies import Place, read_answers, stored_limit, stored_slots
from . import literal

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


def _shape(limit: Limit, moment_ms: int) -> tuple[int, int, int]:
    """A limit in three numbers; that of a quota with a calendar, with its window at the moment."""
    if limit.calendar is None:
        return limit.capacity_milli, limit.refill_milli, limit.period_ms
    starts_ms, ends_ms = limit.calendar.window(moment_ms)
    return limit.capacity_milli, -ends_ms, starts_ms


def _plain_arguments(entry: _Entry, now_ms: int, moments: Mapping[Place, int]) -> tuple[bytes, ...]:
    request = entry.request
    ((level, limit, amount_milli, revision),) = request.parts
    key = request.keys[level]
    shape = _shape(limit, moments.get((key, limit.name), now_ms))
    numbers = (len(entry.members), *shape, amount_milli, revision)
    return (key.encode(), limit.name.encode(), *[b"%d" % number for number in numbers])


def _arguments(
    entries: Sequence[_Entry], listener: str, now_ms: int, moments: Mapping[Place, int]
) -> tuple[bytes, ...]:
    places = _places(entries)
    numbers = {place: number for number, place in enumerate(places, 1)}  # PostgreSQL counts from one
    asked: list[int] = []
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
        head = len(asked) - 1
        for level, limit, amount_milli, revision in parts:
            place = (keys[level], limit.name)
            if limit.calendar is not None:
                asked[head] = -len(parts)
            asked += (numbers[place], *_shape(limit, moments.get(place, now_ms)), amount_milli, revision)
    keys_and_names = literal.texts(key for key, _ in places), literal.texts(name for _, name in places)
    return (*keys_and_names, literal.numbers(asked), literal.texts(leases))


def _places(entries: Sequence[_Entry]) -> list[Place]:
    """Key and limit name of each bucket, once, in the order in which settle.sql locks them."""
    requests = [entry.request for entry in entries]
    return sorted({(request.keys[part.level], part.limit.name) for request in requests for part in request.parts})


def _bucket(limit: Limit, lease_id: str, capacity_milli: int, refill_milli: int, period_ms: int, *state: int) -> Bucket:
    *numbers, _ = state
    if refill_milli < 0:
        quota = bucket_as_stored(limit, limit.name, capacity_milli, refill_milli, period_ms, *numbers)
        assert quota is not None  # the server has looked
        return quota
    return Bucket(stored_limit(limit, capacity_milli, refill_milli, period_ms), *numbers)


def _slots(limit: Limit, lease_id: str, capacity_milli: int, refill_milli: int, period_ms: int, *state: int) -> Slots:
    held_milli, *rest, own_milli = state
    limit = stored_limit(limit, capacity_milli, refill_milli, period_ms)
    return stored_slots(limit, lease_id, held_milli, own_milli, *rest)
