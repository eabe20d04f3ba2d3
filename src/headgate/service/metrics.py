"""`/metrics`: what the limiter of a namespace does here, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest

from ..limiter import RateLimiter
from ..metrics.prometheus import PrometheusMetrics
from .operations import Asked, operation

TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """Each namespace has its own: nobody sees what others do."""

    def __init__(self, limiter: RateLimiter, resources: Iterable[str]) -> None:
        self._registry = CollectorRegistry()
        PrometheusMetrics(limiter, self._registry, resources=resources)

    def page(self) -> bytes:
        return generate_latest(self._registry)


@operation("GET", "/metrics", "read", media=TEXT)
async def get_metrics(asked: Asked) -> bytes:
    """Decisions, latencies, waiters, leases and the breaker of the token's namespace, in Prometheus' text format."""
    return asked.service.room(asked.limiter.namespace).metrics.page()
