"""One item during a round: its assumed state, the decisions on it, and the write that makes them so.

For buckets, takes and refunds are added up and written as one difference of V.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from ...core.bucket import Bucket
from ...core.decide import FORCE, RENEW, TAKE, Answer, Level, Mode, Part, Request, decide
from ...core.limit import Limit
from ...core.slots import Slots
from ...core.units import MAX_DEBT_MILLI
from .conditional_writes import Form, ItemWrite, LimitWrite, Write
from .exchange import Item
from .places import ItemPlace
from .rows import NEW, Row, RowState, begins_with_use, full_v, read_row, units, virtual_time, written_limit

if TYPE_CHECKING:
    from .cache import ItemSource


class Ledger(ABC):
    """The account of one item during a call: its assumed state, the decisions on it, and the write.

    `fresh`: DynamoDB returned it in this call. `together`: it is written in a transaction. `insists`: only if its state
    is exactly as assumed. `throttled`: DynamoDB throttled its last write. `vanished`: it existed before and no longer
    does.
    """

    source: ItemSource  # where it came from, and what it learns goes to
    _base: Row

    def __init__(
        self, place: ItemPlace, row: Row | None, now_ms: int, seen_at_ms: Mapping[str, int] | None = None
    ) -> None:
        self.place = place
        self.row = row
        self.now_ms = now_ms
        self.seen_at_ms = dict(seen_at_ms or {})  # for each limit, when it was last read
        self.fresh = self.trusted = self.throttled = False
        self.doubtful = self.looked_into = False  # a write was invalid: it must be read; it was read
        self._times: dict[str, int] = {}
        self.begin()

    @property
    def sure(self) -> bool:
        return self.fresh or self.trusted

    @property
    def blind(self) -> bool:
        """Nothing is known of a shard, which may not exist yet and must not be created by a write; or it may be
        corrupt.
        """
        return (self.row is None and self.place.shard > 0) or self.doubtful

    @property
    def shards(self) -> int:
        """The number of shards; at least two if nothing is known of one with a higher number."""
        return self.row.shard_count if self.row else 2 if self.place.shard else 1

    def begin(self) -> None:
        """Start a round from the assumed state."""
        self._changed: set[str] = set()  # by more than amounts: a new limit, or a penalty
        self.together = self.insists = self.must_look = self.would_look = self.held = self.vanished = False
        self._start_from(self.row)

    @abstractmethod
    def _start_from(self, row: Row | None) -> None:
        """Decide on this state from now on."""

    @staticmethod
    @abstractmethod
    def read(item: Item) -> Row:
        """The row in an item."""

    @abstractmethod
    def _state(self, part: Part) -> Bucket | Slots:
        """The state of a part's limit, after the decisions so far."""

    @abstractmethod
    def _kept(self) -> MutableMapping[str, Any]:
        """The states that this round has used so far, by limit."""

    @abstractmethod
    def _note(self, part: Part, limit: Limit, request: Request) -> None:
        """A part took effect: note what to write, and on which condition."""

    @abstractmethod
    def _before(self, row: Row, write: Write) -> Row:
        """The row before a write, of which `row` is the result."""

    @abstractmethod
    def write(self) -> Write | None:
        """The write to send, or None if nothing has changed."""

    @abstractmethod
    def written(self, write: Write) -> Row:
        """The row after a write, if there was no other writer."""

    def _time(self, name: str) -> int:
        """The time at which a limit is decided: now, or when it was last read or written, if that is later. Once
        DynamoDB has returned the item in this call, it stays the same: other writers move it forward, and following
        them would not end.
        """
        time_ms = self._times.get(name)
        if time_ms is None:
            state = self._base.states.get(name)
            time_ms = max(self.now_ms, self.seen_at_ms.get(name, 0), state.at_ms if state else 0)
            if self.fresh:
                self._times[name] = time_ms
        return time_ms

    def _scaled(self, parts: Sequence[Part]) -> Sequence[Part]:
        shards = self.shards
        return parts if shards == 1 else [part._replace(amount_milli=part.amount_milli * shards) for part in parts]

    def look(self, request: Request, parts: Sequence[Part]) -> Answer:
        """The answer to these parts of a request, without effect."""
        parts = self._scaled(parts)
        return decide(request._replace(parts=tuple(parts)), self._copies(parts), self.now_ms)

    def _copies(self, parts: Sequence[Part]) -> list[Bucket | Slots]:
        """Of the states. If the item lacks a limit, its state is not kept: a later request may have another limit."""
        kept = self._kept()
        lacking = [part.limit.name for part in parts if part.limit.name not in kept and not self._base.has(part.limit)]
        copies = [copy(self._state(part)) for part in parts]
        for name in lacking:
            kept.pop(name)
        return copies

    def apply(self, request: Request, parts: Sequence[Part]) -> Answer:
        """Decide these parts of a request, with their effect on the item."""
        parts = self._scaled(parts)
        states = [self._state(part) for part in parts]
        limits = [state.limit for state in states]
        answer = decide(request._replace(parts=tuple(parts)), states, self.now_ms)
        self._changed |= {limit.name for limit, state in zip(limits, states) if state.limit is not limit}
        if answer.allowed or request.mode is RENEW:
            for part, state in zip(parts, states):
                self._note(part, state.limit, request)
        return answer

    def stays(self, request: Request, parts: Sequence[Part]) -> bool:
        """Whether a request that is never refused changes nothing here."""
        parts = self._scaled(parts)
        states = [self._state(part) for part in parts]
        twins = [_twin(state) for state in states]
        decide(request._replace(parts=tuple(parts)), twins, self.now_ms)
        return all(map(_same, states, twins))

    def reshape(self, part: Part) -> None:
        """What even a refused request does: its limit takes effect."""
        state = self._state(part)
        if state.limit != part.limit:
            state.reshape(part.limit, part.revision)
            self._changed.add(part.limit.name)

    def differs(self, parts: Sequence[Part]) -> bool:
        """Whether a request has a limit that replaces the stored one."""
        for part, state in zip(parts, self._copies(parts)):
            if state.limit != part.limit:
                state.reshape(part.limit, part.revision)
                if state.limit == part.limit:
                    return True
        return False

    def learn(self, row: Row | None, write: Write | None = None) -> None:
        """The item has this row now; if there is a `write`, because of it."""
        before = row if row is None or write is None else self._before(row, write)
        self.row = row
        self.fresh = row is not None
        self.looked_into, self.doubtful = self.looked_into or self.doubtful, False
        self.trusted = False
        self._start_from(before)

    def replay(self) -> None:
        """Nothing was learnt: decide again on the same state."""
        self._start_from(self.row)


def _twin(state: Bucket | Slots) -> Bucket | Slots:
    twin = copy(state)
    twin.changed = False
    if isinstance(twin, Slots):
        twin.holders = dict(twin.holders)
    return twin


def _same(state: Bucket | Slots, after: Bucket | Slots) -> bool:
    if isinstance(state, Slots) and isinstance(after, Slots):
        blocked = after.blocked_until_ms != state.blocked_until_ms
        return state.holders == after.holders and state.limit == after.limit and not blocked
    return not after.changed


class _Sum:
    """The sum of the amounts for one limit, in the order in which they were decided, in units of V."""

    __slots__ = ("consumed_milli", "high", "lowest", "v")

    def __init__(self) -> None:
        self.v = 0
        self.lowest = 0
        self.high: int | None = None  # the highest V allowed, relative to now
        self.consumed_milli = 0


class BucketLedger(Ledger):
    """The buckets of an item. `usage_ms`: how long usage is kept."""

    read = staticmethod(read_row)
    usage_ms = 0

    def begin(self) -> None:
        self._sums: dict[str, _Sum] = {}
        self._insisted: set[str] = set()  # limits for which "nothing to do" depends on V
        super().begin()

    def _start_from(self, row: Row | None) -> None:
        self._base = row or NEW
        self._buckets: dict[str, Bucket] = {}

    def _kept(self) -> MutableMapping[str, Any]:
        return self._buckets

    def _state(self, part: Part) -> Bucket:
        name = part.limit.name
        found = self._buckets.get(name)
        if found is None:
            found = self._buckets[name] = self._base.bucket(part, self._time(name))
            if found.changed:
                self._changed.add(name)
            self.seen_at_ms[name] = found.settled_at_ms
        return found

    def bucket(self, part: Part) -> Bucket:
        """The bucket of a part, under the part's limit."""
        self.reshape(part)
        return self._state(part)

    def missing_milli(self, part: Part) -> int:
        """How much can be given back, in millitokens of a shard, which are multiplied by the number of shards."""
        bucket = self._state(part)
        return bucket.limit.capacity_milli - bucket.tokens_milli

    def move(self, part: Part, amount_milli: int, mode: Mode = FORCE) -> None:
        self.apply(Request(mode, (), ()), [part._replace(amount_milli=amount_milli)])

    def _note(self, part: Part, limit: Limit, request: Request) -> None:
        if request.mode not in (TAKE, FORCE):
            self._changed.add(limit.name)
            self._insisted.add(limit.name)
            return
        total = self._sums.setdefault(limit.name, _Sum())
        unit = units(limit)
        total.v += part.amount_milli * unit
        total.consumed_milli += part.amount_milli // self.shards
        total.lowest = min(total.lowest, total.v)
        if request.mode is TAKE or (self.shards > 1 and limit.is_quota and part.amount_milli > 0 and not self.together):
            most = limit.capacity_milli * unit - total.v
            if request.max_wait_ms and not limit.is_quota:
                most += request.max_wait_ms * limit.refill_milli
            total.high = most if total.high is None else min(total.high, most)

    def _before(self, row: Row, write: Write) -> Row:
        assert isinstance(write, ItemWrite)
        states = dict(row.states)
        for limit in write.limits:
            state = row.states[limit.name]
            if limit.form in (Form.BUSY, Form.GIVE):
                states[limit.name] = state._replace(v=state.v - limit.v)
            elif self.row is not None and limit.form in (Form.REPLACE, Form.OPEN):
                states[limit.name] = self.row.states[limit.name]
            elif limit.form is Form.IDLE:  # it was full
                states[limit.name] = state._replace(v=full_v(state.limit, limit.at_ms))
            else:
                del states[limit.name]
        return row._replace(states=states)

    def write(self) -> ItemWrite | None:
        if self.row is None and self._changed:
            self.must_look = True  # the state before the change is unknown
            return None
        if not any(bucket.changed for bucket in self._buckets.values()):
            self.must_look = self.must_look or (bool(self._insisted) and not self.fresh)
            return None
        limits = self._limit_writes()
        full_at_ms = max(self._full_at_ms(limit) for limit in limits)
        return ItemWrite(self.place, self.row, self.now_ms, full_at_ms, limits, self.usage_ms)

    def written(self, write: Write) -> Row:
        assert isinstance(write, ItemWrite)
        row = self.row or NEW
        states, used = dict(row.states), dict(row.used)
        for limit in write.limits:
            bucket = self._buckets[limit.name]
            consumed_milli = limit.consumed_milli
            if write.counts(limit):
                used[limit.used_name] = used.get(limit.used_name, 0) + consumed_milli
            if limit.name in states:
                consumed_milli += states[limit.name].consumed_milli
            if limit.form in (Form.BUSY, Form.GIVE, Form.IDLE):
                before = states[limit.name]
                v = limit.v if limit.form is Form.IDLE else before.v + limit.v
                states[limit.name] = before._replace(v=v, at_ms=limit.at_ms, consumed_milli=consumed_milli)
                continue
            blocked = bucket.blocked_until_ms if "!" in limit.written else 0
            states[limit.name] = RowState(
                bucket.limit,
                limit.v,
                limit.at_ms,
                limit.revision,
                limit.written,
                blocked,
                consumed_milli,
                ends_ms=bucket.remainder if bucket.limit.is_quota else 0,
            )
        return row._replace(states=states, ttl=write.ttl or row.ttl, writes=row.writes + 1, used=used)

    def _limit_writes(self) -> list[LimitWrite]:
        return [
            self._limit_write(name, bucket)
            for name, bucket in self._buckets.items()
            if bucket.changed or name in self._insisted
        ]

    def _limit_write(self, name: str, bucket: Bucket) -> LimitWrite:
        total = self._sums.get(name, _Sum())
        state = self.row.states.get(name) if self.row else None
        limit, at_ms = bucket.limit, bucket.settled_at_ms
        now_v = full_v(limit, at_ms)
        blocked = bucket.blocked_until_ms if bucket.blocked_until_ms > at_ms else 0
        written = written_limit(limit, blocked, bucket.remainder)
        form, v, low, high = Form.REPLACE, virtual_time(bucket), 0, 0
        if state is None:
            form = Form.MISSING if self.row is not None and self.row.states else Form.UPSERT
            high = now_v
        else:
            high = state.v
            if self._commutes(state, bucket):
                form, v, low, high = self._commuting(state, bucket, total, now_v)
        before = state.written if state else written
        return LimitWrite(name, form, v, at_ms, total.consumed_milli, low, high, before, written, bucket.revision)

    def _commutes(self, state: RowState, bucket: Bucket) -> bool:
        """Whether only amounts have changed, so that V need not be what it was."""
        return (
            not self.insists
            and bucket.tokens_milli > -MAX_DEBT_MILLI
            and bucket.limit.name in self._sums
            and bucket.limit.name not in self._changed
        )

    def _commuting(self, state: RowState, bucket: Bucket, total: _Sum, now_v: int) -> tuple[Form, int, int, int]:
        limit = bucket.limit
        if limit.is_quota and state.ends_ms <= bucket.settled_at_ms:
            return Form.OPEN, virtual_time(bucket), 0, 0
        begins = begins_with_use(limit)  # with the next take another window, when nothing is missing
        low = now_v + begins - total.lowest
        if total.high is None and total.v == total.lowest and (self.shards == 1 or state.v < low):
            return Form.GIVE, total.v, 0, 0
        if state.v < now_v and not total.lowest and not begins:
            return Form.IDLE, now_v + total.v, 0, now_v
        if state.v < low:
            return Form.REPLACE, virtual_time(bucket), 0, state.v
        room = limit.capacity_milli * units(limit)
        high = now_v + total.high if total.high is not None else state.v + room
        return Form.BUSY, total.v, low, high

    def _full_at_ms(self, limit: LimitWrite) -> int:
        """The latest time at which the bucket is full again, for any V in the allowed range."""
        bucket = self._buckets[limit.name]
        if limit.form is Form.GIVE:
            return limit.at_ms
        if bucket.limit.is_quota:
            return max(limit.at_ms, bucket.remainder, bucket.blocked_until_ms)
        latest = limit.high + limit.v if limit.form is Form.BUSY else limit.v
        return max(-(-latest // bucket.limit.refill_milli), bucket.blocked_until_ms)


def longest_wait(levels: Iterable[Level]) -> int | None:
    """The longest wait of all levels."""
    return longest_of(wait_ms for _, wait_ms in levels)


def longest_of(waits: Iterable[int | None]) -> int | None:
    """The longest wait of all, or None if one of them never ends."""
    longest = 0
    for wait_ms in waits:
        if wait_ms is None:
            return None
        longest = max(longest, wait_ms)
    return longest
