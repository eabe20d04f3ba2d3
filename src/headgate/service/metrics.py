"""`/metrics`: the metrics of a namespace, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..limiter import RateLimiter
from ..metrics.prometheus import PrometheusMetrics
from .operations import Asked, operation
from .shared import Family, exposition, families_of

if TYPE_CHECKING:
    from .state import Service

TEXT = "text/plain; version=0.0.4; charset=utf-8"


class ServiceCollector(Collector):
    """Metrics of the process, which are the same for all namespaces."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        failures = CounterMetricFamily(
            "headgate_auth_failures",
            "Refused tokens: none was sent (missing), not a valid token (unknown), expired, or without the scope.",
            labels=["door", "reason"],
        )
        for labels, count in self._service.auth_failures.counts.items():
            failures.add_metric(labels, count)
        yield failures
        reloads = GaugeMetricFamily(
            "headgate_last_reload_successful",
            "1 if the file was read after its last change; 0 if it could not be, and its previous contents apply.",
            labels=["file"],
        )
        for file, successful in self._service.reloads.items():
            reloads.add_metric([file], int(successful))
        yield reloads


class NamespaceMetrics:
    """The metrics of one namespace in this process. A token never sees those of another."""

    def __init__(self, limiter: RateLimiter, resources: Iterable[str], service: ServiceCollector) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(service)
        PrometheusMetrics(limiter, self._registry, resources=resources)

    def families(self) -> list[Family]:
        return families_of(self._registry)


@operation("GET", "/metrics", "read", media=TEXT)
async def get_metrics(asked: Asked) -> bytes:
    """Get decisions, latencies, waiters, leases and the breaker of the token's namespace, in Prometheus text format."""
    return exposition(counts.families for counts in asked.service.counts(asked.limiter.namespace))
