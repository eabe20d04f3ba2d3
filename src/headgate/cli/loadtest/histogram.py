"""A histogram of latencies with a relative error of a 64th at most, in 14 KB.

Below 128 microseconds every microsecond has a bucket of its own; above, each doubling is divided into 64 buckets.
"""

from __future__ import annotations

from collections.abc import Sequence

_FINE = 128
_STEPS = _FINE // 2
_BITS = 32  # longer than an hour
SIZE = _FINE + (_BITS - 7) * _STEPS
_MOST = (1 << _BITS) - 1


def place(microseconds: int) -> int:
    """The bucket of a latency."""
    if microseconds < _FINE:
        return microseconds
    microseconds = min(microseconds, _MOST)
    shift = microseconds.bit_length() - 7
    return _FINE + (shift - 1) * _STEPS + (microseconds >> shift) - _STEPS


def most(index: int) -> int:
    """The longest latency in a bucket, in microseconds."""
    if index < _FINE:
        return index
    shift, step = divmod(index - _FINE, _STEPS)
    return ((step + _STEPS + 1) << (shift + 1)) - 1


def percentile(counts: Sequence[int], percent: float) -> int:
    """In microseconds, rounded up: never less than was measured, and at most a 64th more."""
    wanted = sum(counts) * percent / 100
    reached = 0
    for index, count in enumerate(counts):
        reached += count
        if count and reached >= wanted:
            return most(index)
    return 0
