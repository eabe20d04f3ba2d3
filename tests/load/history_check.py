"""Whether a history of grants can be that of a token bucket: for EVERY window, granted net <= capacity + rate x time.

When something happened is known by bounds: not before the call began, not after it returned. So for a window [a, b]

- a grant counts if it surely happened in it (both bounds inside), and
- what was given back counts if it may have (the bounds touch the window).

What is then granted net is the least that can have been, and a right history never has more than the limit allows. No
window has to be tried but those that begin where a grant or the end of a give-back may be and end where a grant may:
that is still their square. One sweep over the ends, with a tree over the beginnings that adds to a prefix and knows the
maximum, looks at all of them in n log n steps. All numbers are whole: nothing is rounded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from headgate import Limit

NS_PER_MS = 1_000_000
EVER_NS = 1 << 62


class Move(NamedTuple):
    """Tokens, in thousandths, that were granted, or given back if negative, between two moments."""

    amount_milli: int
    from_ns: int
    to_ns: int


class Excess(NamedTuple):
    """The window in which the most was granted, by what is allowed in it: negative tokens are what was left."""

    tokens: Fraction
    from_ns: int
    to_ns: int


class _Prefixes:
    """Numbers by place. Add to all places before one; the largest, and where it is."""

    def __init__(self, size: int, start: int) -> None:
        self._size = 1 << max(size - 1, 0).bit_length()
        self._most = [start] * (2 * self._size)
        self._lazy = [0] * (2 * self._size)

    def add_before(self, end: int, amount: int) -> None:
        self._add(1, 0, self._size, 0, end, amount)

    def add_at(self, place: int, amount: int) -> None:
        self._add(1, 0, self._size, place, place + 1, amount)

    def _add(self, node: int, low: int, high: int, first: int, end: int, amount: int) -> None:
        if first >= high or end <= low:
            return
        if first <= low and high <= end:
            self._most[node] += amount
            self._lazy[node] += amount
            return
        middle = (low + high) // 2
        self._add(2 * node, low, middle, first, end, amount)
        self._add(2 * node + 1, middle, high, first, end, amount)
        self._most[node] = self._lazy[node] + max(self._most[2 * node], self._most[2 * node + 1])

    @property
    def most(self) -> int:
        return self._most[1]

    def place(self) -> int:
        node = 1
        while node < self._size:
            node = 2 * node if self._most[2 * node] >= self._most[2 * node + 1] else 2 * node + 1
        return node - self._size


def _steps(moves: Sequence[Move], begins: Sequence[int]) -> list[tuple[int, int, Move]]:
    """In order. At one moment windows begin (0), then what is given back may touch them (1), then grants end (2)."""
    steps = [(begin, 0, Move(0, begin, begin)) for begin in begins]
    steps += [(move.from_ns, 1, move) if move.amount_milli < 0 else (move.to_ns, 2, move) for move in moves]
    return sorted(steps)


def worst_window(moves: Sequence[Move], limit: Limit, *, spread_ms: int = 0) -> Excess | None:
    """The window in which the limit was exceeded by most, or by least not reached; None if nothing was granted.

    `spread_ms`: how far apart the clocks are by which the bucket is settled. A store reads whole milliseconds, so a
    window may seem one longer than it was.
    """
    # In thousandths of a token, times the milliseconds of the period, times the nanoseconds of one.
    scale = limit.period_ms * NS_PER_MS
    allowed = limit.capacity_milli * scale + limit.refill_milli * (1 + spread_ms) * NS_PER_MS
    begins = sorted({move.from_ns for move in moves if move.amount_milli > 0})
    places = {begin: place for place, begin in enumerate(begins)}
    never = -(1 << 120)
    tree = _Prefixes(len(begins), never)
    worst: tuple[int, int, int] | None = None
    for now_ns, kind, move in _steps(moves, begins):
        if kind == 0:
            tree.add_at(places[now_ns], limit.refill_milli * now_ns - never)
        elif kind == 1:
            tree.add_before(bisect_right(begins, move.to_ns), move.amount_milli * scale)
        else:
            tree.add_before(places[move.from_ns] + 1, move.amount_milli * scale)
            excess = tree.most - limit.refill_milli * now_ns - allowed
            if worst is None or excess > worst[0]:
                worst = excess, begins[tree.place()], now_ns
    return worst and Excess(Fraction(worst[0], scale * 1000), worst[1], worst[2])
