"""Events: a name and fields, to the standard log and to a callback."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from limiter_helpers import failing_store

from headgate import Event, Limit, RateLimiter, RateLimiterUnavailable, SyncRateLimiter, ValidationError
from headgate.testing import ManualClock

RPM = Limit.per_minute("rpm", 60)
ONE = Limit.concurrent("parallel", 1)
LIMITS = [RPM, ONE]


class QuickClock(ManualClock):
    """On which nobody really waits."""

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limiter(events: list[Event], clock: ManualClock) -> Any:
    limiter = SyncRateLimiter("memory://", clock=clock, on_event=events.append)
    yield limiter
    limiter.close()


def granted(**consume: int) -> dict[str, Any]:
    return {"entity_id": "e", "resource": "r", "degraded": False, "consume": consume}


def test_granted_and_refused_acquires_are_events_with_their_amounts(limiter: Any, events: list[Event]) -> None:
    with limiter.acquire("e", "r", {"rpm": 50, "parallel": 1}, LIMITS):
        assert not limiter.try_acquire("e", "r", {"rpm": 11}, LIMITS)
        assert not limiter.try_acquire("e", "r", {"parallel": 2}, LIMITS)
    assert [(event.name, event.fields) for event in events] == [
        ("acquire.granted", granted(rpm=50, parallel=1)),
        ("acquire.refused", granted(rpm=11) | {"retry_after_ms": 1000}),
        ("acquire.refused", granted(parallel=2) | {"retry_after_ms": None}),
    ]
    assert str(events[1]) == (
        "acquire.refused entity_id='e' resource='r' degraded=False consume={'rpm': 11} retry_after_ms=1000"
    )


def test_every_acquire_from_the_cache_too(limiter: Any, events: list[Event]) -> None:
    for _ in range(3):
        assert limiter.try_acquire("e", "r", {"rpm": 1}, LIMITS)
    assert [event.name for event in events] == ["acquire.granted"] * 3


def test_a_wait_is_an_event_before_the_grant(events: list[Event]) -> None:
    with SyncRateLimiter("memory://", clock=QuickClock(), on_event=events.append) as limiter:
        limiter.adjust("e", "r", {"rpm": 70}, LIMITS)
        with limiter.acquire("e", "r", {"rpm": 1, "parallel": 1}, LIMITS, max_wait=30):
            pass
        waited, got = events
        assert (waited.name, got.name) == ("acquire.waited", "acquire.granted")
        assert waited.fields.pop("waited_seconds") >= 0
        assert waited.fields == got.fields == granted(rpm=1, parallel=1)


def test_a_lost_lease_a_penalty_and_a_reconciling(limiter: Any, events: list[Event], clock: ManualClock) -> None:
    lease = limiter.try_acquire("e", "r", {"parallel": 1}, LIMITS).lease
    clock.advance(60)
    limiter.reconcile()
    lease.renew()
    lease.renew()
    limiter.penalize("e", "r", seconds=5, factor=0.5, limits=LIMITS)
    limiter.sync_from_headers("e#r", {"x-ratelimit-remaining-requests": "5"}, limits=LIMITS)
    assert events[1].fields.pop("buckets") in (0, 1)
    assert [(event.name, event.fields) for event in events[1:]] == [
        ("reconcile.done", {"namespace": "default", "leases": 1, "restored": 0, "records": 0}),
        ("lease.lost", {"entity_id": "e", "resource": "r", "lease_id": lease.id}),
        ("penalized", {"entity_id": "e", "resource": "r", "seconds": 5, "factor": 0.5}),
    ]


@pytest.mark.parametrize("policy", ["allow", "local"])
def test_an_acquire_while_the_store_is_away(events: list[Event], policy: Any) -> None:
    store = failing_store()
    with SyncRateLimiter("failing://", on_unavailable=policy, on_event=events.append) as limiter:
        assert limiter.try_acquire("e", "r", {"rpm": 1}, LIMITS)
        store.error = RateLimiterUnavailable("away")
        assert limiter.try_acquire("e", "r", {"rpm": 1}, LIMITS)
        assert [(event.name, event.fields["degraded"]) for event in events] == [
            ("acquire.granted", False),
            ("acquire.granted", True),
        ]


def test_the_log_has_them_as_text_and_as_fields(limiter: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "headgate")
    limiter.penalize("e", "r", seconds=5, limits=LIMITS)
    limiter.try_acquire("e", "r", {"rpm": 1}, LIMITS)
    penalized, refused = caplog.records
    assert (penalized.levelname, refused.levelname) == ("INFO", "DEBUG")
    assert penalized.getMessage().startswith("penalized entity_id='e' resource='r' seconds=5")
    assert (refused.event, refused.fields["retry_after_ms"]) == ("acquire.refused", 5000)  # type: ignore[attr-defined]


def test_nobody_listens_nobody_is_told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, "headgate")
    told: list[str] = []
    with SyncRateLimiter("memory://") as limiter:
        monkeypatch.setattr(limiter.observers, "tell", lambda name, **fields: told.append(name))
        for consume in ({"rpm": 1}, {"rpm": 1}, {"parallel": 1}, {"rpm": 61}):
            limiter.try_acquire("e", "r", consume, LIMITS)
        limiter.penalize("e", "r", seconds=1, limits=LIMITS)
        assert told == ["penalized"]
        caplog.set_level(logging.DEBUG, "headgate")
        limiter.invalidate_config_cache()
        limiter.try_acquire("e", "r", {"rpm": 1}, LIMITS)
        assert told == ["penalized", "acquire.refused"]
    assert caplog.records == []


def test_a_callback_that_fails_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def fails(event: Event) -> None:
        raise ZeroDivisionError(event.name)

    with SyncRateLimiter("memory://", on_event=fails) as limiter:
        assert limiter.try_acquire("e", "r", {"rpm": 1}, LIMITS)
        limiter.penalize("e", "r", seconds=1, limits=LIMITS)
    failures = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in failures] == [
        "on_event failed on acquire.granted",
        "on_event failed on penalized",
    ]
    assert all(record.exc_info for record in failures)


@pytest.mark.parametrize("kind", [SyncRateLimiter, RateLimiter])
@pytest.mark.parametrize("bad", ["print", 1, []])
def test_on_event_that_cannot_be_called_is_refused(kind: Any, bad: Any) -> None:
    with pytest.raises(ValidationError, match="on_event"):
        kind("memory://", on_event=bad)


def test_events_of_hashed_ids_show_the_hash_alone(events: list[Event], clock: ManualClock) -> None:
    with SyncRateLimiter("memory://", clock=clock, on_event=events.append, hash_entity_ids=True) as limiter:
        lease = limiter.try_acquire("hunter2", "r", {"parallel": 1}, LIMITS).lease
        assert lease is not None
        assert not limiter.try_acquire("hunter2", "r", {"parallel": 1}, LIMITS)
        limiter.penalize("hunter2", "r", seconds=1, limits=LIMITS)
        clock.advance(60)
        lease.renew()
    assert [event.name for event in events] == ["acquire.granted", "acquire.refused", "penalized", "lease.lost"]
    assert {len(event.fields["entity_id"]) for event in events} == {40}
    assert "hunter2" not in " ".join(map(str, events))


def test_coroutines_report_the_same_events(events: list[Event], clock: ManualClock) -> None:
    async def scenario() -> None:
        async with RateLimiter("memory://", clock=clock, on_event=events.append) as limiter:
            async with limiter.acquire("e", "r", {"parallel": 1}, LIMITS) as lease:
                clock.advance(60)
                assert not await limiter.try_acquire("e", "r", {"rpm": 61}, LIMITS)
                await lease.renew()
            await limiter.reconcile()

    asyncio.run(scenario())
    assert [event.name for event in events] == ["acquire.granted", "acquire.refused", "lease.lost", "reconcile.done"]
