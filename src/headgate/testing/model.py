"""A second opinion: the meaning of headgate in exact rationals, written without a look at `core`.

Slow, small and obvious. The conformance suite runs a store and this side by side and compares every answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, floor
from typing import NamedTuple, TypeAlias

from ..core.limit import Limit

Place: TypeAlias = "tuple[str, str, str]"  # entity, resource, limit name


class ModelCharge(NamedTuple):
    limit: Limit
    amount: Fraction
    revision: int = 0


Charges: TypeAlias = "Mapping[Place, ModelCharge]"


def _tokens(milli: int) -> Fraction:
    return Fraction(milli, 1000)


@dataclass
class ModelBucket:
    limit: Limit
    tokens: Fraction
    at_ms: int
    blocked_until_ms: int = 0
    revision: int = 0

    @classmethod
    def full(cls, charge: ModelCharge, now_ms: int) -> ModelBucket:
        return cls(charge.limit, _tokens(charge.limit.capacity_milli), now_ms, revision=charge.revision)

    @property
    def capacity(self) -> Fraction:
        return _tokens(self.limit.capacity_milli)

    @property
    def rate_per_ms(self) -> Fraction:
        return _tokens(self.limit.refill_milli) / self.limit.period_ms

    def at(self, now_ms: int) -> ModelBucket:
        now_ms = max(now_ms, self.at_ms)
        tokens = min(self.capacity, self.tokens + (now_ms - self.at_ms) * self.rate_per_ms)
        return replace(self, tokens=tokens, at_ms=now_ms)

    def under(self, limit: Limit, revision: int) -> ModelBucket:
        if limit == self.limit or 0 < revision < self.revision:
            return self
        used = self.capacity - self.tokens
        # The fraction of a millitoken is carried over in the new limit's grain, rounded down.
        grain = 1000 * limit.period_ms
        tokens = Fraction(floor((_tokens(limit.capacity_milli) - used) * grain), grain)
        return replace(self, limit=limit, tokens=tokens, revision=revision or self.revision)

    def wait_ms(self, amount: Fraction) -> int | None:
        if amount > self.capacity:
            return None
        missing = max(Fraction(0), amount - self.tokens)
        return max(ceil(missing / self.rate_per_ms), self.blocked_until_ms - self.at_ms)

    def less(self, amount: Fraction) -> ModelBucket:
        return replace(self, tokens=min(self.capacity, self.tokens - amount))

    def available(self) -> int:
        return floor(min(self.tokens, Fraction(0)) if self.blocked_until_ms > self.at_ms else self.tokens)


class ModelSlot(NamedTuple):
    """One slot that is taken."""

    lease: str
    until_ms: int


@dataclass
class ModelSlots:
    """The slots of a concurrent limit that are taken, one by one."""

    limit: Limit
    at_ms: int
    taken: tuple[ModelSlot, ...] = ()
    blocked_until_ms: int = 0
    revision: int = 0

    @property
    def capacity(self) -> int:
        return self.limit.capacity_milli // 1000

    def of(self, lease: str) -> int:
        return sum(slot.lease == lease for slot in self.taken)

    def at(self, now_ms: int) -> ModelSlots:
        now_ms = max(now_ms, self.at_ms)
        return replace(self, taken=tuple(slot for slot in self.taken if slot.until_ms > now_ms), at_ms=now_ms)

    def under(self, limit: Limit, revision: int) -> ModelSlots:
        if limit == self.limit or 0 < revision < self.revision:
            return self
        return replace(self, limit=limit, revision=revision or self.revision)

    def wait_ms(self, amount: Fraction) -> int | None:
        """The first moment at which enough have run out."""
        if amount > self.capacity:
            return None
        moments = sorted({self.at_ms, *(slot.until_ms for slot in self.taken)})
        free_at = next(ms for ms in moments if amount == 0 or len(self.at(ms).taken) + amount <= self.capacity)
        return max(free_at, self.blocked_until_ms) - self.at_ms

    def less(self, amount: Fraction, lease: str, ttl_ms: int) -> ModelSlots:
        """With so many more for the lease, or fewer, all of them for its ttl from now."""
        others = tuple(slot for slot in self.taken if slot.lease != lease)
        its = ModelSlot(lease, self.at_ms + ttl_ms)
        return replace(self, taken=others + (its,) * (self.of(lease) + int(amount)))

    def available(self) -> int:
        free = self.capacity - len(self.taken)
        return min(free, 0) if self.blocked_until_ms > self.at_ms else free


@dataclass
class ModelQuota:
    """What was used in the window that ends at `ends_ms`; None while no window is open."""

    limit: Limit
    at_ms: int
    used: Fraction = Fraction(0)
    ends_ms: int | None = None
    blocked_until_ms: int = 0
    revision: int = 0

    @property
    def capacity(self) -> Fraction:
        return _tokens(self.limit.capacity_milli)

    @property
    def tokens(self) -> Fraction:
        return self.capacity - self.used

    def at(self, now_ms: int) -> ModelQuota:
        now_ms = max(now_ms, self.at_ms)
        over = self.ends_ms is not None and now_ms >= self.ends_ms
        return replace(self, at_ms=now_ms, used=Fraction(0), ends_ms=None) if over else replace(self, at_ms=now_ms)

    def under(self, limit: Limit, revision: int) -> ModelQuota:
        if 0 < revision < self.revision:
            return self
        ends_ms = self.ends_ms
        if limit.calendar is not None:
            if limit.calendar != self.limit.calendar:
                ends_ms = None
        elif self.limit.calendar is None and ends_ms is not None:
            ends_ms += limit.period_ms - self.limit.period_ms
        elif self.limit.calendar is not None:
            ends_ms = None
        return (
            replace(self, limit=limit, ends_ms=ends_ms, revision=revision or self.revision).in_a_window().at(self.at_ms)
        )

    def in_a_window(self) -> ModelQuota:
        """A window of a calendar is always open; another one while something is used."""
        calendar = self.limit.calendar
        if calendar is not None:
            return replace(self, ends_ms=calendar.window(self.at_ms).ends_ms) if self.ends_ms is None else self
        if self.used <= 0:
            return replace(self, ends_ms=None)
        return replace(self, ends_ms=self.at_ms + self.limit.period_ms) if self.ends_ms is None else self

    def wait_ms(self, amount: Fraction) -> int | None:
        if amount > self.capacity:
            return None
        wait = 0
        if amount > self.tokens:
            assert self.ends_ms is not None
            wait = self.ends_ms - self.at_ms
        return max(wait, self.blocked_until_ms - self.at_ms)

    def less(self, amount: Fraction) -> ModelQuota:
        return replace(self, used=max(Fraction(0), self.used + amount)).in_a_window()

    def available(self) -> int:
        return floor(min(self.tokens, Fraction(0)) if self.blocked_until_ms > self.at_ms else self.tokens)


ModelState: TypeAlias = "ModelBucket | ModelSlots | ModelQuota"


def _new(charge: ModelCharge, now_ms: int) -> ModelState:
    if charge.limit.is_quota:
        return ModelQuota(charge.limit, now_ms, revision=charge.revision)
    if charge.limit.is_concurrent:
        return ModelSlots(charge.limit, now_ms, revision=charge.revision)
    return ModelBucket.full(charge, now_ms)


@dataclass
class ModelLimiter:
    """Buckets by place, and the same verbs as a limiter, on charges instead of entities."""

    buckets: dict[Place, ModelState] = field(default_factory=dict)

    def look(self, charges: Charges, now_ms: int) -> dict[Place, ModelState]:
        """The buckets at `now_ms` under the limits of the charges. Looking lets time pass, and changes nothing else."""
        seen = {}
        for place, charge in charges.items():
            bucket = self.buckets.get(place, _new(charge, now_ms)).at(now_ms)
            self.buckets[place] = bucket
            seen[place] = bucket.under(charge.limit, charge.revision)
        return seen

    def waits(self, charges: Charges, now_ms: int) -> dict[Place, int | None]:
        seen = self.look(charges, now_ms)
        return {place: seen[place].wait_ms(amount) for place, (_, amount, _) in charges.items()}

    def take(self, charges: Charges, now_ms: int, max_wait_ms: int = 0, lease: str = "") -> tuple[bool, int | None]:
        seen = self.look(charges, now_ms)
        waits = [seen[place].wait_ms(amount) for place, (_, amount, _) in charges.items()]
        longest = None if None in waits else max(wait for wait in waits if wait is not None)
        allowed = longest is not None and longest <= max_wait_ms
        if any(wait and charge.limit.is_quota for wait, charge in zip(waits, charges.values())):
            allowed = False  # tokens of the next window cannot be had in this one
        for place, charge in charges.items():
            self.buckets[place] = _less(seen[place], charge, charge.amount, lease) if allowed else seen[place]
        return allowed, longest

    def force(self, charges: Charges, now_ms: int, lease: str = "") -> None:
        """Slots are only given back, by those who have them."""
        seen = self.look(charges, now_ms)
        for place, charge in charges.items():
            state, amount = seen[place], charge.amount
            if isinstance(state, ModelSlots):
                amount = max(amount, Fraction(-state.of(lease)))
            self.buckets[place] = _less(state, charge, amount, lease)

    def renew(self, charges: Charges, now_ms: int, lease: str) -> bool:
        """Whether the lease still has slots at every place."""
        seen = self.look(charges, now_ms)
        for place, state in seen.items():
            self.buckets[place] = _less(state, charges[place], Fraction(0), lease)
        return all(isinstance(state, ModelSlots) and state.of(lease) > 0 for state in seen.values())

    def penalize(self, charges: Charges, now_ms: int, block_ms: int, keep_milli: int) -> None:
        for place, bucket in self.look(charges, now_ms).items():
            if block_ms:
                bucket = replace(bucket, blocked_until_ms=max(bucket.blocked_until_ms, bucket.at_ms + block_ms))
            if keep_milli < 1000 and not isinstance(bucket, ModelSlots) and bucket.tokens > 0:
                kept = _tokens(floor(bucket.tokens * 1000) * keep_milli // 1000)
                if isinstance(bucket, ModelQuota):
                    bucket = bucket.less(bucket.tokens - kept)
                else:
                    bucket = replace(bucket, tokens=kept)
            self.buckets[place] = bucket


def _less(state: ModelState, charge: ModelCharge, amount: Fraction, lease: str) -> ModelState:
    if isinstance(state, ModelSlots):
        return state.less(amount, lease, charge.limit.period_ms)
    return state.less(amount)
