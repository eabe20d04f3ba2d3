"""`/metrics`: the metrics of a namespace, for Prometheus.

Counting is a part of every decision. So it is done here in a few additions, and not by prometheus_client, which needs
five times as long; that only writes the text.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, cast

from prometheus_client.utils import floatToGoString

from ..limiter import Alert, Outcome, RateLimiter
from ..metrics.exporter import MeasuredLimiters, Metrics, Record, Values
from ..metrics.instruments import INSTRUMENTS, Instrument
from .operations import Asked, operation
from .shared import Family, Sample, exposition
from .ui.live import Decided, LiveStats, Settled
from .webhook import RESULTS

if TYPE_CHECKING:
    from .state import Service

_NOTED = 128
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class _Counter:
    def __init__(self, labels: tuple[tuple[str, str], ...]) -> None:
        self._labels = labels
        self._created = time.time()
        self._value = 0.0

    def record(self, number: float) -> None:
        self._value += number

    def samples(self, name: str) -> Iterator[Sample]:
        yield Sample(f"{name}_total", self._labels, self._value)
        yield Sample(f"{name}_created", self._labels, self._created)


class _Histogram:
    def __init__(self, labels: tuple[tuple[str, str], ...], bounds: tuple[float, ...]) -> None:
        self._labels = labels
        self._bounds = bounds
        self._created = time.time()
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def record(self, number: float) -> None:
        place = bisect_left(self._bounds, number)
        self._counts[place] += 1
        self._sum += number

    def samples(self, name: str) -> Iterator[Sample]:
        below = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts):
            below += count
            yield Sample(f"{name}_bucket", (*self._labels, ("le", floatToGoString(bound))), below)  # type: ignore[no-untyped-call]
        yield Sample(f"{name}_count", self._labels, below)
        yield Sample(f"{name}_sum", self._labels, self._sum)
        yield Sample(f"{name}_created", self._labels, self._created)


class NamespaceMetrics(Metrics):
    """The metrics of one namespace in this process, and its live counts. A token never sees those of another.

    What happens is only noted, and counted when many have been noted, a second has passed, or somebody looks: a
    decision is not kept waiting by cold code.
    """

    def __init__(
        self, limiter: RateLimiter, resources: Iterable[str], service: Service, live: LiveStats | None
    ) -> None:
        self._service = service
        self._live = live
        self._lock = threading.RLock()
        self._second = int(time.monotonic())
        self._noted: deque[Decided] = deque()
        self._noted_calls: deque[Settled] = deque()
        self._recorded: dict[Instrument, dict[Values, _Counter | _Histogram]] = {one: {} for one in INSTRUMENTS}
        super().__init__(limiter, resources, MeasuredLimiters())

    def _record(self, instrument: Instrument, values: Values) -> Record:
        of_labels = self._recorded[instrument]
        if values not in of_labels:
            labels = tuple(zip(instrument.prometheus_labels, values))
            if instrument.kind == "counter":
                of_labels[values] = _Counter(labels)
            else:
                of_labels[values] = _Histogram(labels, instrument.buckets)
        return of_labels[values].record

    def decided(self, entity_id: str, resource: str, outcome: Outcome, seconds: float) -> None:
        if len(self._noted) >= _NOTED or time.monotonic() >= self._second + 1:
            self.count_noted()
        self._noted.append((entity_id, resource, outcome, seconds))

    def settled(self, requests: int, seconds: float, ok: bool) -> None:
        if len(self._noted_calls) >= _NOTED or time.monotonic() >= self._second + 1:
            self.count_noted()
        self._noted_calls.append((requests, seconds, ok))

    def threshold(self, alert: Alert) -> None:
        super().threshold(alert)
        if self._service.webhook is not None:
            self._service.webhook.wake()

    def count_noted(self) -> None:
        with self._lock:
            decided = [self._noted.popleft() for _ in range(len(self._noted))]
            settled = [self._noted_calls.popleft() for _ in range(len(self._noted_calls))]
            second, self._second = self._second, int(time.monotonic())
            for entity_id, resource, outcome, seconds in decided:
                super().decided(entity_id, resource, cast("Outcome", outcome), seconds)
            for call in settled:
                super().settled(*call)
            if self._live is not None:
                self._live.count(second, decided, settled)

    def families(self) -> list[Family]:
        self.count_noted()
        return [*self._of_process(), *self._of_webhook(), *map(self._family, INSTRUMENTS)]

    def _family(self, one: Instrument) -> Family:
        name = one.prometheus_name.removesuffix("_total")
        if one.kind == "gauge":
            read = self._measured.read(one).items()
            samples = [Sample(name, tuple(zip(one.prometheus_labels, values)), number) for values, number in read]
        else:
            with self._lock:
                samples = [sample for recorded in self._recorded[one].values() for sample in recorded.samples(name)]
        return Family(name, one.help, one.kind, samples)

    def _of_webhook(self) -> Iterator[Family]:
        webhook, name = self._service.webhook, "headgate_webhook_requests"
        if webhook is not None:
            yield Family(
                name,
                "Attempts to deliver an alert to the webhook: delivered, or failed.",
                "counter",
                [
                    Sample(f"{name}_total", (("result", one),), webhook.counts.get((self.limiter.namespace, one), 0))
                    for one in RESULTS
                ],
            )

    def _of_process(self) -> Iterator[Family]:
        """The same for all namespaces."""
        name = "headgate_auth_failures"
        yield Family(
            name,
            "Refused tokens: none was sent (missing), not a valid token (unknown), expired, or without the scope.",
            "counter",
            [
                Sample(f"{name}_total", (("door", door), ("reason", reason)), count)
                for (door, reason), count in self._service.auth_failures.counts.items()
            ],
        )
        name = "headgate_last_reload_successful"
        yield Family(
            name,
            "1 if the file was read after its last change; 0 if it could not be, and its previous contents apply.",
            "gauge",
            [Sample(name, (("file", file),), int(done)) for file, done in self._service.reloads.items()],
        )


@operation("GET", "/metrics", "read", media=TEXT)
async def get_metrics(asked: Asked) -> bytes:
    """Get decisions, latencies, waiters, leases and the breaker of the token's namespace, in Prometheus text format."""
    return exposition(counts.families for counts in asked.service.counts(asked.limiter.namespace))
