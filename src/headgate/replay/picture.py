"""A report as a chart: refusals over time, and the entities with the most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from ..charts import Series, TimeChart, moments_of
from .report import EntityReport, Report

ALLOWED, REFUSED = 1, 2  # tones
_WIDTH, _CHART, _ROW = 960, 260, 26
_LEFT, _RIGHT = 210, 250  # beside the bars, for names and numbers
_LONGEST = 28
_SHOWN = 12


def picture(report: Report, title: str = "What would have been refused") -> str:
    """The text of an SVG file."""
    refused = [entity for entity in report.entities[:_SHOWN] if entity.refused]
    chart = _chart(report, title).svg(standalone=True)
    top = _CHART + 54 + 20
    height = top + (44 + _ROW * len(refused) if refused else 40)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" role="img">'
    return "".join([head, f"<title>{escape(title)}</title>", chart, *_bars(report, refused, top), "</svg>\n"])


def _chart(report: Report, title: str) -> TimeChart:
    share = f"{report.refused:,} of {report.requests:,} requests ({report.refused_share:.1%})"
    step = report.step_seconds
    window = "second" if step < 60 else "minute" if step < 3600 else "hour" if step < 86_400 else "day"
    return TimeChart(
        f"{title}: {share}",
        "Requests over time: allowed and refused",
        moments_of([one.start for one in report.moments], window),
        [
            Series("allowed", [one.allowed for one in report.moments], ALLOWED),
            Series("refused", [one.refused for one in report.moments], REFUSED),
        ],
        height=_CHART,
    )


def _bars(report: Report, refused: Sequence[EntityReport], top: int) -> Iterator[str]:
    count = sum(entity.refused > 0 for entity in report.entities)
    said = f"{count:,} of {len(report.entities):,} entities would have had requests refused"
    yield f'<text class="chart-title" x="12" y="{top + 14}">{escape(said)}</text>'
    most = max((entity.requests for entity in refused), default=1)
    for number, entity in enumerate(refused):
        y = top + 34 + number * _ROW
        wide = [(_WIDTH - _LEFT - _RIGHT) * part / most for part in (entity.requests - entity.refused, entity.refused)]
        yield f'<text x="{_LEFT - 10}" y="{y + 14}" text-anchor="end">{escape(_short(entity.entity_id))}</text>'
        yield f'<rect class="t{ALLOWED}" x="{_LEFT}" y="{y + 2}" width="{wide[0]:.1f}" height="{_ROW - 9}"/>'
        yield f'<rect class="t{REFUSED}" x="{_LEFT + wide[0]:.1f}" y="{y + 2}" width="{max(wide[1], 1):.1f}" '
        yield f'height="{_ROW - 9}"><title>{escape(_summary(entity))}</title></rect>'
        yield f'<text x="{_LEFT + sum(wide) + 10:.1f}" y="{y + 14}">{escape(_summary(entity))}</text>'


def _summary(entity: EntityReport) -> str:
    limits = ", ".join(entity.because_of)
    return f"{entity.refused:,} of {entity.requests:,} ({entity.refused / entity.requests:.1%}): {_short(limits)}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
