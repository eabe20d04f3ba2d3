"""Latencies, counted in buckets that are as wide as a 64th of what they count: any number of them in 14 KB.

Below 128 microseconds every microsecond has a bucket of its own; from there on each doubling is divided by 64.
"""

from __future__ import annotations

from collections.abc import Sequence

_FINE = 128
_STEPS = _FINE // 2
_BITS = 32  # longer than an hour
SIZE = _FINE + (_BITS - 7) * _STEPS
_MOST = (1 << _BITS) - 1


def place(microseconds: int) -> int:
    """Which bucket counts it."""
    if microseconds < _FINE:
        return microseconds
    microseconds = min(microseconds, _MOST)
    shift = microseconds.bit_length() - 7
    return _FINE + (shift - 1) * _STEPS + (microseconds >> shift) - _STEPS


def most(index: int) -> int:
    """The longest that a bucket counts, in microseconds."""
    if index < _FINE:
        return index
    shift, step = divmod(index - _FINE, _STEPS)
    return ((step + _STEPS + 1) << (shift + 1)) - 1


def percentile(counts: Sequence[int], percent: float) -> int:
    """So many microseconds were enough for that part of them: never less than was measured, a 64th more at most."""
    wanted = sum(counts) * percent / 100
    reached = 0
    for index, count in enumerate(counts):
        reached += count
        if count and reached >= wanted:
            return most(index)
    return 0
