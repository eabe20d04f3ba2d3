"""Buckets during a round: takes and refunds are added up, and written as what comes to V."""

from __future__ import annotations

from ...core.bucket import Bucket
from ...core.decide import FORCE, TAKE, Mode, Part, Request
from ...core.limit import Limit
from ...core.units import MAX_DEBT_MILLI
from .conditional_writes import Form, ItemWrite, LimitWrite, Write
from .ledger import Ledger
from .rows import NEW, Row, State, read_row, virtual_time, written_limit


class _Sum:
    """What is added to one limit, in the order in which it was decided, as V goes."""

    __slots__ = ("consumed_milli", "high", "lowest", "v")

    def __init__(self) -> None:
        self.v = 0
        self.lowest = 0
        self.high: int | None = None  # above V as it is now, counted from full
        self.consumed_milli = 0


class BucketLedger(Ledger):
    """`usage_ms`: how long what is used is to be known."""

    read = staticmethod(read_row)
    usage_ms = 0

    def begin(self) -> None:
        self._sums: dict[str, _Sum] = {}
        self._insisted: set[str] = set()  # limits on whose V it depends whether there was anything to do
        super().begin()

    def _start_from(self, row: Row | None) -> None:
        self._base = row or NEW
        self._buckets: dict[str, Bucket] = {}

    def _state(self, part: Part) -> Bucket:
        name = part.limit.name
        found = self._buckets.get(name)
        if found is None:
            found = self._buckets[name] = self._base.bucket(part, self._time(name))
            self.seen_at_ms[name] = found.settled_at_ms
        return found

    def bucket(self, part: Part) -> Bucket:
        """The bucket of a part, under the limit that the part has brought."""
        self.reshape(part)
        return self._state(part)

    def missing_milli(self, part: Part) -> int:
        """What can be given back, in millitokens of a shard: as many times more as there are shards."""
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
        total.v += part.amount_milli * limit.period_ms
        total.consumed_milli += part.amount_milli // self.shards
        total.lowest = min(total.lowest, total.v)
        if request.mode is TAKE:
            most = limit.capacity_milli * limit.period_ms + request.max_wait_ms * limit.refill_milli - total.v
            total.high = most if total.high is None else min(total.high, most)

    def _before(self, row: Row, write: Write) -> Row:
        assert isinstance(write, ItemWrite)
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
        if self.row is None and self._changed:
            self.must_look = True  # what it has changed from is not known
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
            states[limit.name] = State(
                bucket.limit, limit.v, limit.at_ms, limit.revision, limit.written, blocked, consumed_milli
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
        low = now_v - total.lowest
        if total.high is None and total.v == total.lowest and (self.shards == 1 or state.v < low):
            return Form.GIVE, total.v, 0, 0
        if state.v < now_v and not total.lowest:
            return Form.IDLE, now_v + total.v, 0, now_v
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
