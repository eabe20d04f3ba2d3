"""All shards of a bucket as one: what they have together, and of which of them a request takes, or gives it back to."""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import copy

from ...core.bucket import Bucket
from ...core.decide import FORCE, LOWER, TAKE, Part
from .bucket_ledger import BucketLedger

_SLACK = 2  # of how many times the amount something is taken, where others take meanwhile


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

    def take(self, part: Part, wait_ms: int, *, again: bool) -> None:
        """`again`: others were faster."""
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
        """What there is, and of the debt every shard its share: one that had tokens left would give them away."""
        shares = _of_few(amount_milli, there)
        debt_milli = amount_milli - sum(shares)
        debts = [debt_milli // ledger.shards for ledger in self.ledgers]
        debts[0] += debt_milli - sum(debts)
        return [share + debt for share, debt in zip(shares, debts)]

    def _given(self, part: Part, there: list[int]) -> list[int]:
        """To those that lack the most, and to none more than it lacks: a full one would lose it. Debts come first: as
        long as there are any, no other shard may have tokens to give away."""
        missing = [divmod(ledger.missing_milli(part), ledger.shards) for ledger in self.ledgers]
        debts = _of_few(-part.amount_milli, [min(-has, whole) for has, (whole, _) in zip(there, missing)])
        left = -part.amount_milli - sum(debts)
        more = _of_few(left, [whole - debt for debt, (whole, _) in zip(debts, missing)])
        shares = [debt + share for debt, share in zip(debts, more)]
        left -= sum(more)
        for place, (_, fraction) in enumerate(missing):
            if left and fraction:  # it lacks less than a thousandth more
                shares[place] += 1
                left -= 1
        shares[missing.index(max(missing))] += left  # all are full: it is only counted
        return [-share for share in shares]

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


def _of_few(amount_milli: int, there: list[int]) -> list[int]:
    """Of as few as can be: those that have the most. It may come to less than the amount."""
    shares = [0] * len(there)
    for place in sorted(range(len(there)), key=lambda place: (-there[place], random.random())):
        shares[place] = max(0, min(amount_milli, there[place]))
        amount_milli -= shares[place]
    return shares


def _of_some(amount_milli: int, there: list[int]) -> list[int]:
    """Of some at random that have more than enough, of each in proportion: others take of them at the same time."""
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
