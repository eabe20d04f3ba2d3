"""Both exporters: they show the same, of any number of limiters, and never a label that somebody else could fill."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_helpers import Samples, away_store, exported, scraped, value
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from headgate import (
    Ask,
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SyncRateLimiter,
    ValidationError,
)
from headgate.http.engine import RuleEngine, SyncGate
from headgate.http.rules import Rule
from headgate.http.wsgi import WsgiCall
from headgate.metrics import INSTRUMENTS
from headgate.metrics.opentelemetry import OpenTelemetryMetrics
from headgate.metrics.prometheus import PrometheusMetrics
from headgate.testing import ManualClock

LIMITS = [Limit.per_minute("rpm", 10), Limit.concurrent("parallel", 2)]
RESOURCES = ("chat", "embed")


class Places:
    """A registry and a meter provider, and the metrics of limiters in both."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.open: list[Any] = []

    def measure(self, limiter: Any, resources: Any = RESOURCES) -> list[Any]:
        made = [
            PrometheusMetrics(limiter, self.registry, resources=resources),
            OpenTelemetryMetrics(limiter, self.provider, resources=resources),
        ]
        self.open += made
        return made

    def samples(self) -> Samples:
        """Of either: they are the same."""
        prometheus, opentelemetry = scraped(self.registry), exported(self.reader)
        assert prometheus.keys() == opentelemetry.keys()
        assert prometheus == pytest.approx(opentelemetry)
        return prometheus

    def close(self) -> None:
        for one in self.open:
            one.close()
        self.provider.shutdown()


@pytest.fixture
def places() -> Iterator[Places]:
    places = Places()
    yield places
    places.close()


ACTIONS = st.tuples(
    st.sampled_from(["try", "slot", "each", "many", "end", "away", "back"]),
    st.sampled_from([*RESOURCES, "x", "y"]),
    st.integers(1, 8),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(ACTIONS, max_size=25), st.sampled_from(["block", "allow", "local"]))
def test_both_exporters_show_the_same_numbers(actions: list[tuple[str, str, int]], policy: Any) -> None:
    store, places = away_store(), Places()
    held: list[Any] = []
    with SyncRateLimiter("away://", clock=ManualClock(), on_unavailable=policy) as limiter:
        places.measure(limiter)
        for action, resource, amount in actions:
            with suppress(RateLimiterUnavailable):
                act(limiter, action, Ask("e", resource, {"rpm": amount}, LIMITS), held)
            if action in ("away", "back"):
                store.away = action == "away"
        samples = places.samples()
        asked = sum({"try": 1, "slot": 1, "many": 2, "each": 3}.get(action, 0) for action, _, _ in actions)
        assert value(samples, "headgate_decisions_total") == asked
        assert value(samples, "headgate_decision_duration_seconds_count") == asked
        calls = value(samples, "headgate_store_call_requests_count")
        assert calls == value(samples, "headgate_store_call_duration_seconds_count")
        assert value(samples, "headgate_leases") == limiter.leases_held == len(held)
        assert value(samples, "headgate_breaker_state", state=limiter.breaker_state) == 1
        assert value(samples, "headgate_breaker_state") == 1
        for lease in held:
            with suppress(RateLimiterUnavailable):
                lease.commit()
    places.close()


def act(limiter: SyncRateLimiter, action: str, ask: Ask, held: list[Any]) -> None:
    if action == "try":
        limiter.try_acquire(*ask)
    elif action == "slot":
        decision = limiter.try_acquire(*ask._replace(consume={"parallel": 1}))
        held += decision.leases if decision.holds_slots else []
    elif action == "each":
        limiter.try_acquire_each([ask, [ask, ask._replace(entity_id="f")]])
    elif action == "many":
        wish = {f"{name}#{ask.resource}": ask.consume for name in ("e", "f")}
        with suppress(RateLimitExceeded), limiter.acquire_many(wish, limits=dict.fromkeys(wish, LIMITS)):
            pass
    elif action == "end" and held:
        held.pop().rollback()


def test_decisions_are_counted_by_outcome_and_named_resource(places: Places) -> None:
    store = away_store()
    with SyncRateLimiter("away://", namespace="shop") as limiter:
        places.measure(limiter)
        for resource in ("chat", "chat", "embed", "x", "y"):
            limiter.try_acquire("e", resource, {"rpm": 6}, LIMITS)
        store.away = True
        limiter.try_acquire("e", "chat", {"rpm": 1}, LIMITS, on_unavailable="allow")
        with pytest.raises(RateLimiterUnavailable):
            limiter.try_acquire("e", "z", {"rpm": 1}, LIMITS)
        samples = places.samples()
    found = {
        (labels["outcome"], labels["resource"]): number
        for (name, own), number in samples.items()
        if name == "headgate_decisions_total" and (labels := dict(own))
    }
    assert found == {
        ("allowed", "chat"): 1,
        ("refused", "chat"): 1,
        ("degraded", "chat"): 1,
        ("allowed", "embed"): 1,
        ("allowed", "other"): 2,
        ("unavailable", "other"): 1,
    }
    assert value(samples, "headgate_store_call_duration_seconds_count", result="ok") == 5
    assert value(samples, "headgate_store_call_duration_seconds_count", result="failed") == 2
    assert value(samples, "headgate_store_call_requests_count") == 7


def test_no_label_is_unbounded(places: Places) -> None:
    with SyncRateLimiter("memory://") as limiter:
        places.measure(limiter)
        places.samples()
        before = series(places.registry)
        for number in range(200):
            limiter.try_acquire(f"entity-{number}", f"resource-{number}", {"rpm": 1}, LIMITS)
        assert series(places.registry) == before
        assert not any("entity-" in str(one) or "resource-" in str(one) for one in places.samples())


def series(registry: CollectorRegistry) -> set[str]:
    return {f"{one.name}{one.labels}" for family in registry.collect() for one in family.samples}


def test_many_limiters_in_one_place(places: Places) -> None:
    one, two, three = (SyncRateLimiter("memory://", namespace=name) for name in ("a", "b", "b"))
    with one, two, three:
        for limiter in (one, two, three):
            places.measure(limiter)
            limiter.try_acquire("e", "r", {"rpm": 1}, LIMITS)
        leases = [limiter.try_acquire("e", "r", {"parallel": 1}, LIMITS).lease for limiter in (one, two, three)]
        samples = places.samples()
        for name, limiters in (("a", 1), ("b", 2)):
            assert value(samples, "headgate_decisions_total", of_namespace=name) == 2 * limiters
            assert value(samples, "headgate_leases", of_namespace=name) == limiters
            assert value(samples, "headgate_breaker_state", of_namespace=name, state="closed") == limiters
        for lease in leases:
            assert lease is not None
            lease.commit()


def test_a_closed_exporter_counts_no_more(places: Places) -> None:
    with SyncRateLimiter("memory://") as limiter:
        lease = limiter.try_acquire("e", "r", {"parallel": 1}, LIMITS).lease
        made = places.measure(limiter)
        limiter.try_acquire("e", "r", {"rpm": 1}, LIMITS)
        assert value(places.samples(), "headgate_leases") == 1
        for one in made:
            with one:
                pass
            one.close()
        limiter.try_acquire("e", "r", {"rpm": 1}, LIMITS)
        samples = places.samples()
        assert value(samples, "headgate_decisions_total") == 1
        assert value(samples, "headgate_leases") == value(samples, "headgate_breaker_state") == 0
        assert not limiter.observers._watchers
        places.measure(limiter)  # again, where it was before
        limiter.try_acquire("e", "r", {"rpm": 1}, LIMITS)
        assert value(places.samples(), "headgate_decisions_total") == 2
        assert lease is not None
        lease.commit()


def test_a_limiter_is_measured_once_in_each_place(places: Places) -> None:
    with SyncRateLimiter("memory://") as limiter:
        first = places.measure(limiter)
        for kind, place in ((PrometheusMetrics, places.registry), (OpenTelemetryMetrics, places.provider)):
            with pytest.raises(ValidationError, match="already measured there"):
                kind(limiter, place)  # type: ignore[operator]
        limiter.try_acquire("e", "r", {"rpm": 1}, LIMITS)
        assert value(places.samples(), "headgate_decisions_total") == 1
        for one in first:
            one.close()
        places.measure(limiter)
        for one in first:
            one.close()  # it is not what measures by now
        assert value(places.samples(), "headgate_breaker_state") == 1


def test_what_is_closed_keeps_no_limiter_alive(places: Places) -> None:
    limiter = SyncRateLimiter("memory://")
    for one in places.measure(limiter):
        one.close()
    limiter.close()
    places.open.clear()
    gone = weakref.ref(limiter)
    del limiter, one
    gc.collect()
    assert gone() is None


def test_tasks_and_those_who_wait(places: Places) -> None:
    async def scenario() -> None:
        async with RateLimiter("memory://") as limiter:
            places.measure(limiter)
            async with limiter.acquire("e", "chat", {"parallel": 2}, LIMITS):
                waiting = asyncio.create_task(limiter.try_acquire("e", "chat", {"parallel": 1}, LIMITS, max_wait=60))
                await asyncio.sleep(0)
                samples = places.samples()
                assert value(samples, "headgate_waiters", store="memory") == 1
                assert value(samples, "headgate_leases") == 1
            lease = (await waiting).lease
            assert lease is not None
            await lease.commit()
            samples = places.samples()
            assert value(samples, "headgate_decisions_total", outcome="allowed", resource="chat") == 2
            assert value(samples, "headgate_waiters") == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("bad", ["chat", b"chat", 1, [""], [1], ["a/b#c"]])
def test_bad_resources_are_refused_and_nothing_is_watched(places: Places, bad: Any) -> None:
    with SyncRateLimiter("memory://") as limiter:
        for kind, place in ((PrometheusMetrics, places.registry), (OpenTelemetryMetrics, places.provider)):
            with pytest.raises(ValidationError, match="resource"):
                kind(limiter, place, resources=bad)  # type: ignore[operator]
        assert not limiter.observers._watchers


def test_names_are_what_both_conventions_ask_for() -> None:
    for one in INSTRUMENTS:
        assert one.name.startswith("headgate.")
        assert one.name == one.name.lower()
        assert not one.name.endswith(("total", "seconds"))
        assert one.prometheus_name.endswith("_total") == (one.kind == "counter")
        assert one.prometheus_name.removesuffix("_total").endswith("_seconds") == (one.unit == "s")
        assert bool(one.buckets) == (one.kind == "histogram")
        assert one.help.endswith(".")


GLOBAL = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from headgate import SyncRateLimiter, ValidationError
from headgate.metrics.opentelemetry import OpenTelemetryMetrics

reader = InMemoryMetricReader()
with SyncRateLimiter("memory://", namespace="a") as a, SyncRateLimiter("memory://", namespace="b") as b:
    OpenTelemetryMetrics(a)
    metrics.set_meter_provider(MeterProvider([reader]))
    OpenTelemetryMetrics(b)
    try:
        OpenTelemetryMetrics(b, metrics.get_meter_provider())
    except ValidationError as twice:
        assert "already" in str(twice)
    else:
        raise AssertionError
    (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
    waiters = next(one for one in scope.metrics if one.name == "headgate.waiters")
    assert [point.attributes["headgate.namespace"] for point in waiters.data.data_points] == ["a", "b"]
metrics.get_meter_provider().shutdown()
"""
MANY = """
import os

from prometheus_client import CollectorRegistry, generate_latest, multiprocess

from headgate import Limit, SyncRateLimiter
from headgate.metrics.prometheus import PrometheusMetrics

children = []
for _ in range(2):
    child = os.fork()
    if not child:
        with SyncRateLimiter("memory://") as limiter, PrometheusMetrics(limiter):
            for _ in range(3):
                limiter.try_acquire("e", "r", {"rpm": 1}, [Limit.per_minute("rpm", 2)])
        os._exit(0)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_a_provider_that_comes_later() -> None:
    run(GLOBAL)


def test_prometheus_sums_over_processes(tmp_path: Path) -> None:
    said = run(MANY, PROMETHEUS_MULTIPROC_DIR=str(tmp_path))
    labels = 'headgate_namespace="default",outcome="{}",resource="other",store="memory"'
    assert f"headgate_decisions_total{{{labels.format('allowed')}}} 4.0" in said
    assert f"headgate_decisions_total{{{labels.format('refused')}}} 2.0" in said


def test_rules_that_cannot_be_obeyed_are_counted_by_rule_and_cause(places: Places) -> None:
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/chat", "REMOTE_ADDR": "192.0.2.1", "HTTP_X_SIZE": "-1"}
    rules = [
        Rule("chat", "/chat"),
        Rule("batch", limits="5/minute", also=True, cost=lambda call: int(call.header("x-size"))),
        Rule("watch", shadow=True, priority=1),
    ]
    with SyncRateLimiter("memory://") as limiter:
        places.measure(limiter)
        gate = SyncGate(RuleEngine(limiter, rules))
        for _ in range(3):
            gate.check(WsgiCall(dict(environ)))
        samples = places.samples()
    name = "headgate_rules_misconfigured_total"
    assert value(samples, name, rule="chat", cause="no_limits") == 3
    assert value(samples, name, rule="watch", cause="no_limits") == 3
    assert value(samples, name, rule="batch", cause="bad_cost") == 3
    assert value(samples, name) == 9


def test_an_alert_is_counted_by_its_named_resource(places: Places) -> None:
    usd = [Limit.quota("usd", 10, "day", alert_at=(0.5, 1.0))]
    with SyncRateLimiter("memory://") as limiter:
        places.measure(limiter)
        for resource in ("chat", "chat", "x", "y"):
            limiter.try_acquire("e", resource, {"usd": 5}, usd)
        samples = places.samples()
    assert value(samples, "headgate_thresholds_total", resource="chat") == 2
    assert value(samples, "headgate_thresholds_total", resource="other") == 2
    assert value(samples, "headgate_thresholds_total") == 4
