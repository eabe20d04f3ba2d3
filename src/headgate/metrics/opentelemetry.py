"""Metrics for OpenTelemetry. They need only its API; the application chooses the SDK and the exporter."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from weakref import WeakKeyDictionary

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter, get_meter_provider

from .. import __version__
from .exporter import AnyLimiter, MeasuredLimiters, Metrics, Record, Values
from .instruments import INSTRUMENTS, Instrument


class _Meter:
    """Shared by all limiters of a provider, because an instrument can be created only once."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = get_meter("headgate", __version__, provider)
        self.limiters = MeasuredLimiters()
        self.counters = {}
        self.histograms = {}
        for one in INSTRUMENTS:
            if one.kind == "counter":
                self.counters[one] = meter.create_counter(one.name, one.unit, one.help)
            elif one.kind == "histogram":
                self.histograms[one] = meter.create_histogram(
                    one.name, one.unit, one.help, explicit_bucket_boundaries_advisory=one.buckets
                )
            else:
                meter.create_observable_gauge(one.name, [self._reader(one)], one.unit, one.help)

    def _reader(self, gauge: Instrument) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def read(options: CallbackOptions) -> Iterator[Observation]:
            for values, number in self.limiters.read(gauge).items():
                yield Observation(number, dict(zip(gauge.labels, values)))

        return read


_lock = threading.Lock()
_known: WeakKeyDictionary[MeterProvider, _Meter] = WeakKeyDictionary()


def _meter(provider: MeterProvider | None) -> _Meter:
    with _lock:
        if provider is None or provider is get_meter_provider():
            return _global_meter()
        found = _known.get(provider)
        if found is None:
            found = _known[provider] = _Meter(provider)
        return found


@cache
def _global_meter() -> _Meter:
    """Of the global provider, or of the proxy until one is set."""
    return _Meter(None)


class OpenTelemetryMetrics(Metrics):
    """The metrics of a limiter, with a meter provider; the default is the global one.

    Any number of limiters may share a provider.
    """

    def __init__(
        self, limiter: AnyLimiter, meter_provider: MeterProvider | None = None, *, resources: Iterable[str] = ()
    ) -> None:
        self._meter = _meter(meter_provider)
        super().__init__(limiter, resources, self._meter.limiters)

    def _record(self, instrument: Instrument, values: Values) -> Record:
        attributes = dict(zip(instrument.labels, values))
        if instrument.kind == "counter":
            return partial(self._meter.counters[instrument].add, attributes=attributes)
        return partial(self._meter.histograms[instrument].record, attributes=attributes)
