"""Alerts: each threshold is told of once in a window, whatever crosses it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Alert, Ask, Limit, RateLimiter, SyncRateLimiter, ValidationError
from headgate.core.decide import FORCE, TAKE, Answer, Part, Request
from headgate.limiter.observe.thresholds import crossings
from headgate.testing import ManualClock

NOON_MS = 1_793_534_400_000
DAY_SECONDS = 86_400
USD = Limit.quota("usd", 100, "day", alert_at=(0.8, 1.0))


class Told:
    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []

    def __call__(self, event: Any) -> None:
        if event.name == "limit.threshold":
            self.alerts.append(event.fields)

    @property
    def thresholds(self) -> list[float]:
        return [alert["threshold"] for alert in self.alerts]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON_MS)


@pytest.fixture
def limiter(told: Told, clock: ManualClock) -> SyncRateLimiter:
    limiter = SyncRateLimiter("memory://", on_event=told, clock=clock)
    limiter.set_system_defaults([USD])
    return limiter


def test_each_threshold_is_told_once_in_a_window(limiter: SyncRateLimiter, told: Told, clock: ManualClock) -> None:
    for window in (1, 2):
        for _ in range(20):
            limiter.try_acquire("e", "r", {"usd": 10})
        assert told.thresholds == [0.8, 1.0] * window
        clock.advance(DAY_SECONDS)


def test_one_decision_may_cross_several(limiter: SyncRateLimiter, told: Told) -> None:
    limiter.try_acquire("e", "r", {"usd": 100})
    assert told.thresholds == [0.8, 1.0]


def test_a_refusal_crosses_none(limiter: SyncRateLimiter, told: Told) -> None:
    limiter.try_acquire("e", "r", {"usd": 101})
    assert told.thresholds == []


def test_a_correction_crosses_too(limiter: SyncRateLimiter, told: Told) -> None:
    with limiter.acquire("e", "r", {"usd": 10}) as lease:
        lease.adjust(usd=75)
        lease.consume(usd=10)
    limiter.adjust("e", "r", {"usd": 300})
    assert told.thresholds == [0.8, 1.0]
    assert [alert["used"] for alert in told.alerts] == [85, 395]


def test_what_was_given_back_and_taken_again_is_not_told_again(limiter: SyncRateLimiter, told: Told) -> None:
    for _ in range(3):
        decision = limiter.try_acquire("e", "r", {"usd": 90})
        assert decision.lease is not None
        decision.lease.rollback()
    assert told.thresholds == [0.8]


def test_entities_and_ancestors_are_told_apart(limiter: SyncRateLimiter, told: Told) -> None:
    limiter.create_entity("team")
    limiter.create_entity("ann", parent_id="team", cascade=True)
    limiter.create_entity("bob", parent_id="team", cascade=True)
    for member in ("ann", "bob"):
        limiter.try_acquire(member, "r", {"usd": 45})
    assert [(alert["entity_id"], alert["threshold"]) for alert in told.alerts] == [("team", 0.8)]


def test_batches_and_waiting_tell_too(limiter: SyncRateLimiter, told: Told) -> None:
    limiter.try_acquire("e", "r", {"usd": 80}, max_wait=1)
    limiter.try_acquire_each([Ask("f", "r", {"usd": 80}), [Ask("g", "r", {"usd": 40}), Ask("g", "s", {"usd": 80})]])
    assert [(alert["entity_id"], alert["resource"]) for alert in told.alerts] == [("e", "r"), ("f", "r"), ("g", "s")]


def test_alerts_are_listed_the_newest_first_and_kept_for_a_week(
    limiter: SyncRateLimiter, told: Told, clock: ManualClock
) -> None:
    limiter.try_acquire("e", "r", {"usd": 80})
    clock.advance(1)
    limiter.try_acquire("f", "r", {"usd": 80})
    found = limiter.list_alerts()
    assert [alert.entity_id for alert in found] == ["f", "e"]
    assert isinstance(found[0], Alert)
    assert found[1].resets_at.isoformat() == "2026-11-02T00:00:00+00:00"
    assert [alert.as_dict() for alert in found] == list(reversed(told.alerts))
    clock.advance(7 * DAY_SECONDS)
    assert limiter.list_alerts() == []


@pytest.mark.parametrize(
    "limit", [Limit.per_minute("x", 10, alert_at=[0.5]), Limit.concurrent("x", 10, alert_at=[0.5])]
)
def test_buckets_and_slots_have_them_too(limit: Limit, limiter: SyncRateLimiter, told: Told) -> None:
    assert limiter.try_acquire("e", "r", {"x": 4}, [limit])
    assert told.thresholds == []
    assert limiter.try_acquire("e", "r", {"x": 1}, [limit])
    assert told.thresholds == [0.5]


def test_of_two_limiters_one_tells(told: Told, clock: ManualClock, tmp_path: Any) -> None:
    limiters = [SyncRateLimiter(f"sqlite:///{tmp_path}/a.db", on_event=told, clock=clock) for _ in range(2)]
    limiters[0].set_system_defaults([USD])
    for _ in range(10):
        for limiter in limiters:
            limiter.try_acquire("e", "r", {"usd": 10})
    assert told.thresholds == [0.8, 1.0]


def test_tasks_tell_beside_the_decision(told: Told, clock: ManualClock) -> None:
    async def scenario() -> None:
        async with RateLimiter("memory://", on_event=told, clock=clock) as limiter:
            await limiter.set_system_defaults([USD])
            await asyncio.gather(*(limiter.try_acquire("e", "r", {"usd": 10}) for _ in range(10)))

    asyncio.run(scenario())
    assert told.thresholds == [0.8, 1.0], "closing waits for what is still to be told"


@given(
    st.integers(1, 10**15),
    st.lists(st.integers(1, 1000), max_size=4, unique=True).map(sorted),
    st.lists(st.integers(-(10**15), 10**15), max_size=10),
)
def test_a_threshold_is_crossed_when_use_comes_to_it_from_below(
    capacity: int, shares: list[int], amounts: list[int]
) -> None:
    limit = Limit.from_stored("x", capacity, 1, 1, None, tuple(shares))
    used = 0
    for amount in amounts:
        before, used = used, max(0, used + amount)
        mode = FORCE if amount < 0 or used > capacity else TAKE
        request = Request(mode, ("n/e#r",), (Part(0, limit, used - before),))
        found = [crossing.threshold_milli for crossing in crossings(request, Answer(True, 0, [(capacity - used, 0)]))]
        assert found == [share for share in shares if before * 1000 < share * capacity <= used * 1000]


@pytest.mark.parametrize("alert_at", [0.8, "0.8", [0], [1.5], [-1], [0.0001], [True], [float("nan")], range(1, 20)])
def test_shares_that_make_no_sense_are_errors(alert_at: Any) -> None:
    with pytest.raises(ValidationError, match="alert_at of limit 'x'"):
        Limit.per_minute("x", 10, alert_at=alert_at)


def test_alerts_are_part_of_the_text() -> None:
    limit = Limit.parse("x", "1000/day resets Europe/Berlin alert 80% 99.5%")
    assert limit.alert_at == (0.8, 0.995)
    assert Limit.parse("x", str(limit)) == limit == Limit.from_dict(limit.as_dict())
    assert eval(repr(Limit.per_minute("x", 1, alert_at=[0.5]))) == Limit.per_minute("x", 1, alert_at=[0.5])


def test_a_limit_that_is_full_again_in_thousands_of_years_is_told_of_too(limiter: SyncRateLimiter, told: Told) -> None:
    slow = Limit("x", 10**12, 0.001, 366 * DAY_SECONDS, alert_at=[0.5])
    assert limiter.try_acquire("e", "r", {"x": 10**12}, [slow])
    assert limiter.list_alerts()[0].resets_at.year == 9999
