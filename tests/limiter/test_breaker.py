"""The breaker: nobody waits for a store that is known to be away, and one at a time tries it."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
from limiter_helpers import FailingStore, failing_store, soon

from headgate import (
    CorruptState,
    Event,
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    SyncRateLimiter,
    ValidationError,
    VersionConflict,
)
from headgate.core.errors import Contended, PartlyAnswered
from headgate.limiter.acquire.breaker import FAILURES, FIRST_PAUSE, LONGEST_PAUSE, Breaker
from headgate.limiter.observe.observers import Observers

RPM = Limit.per_minute("rpm", 60)
AWAY = RateLimiterUnavailable("it is away")
WISH: Any = ("e", "r", {"rpm": 1}, [RPM])


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def breaker(time: Time, told: list[Event]) -> Breaker:
    return Breaker("the store", Observers(told.append), time)


def fail(breaker: Breaker, times: int = FAILURES) -> None:
    for _ in range(times):
        breaker.ended(AWAY)


def test_it_opens_after_a_few_failures_in_a_row(breaker: Breaker, told: list[Event]) -> None:
    for _ in range(3):
        fail(breaker, FAILURES - 1)
        breaker.check()
        breaker.worked()
    assert (breaker.state, told) == ("closed", [])
    fail(breaker)
    assert breaker.state == "open"
    with pytest.raises(
        RateLimiterUnavailable, match=r"the store has been away for 0\.0 s.*again in 0\.[23].*it is away"
    ):
        breaker.check()
    (event,) = told
    assert (event.name, event.fields) == ("store.down", {"store": "the store", "why": "it is away"})


def test_after_a_pause_one_may_try(breaker: Breaker, time: Time) -> None:
    fail(breaker)
    time.now += FIRST_PAUSE * 0.79
    with pytest.raises(RateLimiterUnavailable):
        breaker.check()
    time.now += FIRST_PAUSE * 0.42
    breaker.check()
    assert breaker.state == "half-open"
    for _ in range(3):
        with pytest.raises(RateLimiterUnavailable, match="just now"):
            breaker.check()


def test_it_closes_when_the_store_answers(breaker: Breaker, time: Time, told: list[Event]) -> None:
    for _ in range(2):
        fail(breaker)
        time.now += 12.5
        breaker.check()
        breaker.worked()
        assert breaker.state == "closed"
        breaker.check()
    assert [event.name for event in told] == ["store.down", "store.up"] * 2
    assert told[1].fields == {"store": "the store", "away_seconds": 12.5}


def test_the_pause_grows_while_the_store_is_away(breaker: Breaker, time: Time, told: list[Event]) -> None:
    fail(breaker)
    pause = FIRST_PAUSE
    for _ in range(8):
        time.now += pause * 0.79
        with pytest.raises(RateLimiterUnavailable):
            breaker.check()
        time.now += pause * 0.42
        breaker.check()
        breaker.ended(AWAY)
        assert breaker.state == "open"
        pause = min(pause * 2, LONGEST_PAUSE)
    assert len(told) == 1, "it is away as it was"
    time.now += LONGEST_PAUSE * 1.3
    breaker.check()
    breaker.worked()
    fail(breaker)
    time.now += FIRST_PAUSE * 1.21
    breaker.check()


@pytest.mark.parametrize("interruption", [asyncio.CancelledError(), KeyboardInterrupt(), ZeroDivisionError()], ids=repr)
def test_a_try_that_was_cancelled_is_somebody_elses(
    breaker: Breaker, time: Time, told: list[Event], interruption: BaseException
) -> None:
    fail(breaker)
    time.now += 10
    breaker.check()
    breaker.ended(interruption)
    assert breaker.state == "open"
    breaker.check()
    assert breaker.state == "half-open"
    assert len(told) == 1


@pytest.mark.parametrize(
    "answer",
    [
        Contended("busy"),
        PartlyAnswered([AWAY]),
        CorruptState("bad", "e", "r"),
        ValidationError("bad"),
        VersionConflict("k"),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_an_answer_is_an_answer(breaker: Breaker, time: Time, answer: Exception) -> None:
    for _ in range(FAILURES * 2):
        breaker.ended(answer)
    assert breaker.state == "closed"
    fail(breaker, FAILURES - 1)
    breaker.ended(answer)
    fail(breaker, FAILURES - 1)
    assert breaker.state == "closed", "they were not in a row"
    fail(breaker)
    time.now += 10
    breaker.check()
    breaker.ended(answer)
    assert breaker.state == "closed"


def test_who_was_under_way_when_it_opened_changes_nothing(breaker: Breaker, time: Time, told: list[Event]) -> None:
    fail(breaker, FAILURES + 20)
    time.now += FIRST_PAUSE * 1.21
    fail(breaker, 20)
    breaker.check()
    assert breaker.state == "half-open"
    assert len(told) == 1


# Through a limiter


@pytest.fixture
def store() -> FailingStore:
    return failing_store()


def lines(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [getattr(record, "event", record.getMessage()) for record in caplog.records]


@pytest.mark.parametrize("policy", ["block", "allow", "local"])
@pytest.mark.parametrize("coalesce", [True, False])
def test_hundreds_of_calls_and_one_line_in_the_log(
    store: FailingStore, time: Time, caplog: pytest.LogCaptureFixture, policy: Any, coalesce: bool
) -> None:
    caplog.set_level(logging.INFO, "headgate")
    limiter = SyncRateLimiter("failing://", on_unavailable=policy, coalesce=coalesce)
    limiter.engine.breaker._now = time
    limiter.resolve_limits("e", "r")
    for _ in range(2):
        store.error, store.calls = AWAY, 0
        for _ in range(300):
            try:
                assert limiter.try_acquire(*WISH).degraded
            except RateLimiterUnavailable:
                assert policy == "block"
        assert store.calls <= FAILURES + 1, "it is left alone"
        assert limiter.breaker_state == "open"
        assert lines(caplog) == ["store.down"]
        store.error = None
        time.now += 10
        for _ in range(300):
            assert not limiter.try_acquire(*WISH).degraded
            limiter.reset("e", "r")
        assert limiter.breaker_state == "closed"
        assert lines(caplog) == ["store.down", "store.up"]
        caplog.clear()
    limiter.close()


def test_outage_under_hundreds_of_tasks_is_one_line_in_the_log(
    store: FailingStore, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headgate")

    async def scenario() -> None:
        async with RateLimiter("failing://", on_unavailable="allow") as limiter:
            limiter.engine.breaker._now = time
            store.error = AWAY
            for _ in range(4):
                decisions = await asyncio.gather(*(limiter.try_acquire(*WISH) for _ in range(100)))
                assert all(decision.degraded for decision in decisions)
            with pytest.raises(RateLimiterUnavailable):
                await limiter.ping()
            assert limiter.breaker_state == "open"
            store.error = None
            time.now += 10
            decisions = await asyncio.gather(*(limiter.try_acquire(f"e{n}", *WISH[1:]) for n in range(100)))
            assert not all(decision.degraded for decision in decisions)
            assert limiter.breaker_state == "closed"

    asyncio.run(scenario())
    assert lines(caplog) == ["store.down", "store.up"]


def test_of_many_threads_one_tries_it(store: FailingStore, time: Time) -> None:
    limiter = SyncRateLimiter("failing://")
    limiter.engine.breaker._now = time
    store.error = AWAY
    for _ in range(FAILURES):
        with pytest.raises(RateLimiterUnavailable):
            limiter.ping()
    time.now += 10
    store.calls = 0
    store.gate.clear()
    outcomes: list[str] = []

    def ping() -> None:
        try:
            limiter.ping()
        except RateLimiterUnavailable as away:
            outcomes.append(str(away))

    threads = [threading.Thread(target=ping) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads[::-1]:
        if len(outcomes) < 19:
            thread.join(0.05)
    assert store.calls == 1
    store.gate.set()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 20
    assert sum("just now" in outcome for outcome in outcomes) == 19
    assert limiter.breaker_state == "open"


def test_a_task_cancelled_while_it_tried_leaves_it_to_the_next(store: FailingStore, time: Time) -> None:
    async def scenario() -> None:
        async with RateLimiter("failing://") as limiter:
            limiter.engine.breaker._now = time
            limiter.engine.breaker._failures = FAILURES
            limiter.engine.breaker.state = "open"
            store.gate.clear()
            probe = asyncio.create_task(limiter.ping())
            assert await soon(lambda: store.calls)
            assert limiter.breaker_state == "half-open"
            probe.cancel()
            await asyncio.sleep(0.01)
            store.gate.set()
            await asyncio.wait([probe])
            assert limiter.breaker_state in ("open", "closed")
            await limiter.ping()
            assert limiter.breaker_state == "closed"

    asyncio.run(scenario())
