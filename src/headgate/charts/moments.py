"""The moments along a time axis: a name for each, and those that are written below it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

_MARKS = 6


class Moments(NamedTuple):
    """`names`: what each is called. `marks`: by their index, those that the axis has room for."""

    names: Sequence[str]
    marks: dict[int, str]


_FORMS: dict[str, tuple[Callable[[datetime], str], Callable[[datetime], str]]] = {
    "second": (lambda at: f"{at:%H:%M:%S}", lambda at: f"{at:%H:%M:%S}"),
    "minute": (lambda at: f"{at:%b} {at.day}, {at:%H:%M}", lambda at: f"{at:%H:%M}"),
    "hour": (lambda at: f"{at:%b} {at.day}, {at:%H:%M}", lambda at: f"{at:%H:%M}"),
    "day": (lambda at: f"{at:%b} {at.day}, {at.year}", lambda at: f"{at:%b} {at.day}"),
    "month": (lambda at: f"{at:%B} {at.year}", lambda at: f"{at:%b}"),
}


def moments_of(starts: Sequence[datetime], window: str) -> Moments:
    """`window`: how long each lasts: second, minute, hour, day or month."""
    name, mark = _FORMS[window]
    step = max(1, -(-len(starts) // _MARKS))
    # Counted from the newest, which is the one that people look for.
    marked = range(len(starts) - 1, -1, -step)
    return Moments([name(start) for start in starts], {index: mark(starts[index]) for index in marked})
