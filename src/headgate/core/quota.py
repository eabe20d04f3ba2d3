"""The quota: so many tokens in a window, and all of them again in the next one.

A bucket refills evenly, a quota at once, at the edge of its window. In between nothing comes back but what is given
back. So tokens of the next window cannot be had in this one: a take that lacks some waits for the edge, and nothing is
reserved.

The windows are those of a calendar (calendar.py). Without one, a window begins with the first take after the last was
over, lasts `period_ms`, and ends early if everything is given back.

Time never runs backwards here either: a quota settled in one window does not go back to an earlier one.

When a limit changes, what was used stays used, as in a bucket. A quota whose calendar changes keeps its tokens, and is
in the new calendar's window from then on.
"""

from __future__ import annotations

from .bucket import Bucket
from .limit import Limit
from .units import MAX_DEBT_MILLI

_CLOSED = 0  # as the end of a window: there is none
_NEVER_MS = 1 << 62


class Quota(Bucket):
    """What a bucket keeps as `remainder` is here the end of the window."""

    __slots__ = ()

    @classmethod
    def full(cls, limit: Limit, now_ms: int, revision: int = 0) -> Quota:
        quota = cls(limit, limit.capacity_milli, now_ms, revision=revision)
        quota.settle(now_ms)  # into the window of its calendar
        return quota

    def settle(self, now_ms: int) -> None:
        if now_ms > self.settled_at_ms:
            self.settled_at_ms = now_ms
        if self.settled_at_ms >= self.remainder:
            self._begin_window()

    def _begin_window(self) -> None:
        calendar = self.limit.calendar
        if self.remainder != _CLOSED:
            self.tokens_milli = self.limit.capacity_milli
        self.remainder = _CLOSED if calendar is None else calendar.window(self.settled_at_ms).ends_ms

    def follow_tokens(self) -> None:
        """A window from first use begins when tokens are missing, and is over when none are."""
        if self.limit.calendar is None:
            if self.tokens_milli >= self.limit.capacity_milli:
                self.remainder = _CLOSED
            elif self.remainder == _CLOSED and self.limit.period_ms:
                self.remainder = self.settled_at_ms + self.limit.period_ms

    def wait_ms(self, amount_milli: int) -> int | None:
        if amount_milli > self.limit.capacity_milli:
            return None
        wait = 0
        if amount_milli > self.tokens_milli:
            if self.remainder == _CLOSED:
                return None  # its calendar is a newer one, which is not known here
            wait = self.remainder - self.settled_at_ms
        return max(wait, self.blocked_until_ms - self.settled_at_ms) if self.blocked_until_ms else wait

    def take(self, amount_milli: int) -> None:
        self.tokens_milli -= amount_milli
        self.used_milli += amount_milli
        self.changed = True
        if self.limit.calendar is None:
            self.follow_tokens()

    def force(self, amount_milli: int) -> None:
        capacity_milli = self.limit.capacity_milli
        self.tokens_milli = min(max(self.tokens_milli - amount_milli, -MAX_DEBT_MILLI), capacity_milli)
        self.used_milli += amount_milli
        self.changed = True
        self.follow_tokens()

    def penalize(self, block_ms: int, keep_milli: int) -> None:
        ends_ms = self.remainder
        super().penalize(block_ms, keep_milli)
        self.remainder = ends_ms
        self.follow_tokens()

    def lower(self, tokens_milli: int) -> None:
        if self.tokens_milli >= tokens_milli:
            self.tokens_milli = tokens_milli
            self.changed = True
            self.follow_tokens()

    def reshape(self, limit: Limit, revision: int = 0) -> None:
        if revision:
            if revision < self.revision:
                return
            self.revision = revision
        old, self.limit = self.limit, limit
        self.tokens_milli = max(self.tokens_milli + limit.capacity_milli - old.capacity_milli, -MAX_DEBT_MILLI)
        self.changed = True
        if limit.calendar is not None:
            if limit.calendar != old.calendar:
                self.remainder = limit.calendar.window(self.settled_at_ms).ends_ms
            return
        if old.calendar is None and self.remainder != _CLOSED:
            self.remainder += limit.period_ms - old.period_ms
        else:
            self.remainder = _CLOSED
        self.follow_tokens()
        self.settle(self.settled_at_ms)

    def full_at_ms(self) -> int:
        full = self.tokens_milli >= self.limit.capacity_milli
        return max(self.settled_at_ms if full else self.remainder or _NEVER_MS, self.blocked_until_ms)
