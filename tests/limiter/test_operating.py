"""When a limiter looks at its namespace, and what goes with what."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import pytest

from headgate import Limit, NamespaceNotFound, RateLimiterUnavailable, SyncRateLimiter, ValidationError, VersionConflict
from headgate.core.decide import Answer, Request
from headgate.core.records import Change, Record
from headgate.limiter import engine
from headgate.limiter.config import namespaces
from headgate.stores import open_store, register_store
from headgate.stores.contract import Store
from headgate.testing import ManualClock

RPM = Limit.per_minute("rpm", 60)


class Spied:
    """A store in memory that others can open too. `looks` are at namespaces, `before` is called before a method."""

    def __init__(self) -> None:
        self.url = f"memory://{uuid4().hex}"
        self.looks: list[str] = []
        self.before: dict[str, Callable[[], None]] = {}

    def open(self, url: str, timeout_seconds: float) -> Store:
        store = open_store(self.url, timeout_seconds)

        class Spy:
            own_clock, in_process, usage_ms = False, False, 0

            def __getattr__(_, name: str) -> Any:
                self.before.get(name, lambda: None)()
                return getattr(store, name)

            def settle(_, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
                self.before.get("settle", lambda: None)()
                return store.settle(batch, now_ms)

            def get_records(_, keys: Sequence[str], now_ms: int | None) -> list[Record | None]:
                self.before.get("get_records", lambda: None)()
                self.looks += [key for key in keys if key.startswith("_/")]
                return store.get_records(keys, now_ms)

            def write_records(_, changes: Sequence[Change], now_ms: int | None) -> None:
                self.before.get("write_records", lambda: None)()
                store.write_records(changes, now_ms)

        return Spy()  # type: ignore[return-value]


@pytest.fixture
def spied() -> Spied:
    spied = Spied()
    register_store("spied", spied.open)
    return spied


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]

    class Time:
        monotonic = staticmethod(lambda: now[0])

    monkeypatch.setattr(engine, "time", Time)
    monkeypatch.setattr(namespaces, "time", Time)
    return now


def test_a_namespace_is_looked_at_once_a_minute(spied: Spied, time: list[float]) -> None:
    with SyncRateLimiter("spied://", config_cache_ttl=0) as limiter:
        limiter.ping()
        limiter.list_namespaces()
        assert spied.looks == []
        for _ in range(5):
            limiter.try_acquire("e", "api", {"rpm": 1}, [RPM])
            limiter.get_limits("e")
        seen = len(spied.looks)  # before limits were read, and to register it
        time[0] += 59
        limiter.try_acquire("e", "api", {"rpm": 1}, [RPM])
        assert len(spied.looks) == seen
        time[0] += 1
        limiter.try_acquire("e", "api", {"rpm": 1}, [RPM])
        assert len(spied.looks) == seen + 1


def test_whoever_is_at_work_notices_within_a_minute(spied: Spied, time: list[float]) -> None:
    with SyncRateLimiter("spied://", config_cache_ttl=0) as limiter, SyncRateLimiter(spied.url, namespace="x") as admin:
        limiter.try_acquire("e", "api", {"rpm": 1}, [RPM])
        admin.delete_namespace("default")
        assert limiter.try_acquire("e", "api", {"rpm": 1}, [RPM])
        time[0] += 60
        for _ in range(2):
            with pytest.raises(NamespaceNotFound):
                limiter.try_acquire("e", "api", {"rpm": 1}, [RPM])
        admin.recover_namespace("default")
        assert limiter.available("e", "api", [RPM]) == {"rpm": 58}


def test_whoever_deletes_it_notices_at_once() -> None:
    with SyncRateLimiter("memory://") as limiter:
        limiter.try_acquire("e", "api", {"rpm": 1}, [RPM])
        limiter.delete_namespace("default")
        with pytest.raises(NamespaceNotFound):
            limiter.try_acquire("e", "api", {"rpm": 1}, [RPM])


def test_many_at_once_register_it_once(spied: Spied) -> None:
    with SyncRateLimiter("spied://") as limiter:
        threads = [
            threading.Thread(target=limiter.try_acquire, args=(f"e{number}", "api", {"rpm": 1}, [RPM]))
            for number in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [event.action for event in limiter.get_namespace_events()] == ["namespace.registered"]


def test_what_is_wrong_is_said_before_the_store_is_asked(spied: Spied) -> None:
    def away() -> None:
        raise RateLimiterUnavailable("away")

    spied.before = dict.fromkeys(["get_records", "write_records", "list_records"], away)
    with SyncRateLimiter("spied://") as limiter:
        with pytest.raises(ValidationError):
            limiter.set_limits("a#b", [RPM])
        with pytest.raises(RateLimiterUnavailable):
            limiter.set_limits("a", [RPM])
        assert limiter.try_acquire("e", "api", {"rpm": 1}, [RPM], on_unavailable="allow").degraded


def test_a_purge_stops_if_somebody_recovers_it(spied: Spied) -> None:
    with SyncRateLimiter(spied.url, namespace="admin") as admin, SyncRateLimiter("spied://", namespace="x") as purger:
        admin.register_namespace("default")
        with SyncRateLimiter(spied.url) as limiter:
            limiter.set_system_defaults([RPM])
        admin.delete_namespace("default")
        steps = []

        def step() -> None:
            steps.append(admin.recover_namespace("default"))

        spied.before["purge"] = step
        with pytest.raises(VersionConflict):
            purger.purge_namespace("default", confirm="default")
        assert len(steps) == 1
        assert admin.get_namespace("default").status == "active"


@pytest.mark.parametrize("change", ["reset", "penalize"])
def test_no_change_without_an_event(spied: Spied, change: str) -> None:
    """What cannot be told is not done."""

    def away() -> None:
        raise RateLimiterUnavailable("away")

    with SyncRateLimiter("spied://") as limiter:
        limiter.set_system_defaults([RPM])
        limiter.adjust("e", "api", {"rpm": 20})
        spied.before["write_records"] = away
        with pytest.raises(RateLimiterUnavailable):
            limiter.reset("e", "api") if change == "reset" else limiter.penalize("e", "api", factor=0)
        assert limiter.available("e", "api") == {"rpm": 40}
        assert limiter.get_audit_events("e") == []


@pytest.mark.parametrize("days", [-1, 3661, 1.5, True, "7"])
@pytest.mark.parametrize("setting", ["usage_days", "audit_days"])
def test_bad_numbers_of_days_are_refused_by_setting(setting: str, days: Any) -> None:
    with pytest.raises(ValidationError, match=setting):
        SyncRateLimiter("memory://", **{setting: days})


def test_penalty_that_fails_leaves_no_audit_event(spied: Spied) -> None:
    with SyncRateLimiter("spied://") as limiter:
        with pytest.raises(ValidationError, match="no limits"):
            limiter.penalize("e", "api", seconds=5)
        assert limiter.get_audit_events("e") == []


def test_penalty_whose_outcome_is_not_known_is_told_as_not_confirmed(spied: Spied) -> None:
    def away() -> None:
        raise RateLimiterUnavailable("away")

    with SyncRateLimiter("spied://") as limiter:
        limiter.set_system_defaults([RPM])
        limiter.adjust("e", "api", {"rpm": 20})
        spied.before["settle"] = away
        with pytest.raises(RateLimiterUnavailable):
            limiter.penalize("e", "api", seconds=5)
        spied.before.clear()
        (event,) = limiter.get_audit_events("e")
        assert event.after == {"seconds": 5.0, "factor": None, "confirmed": False}


def test_operator_penalizes_buckets_whose_limits_are_kept_in_code() -> None:
    """Nothing is stored, or another limit: what is in use is what has to stop."""
    url = "memory://limits-in-code"
    in_code = [Limit.per_minute("tpm", 1000), Limit.concurrent("parallel", 2)]
    with SyncRateLimiter(url) as program, SyncRateLimiter(url) as operator:
        for stored in (False, True):
            if stored:
                operator.set_system_defaults([RPM])
                program.reset("e", "api")
            assert program.try_acquire("e", "api", {"tpm": 1, "parallel": 1}, in_code)
            operator.penalize("e", "api", seconds=60)
            refused = program.try_acquire("e", "api", {"tpm": 1}, in_code)
            assert not refused
            assert refused.retry_after_seconds == pytest.approx(60, abs=1)
            assert not program.try_acquire("e", "api", {"parallel": 1}, in_code)


def test_audit_events_of_one_millisecond_are_in_order_however_many_a_process_has_written() -> None:
    clock = ManualClock()
    with SyncRateLimiter("memory://", clock=clock) as limiter:
        for number in range(10_010):
            limiter.set_limits("e", [Limit.per_minute("rpm", number + 1)])
        newest = limiter.get_audit_events(limit=10_010)
    limits = [event.after["limits"]["rpm"] for event in newest if event.after]
    assert limits == [f"{number}/minute" for number in range(10_010, 0, -1)]
