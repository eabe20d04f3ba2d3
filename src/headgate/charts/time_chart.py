"""A chart of series over time, as SVG. Colours are CSS classes, which the page defines for light and dark themes.

The chart is as wide as its container: lines and bars stretch, text does not. A chart that is a file of its own
(`standalone`) includes a width, colours, a title and a legend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from itertools import accumulate
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["bars", "lines"]

TONES = 6
_FINE = 1000  # the height of the plot in its own coordinates
_TOP, _BOTTOM = 14, 24  # pixels above the plot, and below it for the marks
_HEAD = 54  # more pixels, for the title and the legend
_LEFT, _RIGHT = 56, 16  # beside the plot, for the numbers; a page leaves as much around a chart that is not standalone
_WIDTH = 960
_GAP = 0.09  # on each side of a bar, as a fraction of its width

_STYLE = """
svg { background: #fff; font: 12px system-ui, sans-serif; }
text { fill: #5a6673; } .chart-title { fill: #17212b; font-size: 15px; font-weight: 600; }
.grid { stroke: #e3e8ed; } .axis { stroke: #b6c0ca; }
.t1 { fill: #0f7f86; } .t2 { fill: #c9501c; } .t3 { fill: #7a5cc0; } .t4 { fill: #b5851a; } .t5 { fill: #3a74c4; }
.t6 { fill: #7d8896; }
.line { fill: none; stroke-width: 2px; } .line.t1 { stroke: #0f7f86; } .line.t2 { stroke: #c9501c; }
.line.t3 { stroke: #7a5cc0; } .line.t4 { stroke: #b5851a; } .line.t5 { stroke: #3a74c4; } .line.t6 { stroke: #7d8896; }
.hit { fill: transparent; } .hit:hover { fill: #17212b; fill-opacity: .06; }
@media (prefers-color-scheme: dark) {
svg { background: #12181f; } text { fill: #9aa7b4; } .chart-title { fill: #e7edf3; }
.grid { stroke: #27313c; } .axis { stroke: #4a5765; } .hit:hover { fill: #fff; }
.t1 { fill: #45b8b3; } .t2 { fill: #f0824f; } .t3 { fill: #a88ee6; } .t4 { fill: #dcb04e; } .t5 { fill: #74a8ec; }
.t6 { fill: #96a2b0; }
.line.t1 { stroke: #45b8b3; } .line.t2 { stroke: #f0824f; } .line.t3 { stroke: #a88ee6; }
.line.t4 { stroke: #dcb04e; } .line.t5 { stroke: #74a8ec; } .line.t6 { stroke: #96a2b0; } }
"""


class Moments(NamedTuple):
    """The moments along the time axis. `names`: of all. `marks`: by index, the labels that fit on the axis."""

    names: Sequence[str]
    marks: dict[int, str]


@dataclass(frozen=True, slots=True)
class Series:
    """A value for each moment. `tone`: its colour, from 1 to 6; 0: by its position in the chart."""

    name: str
    values: Sequence[float]
    tone: int = 0


@dataclass(frozen=True, slots=True)
class TimeChart:
    """`title` and `description` are for screen readers. Bars are stacked; lines are not.

    `pointed`: each moment has a tooltip with its values.
    """

    title: str
    description: str
    moments: Moments
    series: Sequence[Series]
    kind: Kind = "bars"
    height: int = 190
    pointed: bool = True

    def legend(self) -> list[tuple[str, str]]:
        """The class of each series, and its name."""
        return [(_tone(series, index), series.name) for index, series in enumerate(self.series)]

    def svg(self, *, standalone: bool = False) -> str:
        top = _TOP + (_HEAD if standalone else 0)
        height = self.height + (_HEAD if standalone else 0)
        width = str(_WIDTH) if standalone else "100%"
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" width="{width}" height="{height}">',
            f"<title>{escape(self.title)}</title><desc>{escape(self.description)}</desc>",
            *(self._head() if standalone else ()),
            *self._axes(top, height - _BOTTOM),
            *(["</svg>"] if standalone else ()),
            "</svg>",
        ]
        return "".join(parts)

    def _head(self) -> Iterator[str]:
        yield f"<style>{_STYLE}</style>"
        yield f'<text class="chart-title" x="12" y="24">{escape(self.title)}</text><text x="12" y="46">'
        for tone, name in self.legend():
            yield f'<tspan class="{tone}">&#9632; </tspan><tspan>{escape(name)}&#160;&#160;&#160; </tspan>'
        yield f'</text><svg x="{_LEFT}" width="{_WIDTH - _LEFT - _RIGHT}" overflow="visible">'

    def _axes(self, top: int, bottom: int) -> Iterator[str]:
        values = ticks(self._most())
        heights = [(bottom - (bottom - top) * value / values[-1], value) for value in values]
        for height, value in heights:
            kind = "grid" if value else "axis"
            yield f'<line class="{kind}" x1="0" x2="100%" y1="{height:.1f}" y2="{height:.1f}"/>'
        yield f'<svg y="{top}" width="100%" height="{bottom - top}" preserveAspectRatio="none" '
        yield f'viewBox="0 0 {max(1, len(self.moments.names))} {_FINE}">'
        yield from self._lines(values[-1]) if self.kind == "lines" else self._bars(values[-1])
        yield from self._hits() if self.pointed else ()
        yield "</svg>"
        for height, value in heights:
            yield f'<text x="-8" y="{height + 4:.1f}" text-anchor="end">{short(value)}</text>'
        yield from self._marks(bottom + 17)

    def _marks(self, height: int) -> Iterator[str]:
        count = len(self.moments.names)
        for index, name in self.moments.marks.items():
            place = (index + 0.5) / count
            # At the edges a centred label would not fit.
            anchor = "start" if place < 0.06 else "end" if place > 0.94 else "middle"
            at = {"start": 0.0, "end": 1.0}.get(anchor, place)
            yield f'<text x="{at:.2%}" y="{height}" text-anchor="{anchor}">{escape(name)}</text>'

    def _most(self) -> float:
        if self.kind == "lines":
            return max((value for series in self.series for value in series.values), default=0)
        return max(
            (sum(max(0, value) for value in values) for values in zip(*(series.values for series in self.series))),
            default=0,
        )

    def _bars(self, most: float) -> Iterator[str]:
        stacks = [
            list(accumulate((max(0, value) for value in values), initial=0.0))
            for values in zip(*(series.values for series in self.series))
        ]
        for number, series in enumerate(self.series):
            steps = []
            for index, stack in enumerate(stacks):
                low, high = (round(_FINE * value / most) for value in stack[number : number + 2])
                if high > low:
                    left, wide = _plain(index + _GAP), _plain(1 - 2 * _GAP)
                    steps.append(f"M{left} {_FINE - low}V{_FINE - high}h{wide}V{_FINE - low}z")
            yield f'<path class="{_tone(series, number)}" d="{"".join(steps)}"/>'

    def _lines(self, most: float) -> Iterator[str]:
        for number, series in enumerate(self.series):
            points = [f"{index + 0.5:g} {_FINE - round(_FINE * value / most)}" for index, value in _each(series)]
            path = "L".join(points)
            yield f'<path class="line {_tone(series, number)}" vector-effect="non-scaling-stroke" d="M{path}"/>'

    def _hits(self) -> Iterator[str]:
        for index, name in enumerate(self.moments.names):
            said = ", ".join(f"{series.name} {exact(series.values[index])}" for series in self.series)
            yield f'<rect class="hit" x="{index}" width="1" height="{_FINE}">'
            yield f"<title>{escape(f'{name}: {said}')}</title></rect>"


def largest(series: Sequence[Series], count: int = TONES) -> list[Series]:
    """At most `count` series, the largest first; the rest are added up in the last one."""
    ordered = sorted(series, key=lambda one: (-sum(one.values), one.name))
    if len(ordered) <= count:
        return ordered
    rest = ordered[count - 1 :]
    together = [sum(values) for values in zip(*(one.values for one in rest))]
    return [*ordered[: count - 1], Series(f"{len(rest)} others", together, TONES)]


def _tone(series: Series, index: int) -> str:
    return f"t{series.tone or index % TONES + 1}"


def _each(series: Series) -> Iterator[tuple[int, float]]:
    return iter(enumerate(series.values))


def _plain(number: float) -> str:
    return f"{number:.2f}"


# The time axis

_MARKS = 6
_FORMS: dict[str, tuple[Callable[[datetime], str], Callable[[datetime], str]]] = {
    "second": (lambda at: f"{at:%H:%M:%S}", lambda at: f"{at:%H:%M:%S}"),
    "minute": (lambda at: f"{at:%b} {at.day}, {at:%H:%M}", lambda at: f"{at:%H:%M}"),
    "hour": (lambda at: f"{at:%b} {at.day}, {at:%H:%M}", lambda at: f"{at:%H:%M}"),
    "day": (lambda at: f"{at:%b} {at.day}, {at.year}", lambda at: f"{at:%b} {at.day}"),
    "month": (lambda at: f"{at:%B} {at.year}", lambda at: f"{at:%b}"),
}


def moments_of(starts: Sequence[datetime], window: str) -> Moments:
    """`window`: the length of each: second, minute, hour, day or month."""
    name, mark = _FORMS[window]
    step = max(1, -(-len(starts) // _MARKS))
    # Counted from the newest moment, so that it always has a label.
    marked = range(len(starts) - 1, -1, -step)
    return Moments([name(start) for start in starts], {index: mark(starts[index]) for index in marked})


# The axis of values

_STEPS = (1, 2, 2.5, 5, 10)
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def ticks(most: float, count: int = 4) -> list[float]:
    """From 0 to at least `most`, in round steps; about `count` of them above 0."""
    if not (0 < most < math.inf):
        return [0.0, 1.0]
    least_step = most / count
    power = 10.0 ** math.floor(math.log10(least_step))
    step = next(power * one for one in _STEPS if power * one >= least_step * (1 - 1e-9))
    return [number * step for number in range(math.ceil(most / step - 1e-9) + 1)]


def short(value: float) -> str:
    """With three digits: 950, 1.2k, 34M."""
    value = float(f"{value:.3g}")
    for unit, letter in _UNITS:
        if abs(value) >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"


def exact(value: float) -> str:
    return f"{value:,.3f}".rstrip("0").rstrip(".")
