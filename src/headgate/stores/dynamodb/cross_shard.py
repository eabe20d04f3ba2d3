"""A request on all shards of its buckets: one too large for a single shard, or refused by it, or a look at all.

All shards are read, the request is decided on their sum, and what it takes of each is written in one transaction: all
of it, or nothing. A transaction has room for 100 items, and a level has at most 64. What is more is written one level
after the other, each in a transaction of its own, and so each once. What a take has taken of some levels is given back
if another one refuses.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Sequence

from ...core.decide import FORCE, LOWER, PEEK, PENALIZE, RENEW, TAKE, Answer, Level, Part, Request, refund
from ...core.errors import Contended, HeadgateError
from ...plan import Plan, Sleep
from .bucket_ledger import BucketLedger
from .cache import Cache
from .conditional_writes import Place, Write
from .deliver import Deliverer
from .exchange import MoreTime
from .ledger import Ledger
from .namespaces import Namespaces
from .pool import Pool
from .reads import read_items_plan
from .rows import NEW, Row, has_buckets, read_row
from .usage_counters import UsageCounters
from .writer import TOGETHER, Writer, Writes

log = logging.getLogger("headgate")

_TRIES = 12


class CrossShard:
    def __init__(
        self, deliver: Deliverer, namespaces: Namespaces, cache: Cache, writer: Writer, usage_counters: UsageCounters
    ) -> None:
        self._deliver = deliver
        self._namespaces = namespaces
        self._usage_counters = usage_counters
        self._cache = cache
        self._writer = writer

    def settle_plan(self, request: Request, places: Sequence[Place], now_ms: int) -> Plan[Answer]:
        """`places`: an item of each level, whichever."""
        for turn in range(_TRIES):
            pools = yield from self.pools_plan(places, now_ms)
            yield from self._check_plan(pools)
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
            yield from Sleep(random.uniform(0.001, 0.005) * (turn + 1))
        raise Contended("too many others write to the same buckets of DynamoDB at once")

    def _check_plan(self, pools: Sequence[Pool]) -> Plan[None]:
        """Moved, if they are of a namespace that is not there any more."""
        for place in (pool.ledgers[0].place for pool in pools if pool.ledgers[0].row is NEW):
            seen = self._cache.get(place)
            if self._namespaces.moved(place.ns) or (seen is not None and seen.row.states):
                yield from self._namespaces.check_plan(place.ns)

    def _write_plan(self, ledgers: Sequence[Ledger], writes: Writes, now_ms: int) -> Plan[bool]:
        """All of it or nothing: whether it was done."""
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

    def _by_levels_plan(self, request: Request, places: Sequence[Place], now_ms: int) -> Plan[Answer | None]:
        """One level after the other. None: one of them refuses by now, and nothing was taken."""
        levels: dict[Part, Level] = {}
        taken: list[tuple[Request, Place]] = []
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

    def _give_back_plan(self, taken: Sequence[tuple[Request, Place]], now_ms: int) -> Plan[None]:
        for request, place in taken:
            yield from MoreTime()
            try:
                yield from self.settle_plan(refund(request), [place], now_ms)
            except HeadgateError as error:
                log.warning("what was taken of %r in vain could not be given back: %s", place.pk, error)

    def pools_plan(self, places: Sequence[Place], now_ms: int) -> Plan[list[Pool]]:
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

    def rows_plan(self, places: Sequence[Place]) -> Plan[dict[Place, Row]]:
        """Those that there are."""
        by_key = {(place.pk, place.key["SK"]["S"]): place for place in places}
        items = yield from read_items_plan(self._deliver, list(by_key))
        return {by_key[key]: read_row(item) for key, item in items.items() if has_buckets(item)}

    def _ledger(self, place: Place, row: Row, now_ms: int) -> BucketLedger:
        seen = self._cache.get(place)
        ledger = BucketLedger(place, row, now_ms, seen.at_ms if seen else None)
        ledger.together = True
        ledger.usage_ms = self._usage_counters.kept_ms
        return ledger


def _decide(request: Request, pools: Sequence[Pool], *, again: bool) -> Answer:
    waits = [None if request.mode is RENEW else pools[part.level].wait_ms(part) for part in request.parts]
    longest = longest_of(waits)
    allowed = request.mode not in (TAKE, RENEW) or (longest is not None and longest <= request.max_wait_ms)
    for part, wait_ms in zip(request.parts, waits) if allowed else ():
        _apply(request, part, pools[part.level], wait_ms or 0, again=again)
    levels: list[Level] = [(pools[part.level].available_milli(part), wait) for part, wait in zip(request.parts, waits)]
    if request.mode is PEEK:
        _forget(pools)
    return Answer(allowed, longest, levels)


def _forget(pools: Sequence[Pool]) -> None:
    """A look decides nothing that is to be written."""
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
    """What even a refused request does: the limits it brought hold from now on."""
    return request._replace(mode=FORCE, parts=tuple(part._replace(amount_milli=0) for part in request.parts))


def longest_wait(levels: Iterable[Level]) -> int | None:
    """Of all levels."""
    return longest_of(wait_ms for _, wait_ms in levels)


def longest_of(waits: Iterable[int | None]) -> int | None:
    """The longest wait of all, or None if one of them never ends."""
    longest = 0
    for wait_ms in waits:
        if wait_ms is None:
            return None
        longest = max(longest, wait_ms)
    return longest
