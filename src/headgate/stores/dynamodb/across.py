"""A request on all shards of its buckets: one too large for a single shard, or refused by it, or a look at all.

All shards are read, the request is decided on their sum, and what it takes of each is written in one transaction.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import copy

from ...core.bucket import Bucket
from ...core.decide import FORCE, LOWER, PEEK, PENALIZE, RENEW, TAKE, Answer, Level, Part, Request
from ...core.errors import Contended
from ...plan import Plan, Sleep
from .bucket_ledger import BucketLedger
from .cache import Cache
from .deliver import Deliverer
from .forms import Place, Write
from .hours import Hours
from .ledger import Ledger
from .reads import read_items_plan
from .rows import NEW, Row, has_buckets, read_row
from .writer import Writer

_TRIES = 12


class Pool:
    """All shards of the buckets of an entity on a resource."""

    def __init__(self, ledgers: Sequence[BucketLedger]) -> None:
        self.ledgers = ledgers

    def buckets(self, part: Part) -> list[Bucket]:
        return [ledger.bucket(part) for ledger in self.ledgers]

    def wait_ms(self, part: Part) -> int | None:
        """The first moment at which all shards together have the amount."""
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
        """What each shard has in a while, in millitokens as they are."""
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

    def take(self, part: Part, wait_ms: int, *, evenly: bool) -> None:
        """Of as few shards as can be: those that have the most. Or `evenly`, which leaves in each something for those
        who take of it meanwhile."""
        there = self._there(self.buckets(part), wait_ms)
        left = part.amount_milli
        total = sum(has for has in there if has > 0)
        for ledger, has in sorted(zip(self.ledgers, there), key=lambda one: -one[1]):
            some = min(left, -(-part.amount_milli * has // total) if evenly and total else has)
            if some > 0:
                ledger.insists = ledger.insists or wait_ms > 0
                ledger.move(part, some, FORCE if wait_ms else TAKE)
                left -= some

    def force(self, part: Part) -> None:
        """Of every shard its share, and the rest of the first."""
        shares = [part.amount_milli // ledger.shards for ledger in self.ledgers]
        shares[0] += part.amount_milli - sum(shares)
        for ledger, share in zip(self.ledgers, shares):
            ledger.move(part, share)

    def lower(self, part: Part) -> None:
        """So that all together have the amount, if they have more: each keeps its share of it. Debts stay."""
        there = self._there(self.buckets(part), 0)
        if sum(there) < part.amount_milli:
            return
        total = sum(has for has in there if has > 0)
        left = max(0, part.amount_milli) - sum(has for has in there if has < 0)
        for ledger, has in zip(self.ledgers, there):
            if has > 0:
                share = left * has // total  # never more than it has: of what is left, no more is to be kept
                ledger.move(part, share, LOWER)
                left, total = left - share, total - has


class Across:
    def __init__(self, deliver: Deliverer, cache: Cache, writer: Writer, hours: Hours) -> None:
        self._deliver = deliver
        self._hours = hours
        self._cache = cache
        self._writer = writer

    def settle_plan(self, request: Request, places: Sequence[Place], now_ms: int) -> Plan[Answer]:
        for turn in range(_TRIES):
            pools = yield from self.pools_plan(places, now_ms)
            answer = _decide(request, pools, evenly=turn > 0)
            ledgers = [ledger for pool in pools for ledger in pool.ledgers]
            writes: dict[Ledger, Write] = {ledger: write for ledger in ledgers if (write := ledger.write())}
            news = yield from self._writer.round_plan(writes, [])
            for ledger in ledgers:
                known = news[ledger].row if ledger in news else ledger.row
                if known is not None and known is not NEW:
                    self._cache.put(ledger.place, known, ledger.seen_at_ms)
                    self._hours.notice(ledger.place, known, now_ms)
                else:
                    self._cache.forget(ledger.place)
            for one in news.values():
                if one.error is not None:
                    raise one.error
            if all(one.done for one in news.values()):
                return answer
            yield from Sleep(random.uniform(0.001, 0.005) * (turn + 1))
        raise Contended("too many others write to the same buckets of DynamoDB at once")

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
        ledger.usage_ms = self._hours.kept_ms
        return ledger


def _decide(request: Request, pools: Sequence[Pool], *, evenly: bool) -> Answer:
    waits = [None if request.mode is RENEW else pools[part.level].wait_ms(part) for part in request.parts]
    longest = None if None in waits else max((wait or 0 for wait in waits), default=0)
    allowed = request.mode not in (TAKE, RENEW) or (longest is not None and longest <= request.max_wait_ms)
    if allowed:
        for part, wait_ms in zip(request.parts, waits):
            pool = pools[part.level]
            if request.mode is TAKE:
                pool.take(part, wait_ms or 0, evenly=evenly)
            elif request.mode is FORCE:
                pool.force(part)
            elif request.mode is LOWER:
                pool.lower(part)
            elif request.mode is PENALIZE:
                for ledger in pool.ledgers:
                    ledger.apply(request, [part])
    levels: list[Level] = [(pools[part.level].available_milli(part), wait) for part, wait in zip(request.parts, waits)]
    if request.mode is PEEK:
        for pool in pools:
            for ledger in pool.ledgers:
                ledger.begin()
    return Answer(allowed, longest, levels)
