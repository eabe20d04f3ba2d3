"""A request on all shards of its buckets: because it is too large for one shard, or one refuses it, or it reads them
all.

All shards are read, and the request is decided on their sum. What it takes from each is written in one transaction, all
or nothing. A transaction has room for 100 items, and a level has at most 64. If a request needs more, it is written
level by level, each in its own transaction, and so exactly once. If a level refuses, the tokens taken from earlier
levels are given back.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from copy import copy

from ...core.bucket import Bucket
from ...core.decide import FORCE, LOWER, PEEK, PENALIZE, RENEW, TAKE, Answer, Level, Part, Request, refund
from ...core.errors import Contended, HeadgateError
from ...plan import Plan, Sleep
from .cache import Cache
from .conditional_writes import Write
from .deliver import Deliverer
from .exchange import MoreTime
from .items import read_items_plan
from .ledger import BucketLedger, Ledger, longest_of, longest_wait
from .namespaces import Namespaces
from .places import ItemPlace
from .rows import NEW, Row, begins_with_use, has_buckets, read_row
from .unite import Uniter, united
from .usage import UsageCounters
from .writer import TOGETHER, Writer, Writes

_SLACK = 2  # take from shards with this many times the amount, because others take at the same time


class Pool:
    """All shards of the buckets of an entity on a resource, as one."""

    def __init__(self, ledgers: Sequence[BucketLedger]) -> None:
        self.ledgers = ledgers

    @property
    def is_split(self) -> bool:
        return self.ledgers[0].shards > 1

    def buckets(self, part: Part) -> list[Bucket]:
        return [ledger.bucket(part) for ledger in self.ledgers]

    def wait_ms(self, part: Part) -> int | None:
        """The time until all shards together have the amount."""
        buckets = self.buckets(part)
        if part.amount_milli > sum(bucket.limit.capacity_milli // one.shards for one, bucket in self._both(buckets)):
            return None
        blocked = max(bucket.blocked_until_ms - bucket.settled_at_ms for bucket in buckets)
        low, high = max(0, blocked), max(bucket.full_at_ms() - bucket.settled_at_ms for bucket in buckets)
        while low < high:
            middle = (low + high) // 2
            if sum(self._there(buckets, middle)) >= part.amount_milli:
                high = middle
            else:
                low = middle + 1
        return low

    def _both(self, buckets: list[Bucket]) -> zip[tuple[BucketLedger, Bucket]]:
        return zip(self.ledgers, buckets)

    def _there(self, buckets: list[Bucket], wait_ms: int) -> list[int]:
        """What each shard has after a while, in real millitokens."""
        found = []
        for ledger, bucket in self._both(buckets):
            later = copy(bucket)
            later.settle(bucket.settled_at_ms + wait_ms)
            found.append(later.tokens_milli // ledger.shards)
        return found

    def available_milli(self, part: Part) -> int:
        buckets = self.buckets(part)
        if any(bucket.blocked_until_ms > bucket.settled_at_ms for bucket in buckets):
            return min(0, sum(self._there(buckets, 0)))
        return sum(self._there(buckets, 0))

    def take(self, part: Part, wait_ms: int, *, again: bool) -> None:
        """`again`: other writers were faster."""
        there = self._there(self.buckets(part), wait_ms)
        for ledger, share in zip(self.ledgers, (_of_some if again else _of_few)(part.amount_milli, there)):
            if share:
                ledger.insists = ledger.insists or wait_ms > 0
                ledger.move(part, share, FORCE if wait_ms else TAKE)

    def force(self, part: Part) -> None:
        there = self._there(self.buckets(part), 0)
        shares = self._given(part, there) if part.amount_milli < 0 else self._charged(part.amount_milli, there)
        for ledger, share in zip(self.ledgers, shares):
            if share:
                ledger.move(part, share)

    def _charged(self, amount_milli: int, there: list[int]) -> list[int]:
        """All that is there, and an equal share of the debt: a shard without debt would give its tokens away."""
        shares = _of_few(amount_milli, there)
        return [share + debt for share, debt in zip(shares, self._shared(amount_milli - sum(shares)))]

    def _shared(self, debt_milli: int) -> list[int]:
        debts = [debt_milli // ledger.shards for ledger in self.ledgers]
        debts[0] += debt_milli - sum(debts)
        return debts

    def even_out(self, part: Part) -> None:
        """Under a smaller limit some shards may be in debt. The others may not have tokens to give away then."""
        there = self._there(self.buckets(part), 0)
        if not min(there) < 0 <= max(there):
            return
        if sum(there) < 0:
            moves = [has + debt for has, debt in zip(there, self._shared(-sum(there)))]
        else:
            paid = _of_few(-sum(has for has in there if has < 0), there)
            moves = [share if has > 0 else has for has, share in zip(there, paid)]
        for ledger, milli in zip(self.ledgers, moves):
            if milli:
                ledger.move(part, milli)

    def _given(self, part: Part, there: list[int]) -> list[int]:
        """To the shards that lack the most, and to none more than it lacks, because a full one would lose it. Debts
        come first: while there are any, no other shard may have tokens to give away.
        """
        missing = [divmod(ledger.missing_milli(part), ledger.shards) for ledger in self.ledgers]
        debts = _of_few(-part.amount_milli, [min(-has, whole) for has, (whole, _) in zip(there, missing)])
        left = -part.amount_milli - sum(debts)
        more = _of_few(left, [whole - debt for debt, (whole, _) in zip(debts, missing)])
        shares = [debt + share for debt, share in zip(debts, more)]
        left -= sum(more)
        for place, (_, fraction) in enumerate(missing):
            if left and fraction:  # it lacks another fraction of a millitoken
                shares[place] += 1
                left -= 1
        shares[missing.index(max(missing))] += left  # all are full: only usage changes
        return [-share for share in shares]

    def lower(self, part: Part) -> None:
        """Lower the sum to the amount, if it is higher: each shard keeps its share. Debts stay."""
        there = self._there(self.buckets(part), 0)
        if sum(there) < part.amount_milli:
            return
        total = sum(has for has in there if has > 0)
        left = max(0, part.amount_milli) - sum(has for has in there if has < 0)
        for ledger, has in zip(self.ledgers, there):
            if has > 0:
                share = left * has // total  # never more than it has
                ledger.move(part, share, LOWER)
                left, total = left - share, total - has


def _of_few(amount_milli: int, there: list[int]) -> list[int]:
    """From as few shards as possible, the fullest first. The sum may be less than the amount."""
    shares = [0] * len(there)
    for place in sorted(range(len(there)), key=lambda place: (-there[place], random.random())):
        shares[place] = max(0, min(amount_milli, there[place]))
        amount_milli -= shares[place]
    return shares


def _of_some(amount_milli: int, there: list[int]) -> list[int]:
    """From some random shards that have more than enough, in proportion: others take from them at the same time."""
    chosen: list[int] = []
    total = 0
    for place in random.sample(range(len(there)), len(there)):
        if there[place] > 0 and total < _SLACK * amount_milli:
            chosen.append(place)
            total += there[place]
    shares = [0] * len(there)
    left = amount_milli
    for place in chosen:
        shares[place] = min(left, -(-amount_milli * there[place] // total))
        left -= shares[place]
    return shares


log = logging.getLogger("headgate")

_TRIES = 12


class CrossShard:
    def __init__(
        self,
        deliver: Deliverer,
        namespaces: Namespaces,
        cache: Cache,
        writer: Writer,
        usage_counters: UsageCounters,
        uniter: Uniter,
    ) -> None:
        self._uniter = uniter
        self._deliver = deliver
        self._namespaces = namespaces
        self._usage_counters = usage_counters
        self._cache = cache
        self._writer = writer

    def settle_plan(self, request: Request, places: Sequence[ItemPlace], now_ms: int) -> Plan[Answer]:
        """`places`: one item of each level, any shard."""
        for turn in range(_TRIES):
            pools = yield from self.pools_plan(places, now_ms)
            yield from self._check_plan(pools)
            apart = {level for level, limit, _, _ in request.parts if begins_with_use(limit) and pools[level].is_split}
            if request.mode is PEEK:
                pools = [self._united(pool) if level in apart else pool for level, pool in enumerate(pools)]
            elif apart:
                for level in apart:
                    yield from self._uniter.unite_plan(pools[level].ledgers)
                yield from _pause(turn)
                continue
            answer = _decide(request, pools, again=turn > 0)
            ledgers = [ledger for pool in pools for ledger in pool.ledgers]
            writes: dict[Ledger, Write] = {ledger: write for ledger in ledgers if (write := ledger.write())}
            if len(writes) <= TOGETHER:
                if (yield from self._write_plan(ledgers, writes, now_ms)):
                    return answer
            elif answer.allowed:
                by_levels = yield from self._by_levels_plan(request, places, now_ms)
                if by_levels is not None:
                    return by_levels
            else:
                yield from self._by_levels_plan(_only_limits(request), places, now_ms)
                return answer
            yield from _pause(turn)
        raise Contended("too many writers contend for the same buckets in DynamoDB")

    def _check_plan(self, pools: Sequence[Pool]) -> Plan[None]:
        """NamespaceMoved, if the namespace no longer exists."""
        for place in (pool.ledgers[0].place for pool in pools if pool.ledgers[0].row is NEW):
            seen = self._cache.get(place)
            if self._namespaces.moved(place.ns) or (seen is not None and seen.row.states):
                yield from self._namespaces.check_plan(place.ns)

    def _write_plan(self, ledgers: Sequence[Ledger], writes: Writes, now_ms: int) -> Plan[bool]:
        """All or nothing: whether it was written."""
        news = yield from self._writer.write_plan(writes, [])
        for ledger in ledgers:
            known = news[ledger].row if ledger in news else ledger.row
            if known is not None and known is not NEW:
                self._cache.put(ledger.place, known, ledger.seen_at_ms)
                self._usage_counters.notice(ledger.place, known, now_ms)
            else:
                self._cache.forget(ledger.place)
        for one in news.values():
            if one.error is not None:
                raise one.error
        return all(one.done for one in news.values())

    def _by_levels_plan(self, request: Request, places: Sequence[ItemPlace], now_ms: int) -> Plan[Answer | None]:
        """Level by level. None: a level refuses by now, and nothing was taken."""
        levels: dict[Part, Level] = {}
        taken: list[tuple[Request, ItemPlace]] = []
        for level, place in enumerate(places):
            parts = [part for part in request.parts if part.level == level]
            alone = request._replace(parts=tuple(part._replace(level=0) for part in parts))
            try:
                answer = yield from self.settle_plan(alone, [place], now_ms)
            except HeadgateError:
                yield from self._give_back_plan(taken, now_ms)
                raise
            if request.mode is TAKE:
                if not answer.allowed:
                    yield from self._give_back_plan(taken, now_ms)
                    return None
                taken.append((alone, place))
            levels |= zip(parts, answer.levels)
        in_order = [levels[part] for part in request.parts]
        return Answer(request.mode is not RENEW, longest_wait(in_order), in_order)

    def _give_back_plan(self, taken: Sequence[tuple[Request, ItemPlace]], now_ms: int) -> Plan[None]:
        for request, place in taken:
            yield from MoreTime()
            try:
                yield from self.settle_plan(refund(request), [place], now_ms)
            except HeadgateError as error:
                log.warning("tokens of %r that a refused request took could not be given back: %s", place.pk, error)

    def pools_plan(self, places: Sequence[ItemPlace], now_ms: int) -> Plan[list[Pool]]:
        firsts = [place._replace(shard=0) for place in places]
        rows = yield from self.rows_plan(firsts)
        others = [
            first._replace(shard=shard) for first in firsts for shard in range(1, rows.get(first, NEW).shard_count)
        ]
        rows |= yield from self.rows_plan(others)
        pools = []
        for first in firsts:
            mine = [first, *(other for other in others if other._replace(shard=0) == first and other in rows)]
            pools.append(Pool([self._ledger(place, rows.get(place, NEW), now_ms) for place in mine]))
        return pools

    def rows_plan(self, places: Sequence[ItemPlace]) -> Plan[dict[ItemPlace, Row]]:
        """The rows of the items that exist."""
        by_key = {place.item_key: place for place in places}
        items = yield from read_items_plan(self._deliver, list(by_key))
        return {by_key[key]: read_row(item) for key, item in items.items() if has_buckets(item)}

    def _united(self, pool: Pool) -> Pool:
        first = pool.ledgers[0]
        return Pool([self._ledger(first.place, united(pool.ledgers), first.now_ms)])

    def _ledger(self, place: ItemPlace, row: Row, now_ms: int) -> BucketLedger:
        seen = self._cache.get(place)
        ledger = BucketLedger(place, row, now_ms, seen.at_ms if seen else None)
        ledger.together = True
        ledger.usage_ms = self._usage_counters.kept_ms
        return ledger


def _pause(turn: int) -> Plan[None]:
    yield from Sleep(random.uniform(0.001, 0.005) * (turn + 1))


def _decide(request: Request, pools: Sequence[Pool], *, again: bool) -> Answer:
    for part in request.parts:
        if part.limit.is_quota:
            pools[part.level].even_out(part)
    waits = [None if request.mode is RENEW else pools[part.level].wait_ms(part) for part in request.parts]
    longest = longest_of(waits)
    allowed = request.mode not in (TAKE, RENEW) or (
        longest is not None
        and longest <= request.max_wait_ms
        and not any(wait_ms and part.limit.is_quota for part, wait_ms in zip(request.parts, waits))
    )
    for part, wait_ms in zip(request.parts, waits) if allowed else ():
        _apply(request, part, pools[part.level], wait_ms or 0, again=again)
    levels: list[Level] = [(pools[part.level].available_milli(part), wait) for part, wait in zip(request.parts, waits)]
    if request.mode is PEEK:
        _forget(pools)
    return Answer(allowed, longest, levels)


def _forget(pools: Sequence[Pool]) -> None:
    """A read must not write anything."""
    for pool in pools:
        for ledger in pool.ledgers:
            ledger.begin()


def _apply(request: Request, part: Part, pool: Pool, wait_ms: int, *, again: bool) -> None:
    if request.mode is TAKE:
        pool.take(part, wait_ms, again=again)
    elif request.mode is FORCE:
        pool.force(part)
    elif request.mode is LOWER:
        pool.lower(part)
    elif request.mode is PENALIZE:
        for ledger in pool.ledgers:
            ledger.apply(request, [part])


def _only_limits(request: Request) -> Request:
    """What even a refused request does: its limits take effect."""
    return request._replace(mode=FORCE, parts=tuple(part._replace(amount_milli=0) for part in request.parts))
