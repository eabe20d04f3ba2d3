"""The result as one picture, for a page of either colour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

from .run import Result

OURS, THEIRS, TEXT = "#1f9e89", "#9aa4af", "#7d8590"  # the grey of the text reads on white and on black
PANELS = (
    ("memory", "In memory"),
    ("sqlite", "In an SQLite file"),
    ("redis, 64 tasks, a key each", "On Redis, 64 tasks"),
)


def draw(result: Result, folder: Path) -> bool:
    """Write benchmarks.png and benchmarks.svg, if what they show was measured."""
    panels = [(title, result["times"][section]) for section, title in PANELS if section in result["times"]]
    if len(panels) < len(PANELS):
        return False
    heights = [len(rows) for _, rows in panels]
    matplotlib.rcParams.update({"svg.hashsalt": "headgate", "svg.fonttype": "none", "font.family": "sans-serif"})
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(8.6, 0.3 * sum(heights) + 1.2), gridspec_kw={"height_ratios": heights}
    )
    for axis, (title, rows) in zip(axes, panels):
        _panel(axis, title, rows)
    figure.tight_layout(h_pad=1.5)
    figure.savefig(folder / "benchmarks.png", dpi=160, transparent=True)
    figure.savefig(folder / "benchmarks.svg", transparent=True, metadata={"Date": None})
    pyplot.close(figure)
    return True


def _panel(axis: Any, title: str, rows: list[dict[str, Any]]) -> None:
    rows = sorted(rows, key=lambda row: -row["best_us"])
    longest = rows[0]["best_us"]
    for place, row in enumerate(rows):
        ours = row["name"].startswith("headgate")
        axis.barh(place, row["best_us"], height=0.68, color=OURS if ours else THEIRS)
        axis.text(
            row["best_us"] + longest * 0.01,
            place,
            f"{row['best_us']:,.1f}" if longest < 100 else f"{row['best_us']:,.0f}",
            va="center_baseline",
            color=OURS if ours else TEXT,
            fontweight="bold" if ours else "normal",
            fontsize=9,
        )
    axis.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=9.5)
    for label, row in zip(axis.get_yticklabels(), rows):
        ours = row["name"].startswith("headgate")
        label.set(color=OURS if ours else TEXT, fontweight="bold" if ours else "normal")
    axis.set_title(f"{title}: µs per decision, shorter is better", loc="left", fontsize=10.5, color=TEXT, pad=6)
    axis.set_xlim(0, longest * 1.1)
    axis.set_ylim(-0.5, len(rows) - 0.5)
    axis.set_xticks([])
    axis.tick_params(length=0)
    for side in axis.spines.values():
        side.set_visible(False)
