"""One item during a round: what is believed of it, what is decided on that, and the write that makes it so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

from ...core.bucket import Bucket
from ...core.decide import FORCE, TAKE, Answer, Mode, Part, Request, decide
from ...core.limit import Limit
from ...core.units import MAX_DEBT_MILLI
from .forms import Form, ItemWrite, LimitWrite, Place
from .rows import NEW, Row, State, virtual_time, written_limit


class _Sum:
    """What is added to one limit, in the order in which it was decided, as V goes."""

    __slots__ = ("consumed_milli", "high", "lowest", "v")

    def __init__(self) -> None:
        self.v = 0
        self.lowest = 0
        self.high: int | None = None  # above V as it is now, counted from full
        self.consumed_milli = 0


class Ledger:
    """What is believed of an item, and decided on that.

    `fresh`: it comes from DynamoDB, in this call. `together`: it is to be written in a transaction. `insists`: only if
    it is what is believed, to the last digit. `throttled`: the last write of it was too much for DynamoDB.
    """

    def __init__(self, place: Place, row: Row | None, now_ms: int, seen_at_ms: Mapping[str, int] | None = None) -> None:
        self.place = place
        self.row = row
        self.now_ms = now_ms
        self.seen_at_ms = dict(seen_at_ms or {})  # of each limit, when it was last looked at
        self.fresh = self.trusted = self.throttled = False
        self._times: dict[str, int] = {}
        self.begin()

    @property
    def sure(self) -> bool:
        return self.fresh or self.trusted

    @property
    def blind(self) -> bool:
        """Nothing is known of a shard. It may not exist yet, and may not be made by the way."""
        return self.row is None and self.place.shard > 0

    @property
    def shards(self) -> int:
        """Of how many it is one; of one that nothing is known of, at least two."""
        return self.row.shard_count if self.row else 2 if self.place.shard else 1

    def begin(self) -> None:
        """A new round, on what is believed now."""
        self._sums: dict[str, _Sum] = {}
        self._changed: set[str] = set()  # by more than amounts: in their limit, or by a penalty
        self.together = self.insists = self.must_look = self.would_look = self.held = False
        self._start_from(self.row)

    def _start_from(self, row: Row | None) -> None:
        self._base = row or NEW
        self._buckets: dict[str, Bucket] = {}

    def _bucket(self, part: Part) -> Bucket:
        name = part.limit.name
        found = self._buckets.get(name)
        if found is None:
            found = self._buckets[name] = self._base.bucket(part, self._time(name))
            self.seen_at_ms[name] = found.settled_at_ms
        return found

    def _time(self, name: str) -> int:
        """When a limit is decided on: now, or when it was last looked at or written. Once it has come from DynamoDB in
        this call, it stays the same: those who write meanwhile do so later, and to run after them would have no end."""
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
        """What the answer to the parts of a request on this item would be."""
        parts = self._scaled(parts)
        buckets = [copy(self._bucket(part)) for part in parts]
        return decide(request._replace(parts=tuple(parts)), buckets, self.now_ms)

    def apply(self, request: Request, parts: Sequence[Part]) -> Answer:
        """Answer the parts of a request on this item, and let it have its effect."""
        parts = self._scaled(parts)
        buckets = [self._bucket(part) for part in parts]
        limits = [bucket.limit for bucket in buckets]
        answer = decide(request._replace(parts=tuple(parts)), buckets, self.now_ms)
        self._changed |= {limit.name for limit, bucket in zip(limits, buckets) if bucket.limit is not limit}
        if answer.allowed:
            for part, bucket in zip(parts, buckets):
                self._note(part, bucket.limit, request)
        return answer

    def reshaped(self, part: Part) -> Bucket:
        """What even a refused request does: the limit it brought holds from now on."""
        bucket = self._bucket(part)
        if bucket.limit != part.limit:
            bucket.reshape(part.limit, part.revision)
            self._changed.add(part.limit.name)
        return bucket

    def differs(self, parts: Sequence[Part]) -> bool:
        """Whether a request on this item brings a limit that is to replace the one there is."""
        for part in parts:
            bucket = copy(self._bucket(part))
            if bucket.limit != part.limit:
                bucket.reshape(part.limit, part.revision)
                if bucket.limit == part.limit:
                    return True
        return False

    def move(self, part: Part, amount_milli: int, mode: Mode = FORCE) -> None:
        self.apply(Request(mode, (), ()), [part._replace(amount_milli=amount_milli)])

    def _note(self, part: Part, limit: Limit, request: Request) -> None:
        if request.mode not in (TAKE, FORCE):
            self._changed.add(limit.name)
            return
        total = self._sums.setdefault(limit.name, _Sum())
        total.v += part.amount_milli * limit.period_ms
        total.consumed_milli += part.amount_milli // self.shards
        total.lowest = min(total.lowest, total.v)
        if request.mode is TAKE:
            most = limit.capacity_milli * limit.period_ms + request.max_wait_ms * limit.refill_milli - total.v
            total.high = most if total.high is None else min(total.high, most)

    def learn(self, row: Row | None, write: ItemWrite | None = None) -> None:
        """The item is so now, and if there is a `write`, because of it."""
        before = row if row is None or write is None else self._before(row, write)
        self.row = row
        self.fresh = row is not None
        self.trusted = False
        self._start_from(before)

    def replay(self) -> None:
        """Nothing was learnt: what was decided is decided again on the same."""
        self._start_from(self.row)

    def _before(self, row: Row, write: ItemWrite) -> Row:
        states = dict(row.states)
        for limit in write.limits:
            state = row.states[limit.name]
            if limit.form in (Form.BUSY, Form.GIVE):
                states[limit.name] = state._replace(v=state.v - limit.v)
            elif self.row is not None and limit.form is Form.REPLACE:
                states[limit.name] = self.row.states[limit.name]
            elif limit.form is Form.IDLE:  # it was full
                states[limit.name] = state._replace(v=limit.at_ms * state.limit.refill_milli)
            else:
                del states[limit.name]
        return row._replace(states=states)

    def write(self) -> ItemWrite | None:
        """What has to be written, or None if nothing has changed."""
        if self.row is None and self._changed:
            self.must_look = True  # what it has changed from is not known
            return None
        limits = [self._limit_write(name, bucket) for name, bucket in self._buckets.items() if bucket.changed]
        if not limits:
            return None
        full_at_ms = max(self._full_at_ms(limit) for limit in limits)
        return ItemWrite(self.place, self.row, self.now_ms, full_at_ms, limits)

    def written(self, write: ItemWrite) -> Row:
        """The item after a write, if nobody else has written to it."""
        row = self.row or NEW
        states = dict(row.states)
        for limit in write.limits:
            bucket = self._buckets[limit.name]
            consumed_milli = limit.consumed_milli
            if limit.name in states:
                consumed_milli += states[limit.name].consumed_milli
            if limit.form in (Form.BUSY, Form.GIVE, Form.IDLE):
                before = states[limit.name]
                v = limit.v if limit.form is Form.IDLE else before.v + limit.v
                states[limit.name] = before._replace(v=v, at_ms=limit.at_ms, consumed_milli=consumed_milli)
                continue
            blocked = bucket.blocked_until_ms if "!" in limit.written else 0
            states[limit.name] = State(
                bucket.limit, limit.v, limit.at_ms, limit.revision, limit.written, blocked, consumed_milli
            )
        return row._replace(states=states, ttl=write.ttl or row.ttl, writes=row.writes + 1)

    def _limit_write(self, name: str, bucket: Bucket) -> LimitWrite:
        total = self._sums.get(name, _Sum())
        state = self.row.states.get(name) if self.row else None
        limit, at_ms = bucket.limit, bucket.settled_at_ms
        now_v = at_ms * limit.refill_milli
        blocked = bucket.blocked_until_ms if bucket.blocked_until_ms > at_ms else 0
        written = written_limit(limit, blocked)
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

    def _commutes(self, state: State, bucket: Bucket) -> bool:
        """Whether only amounts have changed, so that the write need not insist on what V was."""
        return (
            not self.insists
            and bucket.tokens_milli > -MAX_DEBT_MILLI
            and bucket.limit.name in self._sums
            and bucket.limit.name not in self._changed
        )

    def _commuting(self, state: State, bucket: Bucket, total: _Sum, now_v: int) -> tuple[Form, int, int, int]:
        limit = bucket.limit
        if total.high is None and total.v == total.lowest:
            return Form.GIVE, total.v, 0, 0
        if state.v < now_v and not total.lowest:
            return Form.IDLE, now_v + total.v, 0, now_v
        low = now_v - total.lowest
        if state.v < low:
            return Form.REPLACE, virtual_time(bucket), 0, state.v
        room = limit.capacity_milli * limit.period_ms
        high = now_v + total.high if total.high is not None else state.v + room
        return Form.BUSY, total.v, low, high

    def _full_at_ms(self, limit: LimitWrite) -> int:
        """The latest moment at which the bucket can be full again, whatever V was in the allowed range."""
        bucket = self._buckets[limit.name]
        if limit.form is Form.GIVE:
            return limit.at_ms
        latest = limit.high + limit.v if limit.form is Form.BUSY else limit.v
        return max(-(-latest // bucket.limit.refill_milli), bucket.blocked_until_ms)
