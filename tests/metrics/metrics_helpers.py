"""A store that can be away, and what both exporters show, in one form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from prometheus_client import CollectorRegistry

from headgate import RateLimiterUnavailable, register_store
from headgate.core.decide import Answer, Request
from headgate.metrics import INSTRUMENTS, Instrument
from headgate.stores.memory.store import MemoryStore

Samples: TypeAlias = "dict[tuple[str, frozenset[tuple[str, str]]], float]"

BY_NAME = {one.name: one for one in INSTRUMENTS}


class AwayStore(MemoryStore):
    """`away`: no request is settled."""

    in_process = False
    away = False

    def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        if self.away:
            raise RateLimiterUnavailable("away")
        return super().settle(batch, now_ms)


def away_store() -> AwayStore:
    """What `away://` opens from now on."""
    store = AwayStore()
    register_store("away", lambda url, timeout: store)
    return store


def scraped(registry: CollectorRegistry) -> Samples:
    """What Prometheus would see, without when series began and what has not happened."""
    samples = [sample for family in registry.collect() for sample in family.samples]
    return _happened((one.name, one.labels, one.value) for one in samples if not one.name.endswith("_created"))


def exported(reader: InMemoryMetricReader) -> Samples:
    """What an OpenTelemetry SDK exports, as a collector would show it to Prometheus."""
    data = reader.get_metrics_data()
    if data is None:
        return {}
    found: list[tuple[str, dict[str, str], float]] = []
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        one = BY_NAME[metric.name]
        assert (metric.unit, metric.description) == (one.unit, one.help)
        for point in metric.data.data_points:
            labels = {name.replace(".", "_"): value for name, value in (point.attributes or {}).items()}
            assert tuple(labels) == one.prometheus_labels
            found += _samples(one, labels, point)
    return _happened(found)


def _samples(one: Instrument, labels: dict[str, Any], point: Any) -> Iterator[tuple[str, dict[str, str], float]]:
    name = one.prometheus_name
    if not isinstance(point, HistogramDataPoint):
        yield name, labels, point.value
        return
    assert tuple(point.explicit_bounds) == one.buckets
    for bound, count in zip([*map(str, one.buckets), "+Inf"], accumulate(point.bucket_counts)):
        yield f"{name}_bucket", {**labels, "le": bound}, count
    yield f"{name}_count", labels, point.count
    yield f"{name}_sum", labels, point.sum


def _happened(samples: Iterable[tuple[str, dict[str, str], float]]) -> Samples:
    found: Samples = {}
    for name, labels, value in samples:
        series = (name, frozenset(labels.items()))
        assert series not in found, "a series is there twice"
        if value:
            found[series] = value
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    """The sum over all series that have the labels."""
    wanted = {(label.replace("of_", "headgate_"), text) for label, text in labels.items()}
    return sum(number for (series, own), number in samples.items() if series == name and wanted <= own)
