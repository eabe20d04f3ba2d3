"""The instruments. Both exporters use this table, so they cannot differ.

The values of every label are known in advance. Entities are never labels, because there may be millions of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "histogram", "gauge"]

# Of every instrument. The label "namespace" is taken: Kubernetes sets it on every target.
LIMITER_LABELS = ("headgate.namespace", "store")

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_REQUESTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)


@dataclass(frozen=True, slots=True)
class Instrument:
    """`name` and `unit` as in OpenTelemetry. The name for Prometheus is what a collector would make of them."""

    name: str
    kind: Kind
    unit: str
    help: str
    own_labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        return LIMITER_LABELS + self.own_labels

    @property
    def prometheus_name(self) -> str:
        unit = "_seconds" if self.unit == "s" else ""
        return f"{_words(self.name)}{unit}{'_total' if self.kind == 'counter' else ''}"

    @property
    def prometheus_labels(self) -> tuple[str, ...]:
        return tuple(map(_words, self.labels))


def _words(dotted: str) -> str:
    return dotted.replace(".", "_")


DECISIONS = Instrument(
    "headgate.decisions",
    "counter",
    "{decision}",
    "Decisions: allowed, refused, degraded (allowed without the store) or unavailable (an error was raised).",
    ("outcome", "resource"),
)
LOCAL_DECISIONS = Instrument(
    "headgate.decisions.local",
    "counter",
    "{decision}",
    "Decisions made without the store, with prefetched tokens. They are among those that were allowed.",
    ("resource",),
)
DECISION_DURATION = Instrument(
    "headgate.decision.duration",
    "histogram",
    "s",
    "Duration of a decision, waiting included.",
    ("outcome",),
    _SECONDS,
)
CALL_DURATION = Instrument(
    "headgate.store.call.duration",
    "histogram",
    "s",
    "Duration of a call to the store: ok, or failed.",
    ("result",),
    _SECONDS,
)
CALL_REQUESTS = Instrument(
    "headgate.store.call.requests",
    "histogram",
    "{request}",
    "Number of requests in a call to the store.",
    (),
    _REQUESTS,
)
BREAKER = Instrument(
    "headgate.breaker.state",
    "gauge",
    "{limiter}",
    "Number of limiters whose breaker is closed (the store answers), half-open or open; for one limiter 1 or 0.",
    ("state",),
)
WAITERS = Instrument(
    "headgate.waiters",
    "gauge",
    "{acquire}",
    "Number of acquires that are waiting.",
)
LEASES = Instrument(
    "headgate.leases",
    "gauge",
    "{lease}",
    "Number of leases that hold slots or are recorded.",
)
MISCONFIGURED = Instrument(
    "headgate.rules.misconfigured",
    "counter",
    "{request}",
    "Requests for which a rule could not be obeyed, by cause.",
    ("rule", "cause"),
)
THRESHOLDS = Instrument(
    "headgate.thresholds",
    "counter",
    "{alert}",
    "Alerts: how often the use of a limit has reached one of its thresholds.",
    ("resource",),
)

INSTRUMENTS = (
    DECISIONS,
    LOCAL_DECISIONS,
    DECISION_DURATION,
    CALL_DURATION,
    CALL_REQUESTS,
    BREAKER,
    WAITERS,
    LEASES,
    MISCONFIGURED,
    THRESHOLDS,
)
