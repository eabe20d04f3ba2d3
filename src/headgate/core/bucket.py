"""The exact bucket.

A bucket holds at most `capacity` tokens and gains `refill_amount` every `refill_period`, evenly:

    tokens(t) = min(capacity, tokens(t0) + (t - t0) * refill_amount / refill_period)

That formula is the whole meaning of a rate limit here, and this file computes it without error.

Numbers. A float drifts, and a rounded division drifts faster, so there is neither. Time is whole
milliseconds, tokens are whole millitokens, and since one millisecond rarely earns a whole millitoken,
the rest of the division is kept with them: `remainder` counts the part of a millitoken already earned,
in units of 1/period_ms. Settling twice at half the distance or once at the whole gives the same three
integers. Nothing is lost, and (the mistake that lets a hammered limiter give eleven times its limit)
nothing is earned twice.

Settling is lazy. Buckets are not filled in the background: every operation first brings the bucket up
to date (`settle`), then acts on it. A bucket that was never used is full, which is why a full bucket
need not be stored.

Time is an argument and never runs backwards: a bucket settled at 12:00:05 answers a caller whose clock
says 12:00:04 as of 12:00:05. Clocks that disagree can make a bucket slow, never generous.

Taking has three strengths. A *take* needs the tokens now. A *reservation* takes tokens that are not there yet: the
bucket goes below zero and the caller sleeps until its share has matured, so that callers are served in the order in
which they came. A *force* states what has already happened (a call cost more than was thought) and is never refused;
it may leave a debt, which refill repays. Giving back is a force of a negative amount and stops at capacity.

Waits are exact: `wait_ms` is the first millisecond at which the amount is there. One earlier, it is not.

A penalty is not a matter of tokens. When a vendor says "not before 20 seconds", tokens given back in the
meantime must not open the gate again, so the bucket remembers until when it is blocked.

When a limit changes under a living bucket (`reshape`), what was used stays used. Time up to now is settled at
the old rate, then the deficit is kept: `tokens = new capacity - (old capacity - tokens)`. A larger limit adds the
difference, a smaller one takes it away and may leave a debt, and refill goes on at the new rate. So limits that
alternate on one bucket (two plans under one address, two versions of a program) never admit more than the most
generous of them would alone: a turn of the pair changes no deficit, and only time reduces one. Stored limits have a
revision, and a bucket does not go back to an earlier one, so that a change holds once any client has used it.

A bucket also counts: `used_milli` is what was taken from it, less what was given back, since the hour began in which it
was last settled (usage.py). It has no say in any decision.
"""

from __future__ import annotations

from .limit import Limit
from .units import MAX_DEBT_MILLI, MILLI


class Bucket:
    """The state of one limit for one entity on one resource. Everything but `settle` expects it settled."""

    __slots__ = (
        "blocked_until_ms", "changed", "limit", "remainder", "revision", "settled_at_ms", "tokens_milli", "used_milli",
    )  # fmt: skip

    def __init__(
        self,
        limit: Limit,
        tokens_milli: int,
        settled_at_ms: int,
        remainder: int = 0,
        blocked_until_ms: int = 0,
        revision: int = 0,
        used_milli: int = 0,
    ) -> None:
        self.limit = limit
        self.tokens_milli = tokens_milli
        self.settled_at_ms = settled_at_ms
        self.remainder = remainder
        self.blocked_until_ms = blocked_until_ms
        self.revision = revision
        self.used_milli = used_milli
        self.changed = False  # by more than the passing of time: a store has to write it

    @classmethod
    def full(cls, limit: Limit, now_ms: int, revision: int = 0) -> Bucket:
        return cls(limit, limit.capacity_milli, now_ms, revision=revision)

    def settle(self, now_ms: int) -> None:
        elapsed_ms = now_ms - self.settled_at_ms
        if elapsed_ms <= 0:
            return
        self.settled_at_ms = now_ms
        limit = self.limit
        gained, self.remainder = divmod(elapsed_ms * limit.refill_milli + self.remainder, limit.period_ms)
        self.tokens_milli += gained
        if self.tokens_milli >= limit.capacity_milli:
            self._fill()

    def _fill(self) -> None:
        self.tokens_milli = self.limit.capacity_milli
        self.remainder = 0

    def wait_ms(self, amount_milli: int) -> int | None:
        """Milliseconds until the amount can be taken: 0 if it can now, None if it never fits."""
        limit = self.limit
        if amount_milli > limit.capacity_milli:
            return None
        deficit = amount_milli - self.tokens_milli
        wait = -((self.remainder - deficit * limit.period_ms) // limit.refill_milli) if deficit > 0 else 0
        return max(wait, self.blocked_until_ms - self.settled_at_ms) if self.blocked_until_ms else wait

    def take(self, amount_milli: int) -> None:
        """Take what `wait_ms` allowed, now or by reservation."""
        self.tokens_milli -= amount_milli
        self.used_milli += amount_milli
        self.changed = True

    def follow_tokens(self) -> None:
        """After each change of the tokens: of a quota, its window may begin or end."""

    def force(self, amount_milli: int) -> None:
        """Take into debt, or give back (a negative amount) up to capacity. Never refuses."""
        self.tokens_milli = max(self.tokens_milli - amount_milli, -MAX_DEBT_MILLI)
        self.used_milli += amount_milli
        if self.tokens_milli >= self.limit.capacity_milli:
            self._fill()
        self.changed = True

    def penalize(self, block_ms: int, keep_milli: int) -> None:
        """Let nothing pass for `block_ms`, and keep `keep_milli` thousandths of the tokens there are."""
        if block_ms:
            self.blocked_until_ms = max(self.blocked_until_ms, self.settled_at_ms + block_ms)
        if keep_milli < MILLI and self.tokens_milli >= 0:
            self.tokens_milli = self.tokens_milli * keep_milli // MILLI
            self.remainder = 0
        self.changed = True

    def lower(self, tokens_milli: int) -> None:
        """Leave so many tokens, if there are more."""
        if self.tokens_milli >= tokens_milli:
            self.tokens_milli = tokens_milli
            self.remainder = 0
            self.changed = True

    def reshape(self, limit: Limit, revision: int = 0) -> None:
        """Go on under another limit with the same deficit, unless the limit is from before the one the bucket has
        (revision 0: it never is)."""
        if revision:
            if revision < self.revision:
                return
            self.revision = revision
        old, self.limit = self.limit, limit
        self.tokens_milli = max(self.tokens_milli + limit.capacity_milli - old.capacity_milli, -MAX_DEBT_MILLI)
        self.remainder = self.remainder * limit.period_ms // old.period_ms
        self.changed = True

    def available_milli(self) -> int:
        """What an acquire could take now; nothing while blocked, negative in debt."""
        blocked = self.blocked_until_ms > self.settled_at_ms
        return min(self.tokens_milli, 0) if blocked else self.tokens_milli

    def full_at_ms(self) -> int:
        """From when on the bucket is no different from one that was never touched."""
        deficit = self.limit.capacity_milli - self.tokens_milli
        wait = -((self.remainder - deficit * self.limit.period_ms) // self.limit.refill_milli) if deficit > 0 else 0
        return max(self.settled_at_ms + wait, self.blocked_until_ms)
