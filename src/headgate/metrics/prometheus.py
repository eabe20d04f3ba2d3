"""Metrics for Prometheus, with prometheus_client."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from .exporter import AnyLimiter, MeasuredLimiters, Metrics, Record, Values
from .instruments import INSTRUMENTS, Instrument


class _Registered(Collector):
    """Shared by all limiters of a registry. It is also the collector of their gauges."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.limiters = MeasuredLimiters()
        self.counters = {one: _counter(one, registry) for one in INSTRUMENTS if one.kind == "counter"}
        self.histograms = {one: _histogram(one, registry) for one in INSTRUMENTS if one.kind == "histogram"}
        registry.register(self)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        for one in INSTRUMENTS:
            if one.kind == "gauge":
                yield GaugeMetricFamily(one.prometheus_name, one.help, labels=one.prometheus_labels)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for one in INSTRUMENTS:
            if one.kind == "gauge":
                family = GaugeMetricFamily(one.prometheus_name, one.help, labels=one.prometheus_labels)
                for values, number in self.limiters.read(one).items():
                    family.add_metric(values, number)
                yield family


def _counter(one: Instrument, registry: CollectorRegistry) -> Counter:
    return Counter(one.prometheus_name, one.help, one.prometheus_labels, registry=registry)


def _histogram(one: Instrument, registry: CollectorRegistry) -> Histogram:
    return Histogram(one.prometheus_name, one.help, one.prometheus_labels, buckets=one.buckets, registry=registry)


_lock = threading.Lock()
_known: WeakKeyDictionary[CollectorRegistry, _Registered] = WeakKeyDictionary()


def _registered(registry: CollectorRegistry) -> _Registered:
    with _lock:
        found = _known.get(registry)
        if found is None:
            found = _known[registry] = _Registered(registry)
        return found


class PrometheusMetrics(Metrics):
    """The metrics of a limiter, in a registry; the default is that of prometheus_client.

    Any number of limiters may share a registry.
    """

    def __init__(
        self, limiter: AnyLimiter, registry: CollectorRegistry | None = None, *, resources: Iterable[str] = ()
    ) -> None:
        self._registered = _registered(REGISTRY if registry is None else registry)
        super().__init__(limiter, resources, self._registered.limiters)

    def _record(self, instrument: Instrument, values: Values) -> Record:
        if instrument.kind == "counter":
            return self._registered.counters[instrument].labels(*values).inc
        return self._registered.histograms[instrument].labels(*values).observe
