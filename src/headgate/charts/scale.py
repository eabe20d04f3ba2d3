"""How far an axis goes, where its lines are, and how numbers on it are written."""

from __future__ import annotations

import math

_STEPS = (1, 2, 2.5, 5, 10)
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def ticks(most: float, count: int = 4) -> list[float]:
    """From 0 to at least `most`, in steps that people count in; about `count` of them above 0."""
    if not (0 < most < math.inf):
        return [0.0, 1.0]
    least_step = most / count
    power = 10.0 ** math.floor(math.log10(least_step))
    step = next(power * one for one in _STEPS if power * one >= least_step * (1 - 1e-9))
    return [number * step for number in range(math.ceil(most / step - 1e-9) + 1)]


def short(value: float) -> str:
    """With at most three digits or so, as an axis has room for: 950, 1.2k, 34M."""
    for unit, letter in _UNITS:
        if abs(value) >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"


def exact(value: float) -> str:
    return f"{value:,.3f}".rstrip("0").rstrip(".")
