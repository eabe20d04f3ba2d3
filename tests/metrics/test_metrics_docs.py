"""docs/metrics.md has every instrument, as it is."""

from __future__ import annotations

from pathlib import Path

from headgate.metrics import INSTRUMENTS, Instrument
from headgate.metrics.instruments import LIMITER_LABELS

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def row(one: Instrument) -> str:
    labels = ", ".join(f"`{label}`" for label in one.own_labels)
    return f"| `{one.prometheus_name}` | `{one.name}` | {one.kind} | {labels} | {one.help} |"


def test_table_of_metrics_in_the_docs_is_complete() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `headgate_")]
    assert rows == [row(one) for one in INSTRUMENTS]


def test_common_labels_are_documented() -> None:
    for label in LIMITER_LABELS:
        assert f"`{label}`" in PAGE
