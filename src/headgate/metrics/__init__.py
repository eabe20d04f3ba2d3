"""Metrics: what a limiter decides, how long it takes and how it is, for Prometheus and OpenTelemetry.

What a library is needed for has a module of its own: `prometheus`, `opentelemetry`. `python -m headgate.metrics` prints
a dashboard for Grafana.
"""

from .grafana import dashboard
from .instruments import INSTRUMENTS, Instrument

__all__ = ["INSTRUMENTS", "Instrument", "dashboard"]
