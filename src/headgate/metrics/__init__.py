"""Metrics of limiters, for Prometheus and OpenTelemetry, and a dashboard for Grafana."""

from __future__ import annotations

from importlib.resources import files

from .instruments import INSTRUMENTS, Instrument

__all__ = ["INSTRUMENTS", "Instrument", "dashboard"]


def dashboard() -> str:
    """A dashboard for Grafana, as JSON. Choose its data source when you import it."""
    return files(__package__).joinpath("grafana.json").read_text("utf-8")
