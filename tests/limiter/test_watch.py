"""Watching: every decision and every call to the store is told, once, and nobody pays for it who is not watched."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limiter_helpers import FailingStore, eventually, failing_store, soon

from headgate import (
    Ask,
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SyncRateLimiter,
    ValidationError,
)
from headgate.testing import ManualClock
from headgate.testing.driver import DRIVERS

RPM = [Limit.per_minute("rpm", 10)]
ONE = [Limit.concurrent("parallel", 1), *RPM]
AWAY = RateLimiterUnavailable("away")


class Seen:
    """What a watcher is told."""

    def __init__(self) -> None:
        self.decisions: list[tuple[str, str, str]] = []
        self.calls: list[tuple[int, bool]] = []
        self.seconds: list[float] = []

    def decided(self, entity_id: str, resource: str, outcome: str, seconds: float) -> None:
        self.decisions.append((entity_id, resource, outcome))
        self.seconds.append(seconds)

    def settled(self, requests: int, seconds: float, ok: bool) -> None:
        self.calls.append((requests, ok))
        self.seconds.append(seconds)

    def news(self) -> list[tuple[str, str, str]]:
        """Decisions that nobody has asked about yet."""
        found, self.decisions = self.decisions, []
        return found


@pytest.fixture
def store() -> FailingStore:
    return failing_store()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture(params=["memory://", "failing://"])
def url(request: pytest.FixtureRequest, store: FailingStore) -> Any:
    return request.param


@pytest.fixture(params=["sync", "async"])
def open_limiter(request: pytest.FixtureRequest, seen: Seen) -> Iterator[Callable[..., Any]]:
    opened: list[Any] = []

    def open_one(url: str, **settings: Any) -> Any:
        limiter = DRIVERS[request.param](url, clock=ManualClock(), **settings)
        opened.append(limiter)
        limiter.watch(seen)
        return limiter

    yield open_one
    for limiter in opened:
        limiter.shut()


@pytest.fixture
def limiter(open_limiter: Callable[..., Any], url: str) -> Any:
    return open_limiter(url)


def enter(context: Any) -> Any:
    with suppress(RateLimitExceeded):
        return context.__enter__()


class TestEveryWayToAsk:
    def test_acquire_is_observed_once_from_records_and_from_cache(self, limiter: Any, seen: Seen) -> None:
        for _ in range(2):  # the chain from the records, from the cache
            with limiter.acquire("e", "r", {"rpm": 5}, RPM):
                assert seen.news() == [("e", "r", "allowed")]
        enter(limiter.acquire("e", "r", {"rpm": 1}, RPM))
        assert seen.news() == [("e", "r", "refused")]

    def test_try_acquire_is_observed_once_allowed_or_refused(self, limiter: Any, seen: Seen) -> None:
        for amount in (10, 1):
            limiter.try_acquire("e", "r", {"rpm": amount}, RPM)
        limiter.try_acquire("other", "r", {"rpm": 1}, RPM, max_wait=5, record_lease=True).lease.commit()
        assert seen.news() == [("e", "r", "allowed"), ("e", "r", "refused"), ("other", "r", "allowed")]

    def test_slot_is_observed_once_allowed_or_refused(self, limiter: Any, seen: Seen) -> None:
        with limiter.slot("openai#gpt", limits=ONE):
            enter(limiter.slot("openai#gpt", timeout=0, limits=ONE))
        assert seen.news() == [("openai", "gpt", "allowed"), ("openai", "gpt", "refused")]

    def test_every_element_of_a_batch_is_observed(self, limiter: Any, seen: Seen) -> None:
        one, two = Ask("e", "r", {"rpm": 6}, RPM), Ask("f", "s", {"rpm": 1}, RPM)
        for _ in range(2):
            limiter.try_acquire_each([one, [two, one], two])
            limiter.reset("e", "r")
            together = [("f", "s", "refused"), ("e", "r", "refused")]
            assert seen.news() == [("e", "r", "allowed"), *together, ("f", "s", "allowed")]
        limiter.try_acquire_each([one, two])
        assert seen.news() == [("e", "r", "allowed"), ("f", "s", "allowed")]

    def test_every_dimension_of_acquire_many_is_observed(self, limiter: Any, seen: Seen) -> None:
        wish = {"a#r": {"rpm": 6}, "b#s": {"rpm": 1}}
        for outcome in ("allowed", "refused"):
            enter(limiter.acquire_many(wish, limits=dict.fromkeys(wish, RPM)))
            assert seen.news() == [("a", "r", outcome), ("b", "s", outcome)]

    def test_consume_of_a_lease_is_observed(self, limiter: Any, seen: Seen) -> None:
        lease = limiter.try_acquire("e", "r", {"rpm": 1}, RPM).lease
        lease.consume(rpm=9)
        with pytest.raises(RateLimitExceeded):
            lease.consume(rpm=1)
        assert seen.news() == [("e", "r", "allowed")] * 2 + [("e", "r", "refused")]

    def test_invalid_calls_are_not_observed(self, limiter: Any, seen: Seen) -> None:
        limiter.try_acquire("e", "r", {"rpm": 1}, RPM)
        seen.news()
        wrong: list[Callable[[], Any]] = [
            lambda: limiter.try_acquire("", "r", {"rpm": 1}, RPM),
            lambda: limiter.try_acquire("e", "r", {"rps": 1}, RPM),
            lambda: limiter.try_acquire("e", "r", {"rpm": 1}, RPM, max_wait=-1),
            lambda: limiter.try_acquire_each([Ask("e", "r"), "r"]),
            lambda: limiter.acquire_many({"r": None}).__enter__(),
        ]
        for call in wrong:
            with pytest.raises(ValidationError):
                call()
        limiter.adjust("e", "r", {"rpm": 1}, RPM)
        limiter.available("e", "r", RPM)
        assert seen.news() == []

    def test_duration_of_a_decision_and_its_store_call_is_observed(self, limiter: Any, seen: Seen) -> None:
        limiter.try_acquire("e", "r", {"rpm": 1}, RPM)
        assert len(seen.seconds) == 2
        assert all(0 < seconds < 60 for seconds in seen.seconds)


class TestWhileTheStoreIsAway:
    def test_blocked_calls_are_observed_as_unavailable(
        self, open_limiter: Callable[..., Any], store: FailingStore, seen: Seen
    ) -> None:
        limiter = open_limiter("failing://")
        lease = limiter.try_acquire("e", "r", {"rpm": 1}, RPM).lease
        seen.news()
        store.error = AWAY
        asks: list[Callable[[], Any]] = [
            lambda: limiter.try_acquire("e", "r", {"rpm": 1}, RPM),
            lambda: limiter.acquire("e", "r", {"rpm": 1}, RPM).__enter__(),
            lambda: lease.consume(rpm=1),
            lambda: limiter.try_acquire_each([Ask("e", "r", {"rpm": 1}, RPM)]),
            lambda: limiter.acquire_many({"e#r": {"rpm": 1}}, limits={"e#r": RPM}).__enter__(),
            lambda: limiter.try_acquire("e", "unread", {"rpm": 1}),
        ]
        for ask in asks:
            with pytest.raises(RateLimiterUnavailable):
                ask()
        assert seen.news() == [("e", "r", "unavailable")] * 5 + [("e", "unread", "unavailable")]

    @pytest.mark.parametrize("policy", ["allow", "local"])
    def test_degraded_calls_are_observed_by_their_policy(
        self, open_limiter: Callable[..., Any], store: FailingStore, seen: Seen, policy: str
    ) -> None:
        limiter = open_limiter("failing://", on_unavailable=policy)
        store.error = AWAY
        ask = Ask("e", "r", {"rpm": 4}, RPM)
        limiter.try_acquire(*ask)
        limiter.try_acquire_each([ask, ask])
        refused = [("e", "r", "refused")] if policy == "local" else [("e", "r", "degraded")]
        assert seen.news() == [("e", "r", "degraded")] * 2 + refused
        enter(limiter.acquire_many(["f#r"], limits={"f#r": RPM}))
        assert seen.news() == [("f", "r", "degraded")]

    def test_calls_that_fail_and_calls_that_are_not_made(
        self, open_limiter: Callable[..., Any], store: FailingStore, seen: Seen
    ) -> None:
        limiter = open_limiter("failing://")
        limiter.try_acquire("e", "r", {"rpm": 1}, RPM)
        store.error = AWAY
        for _ in range(9):
            with pytest.raises(RateLimiterUnavailable):
                limiter.try_acquire("e", "r", {"rpm": 1}, RPM)
        assert limiter.breaker_state == "open"
        assert len(seen.decisions) == 10
        assert seen.calls == [(1, True)] + [(1, False)] * 5

    def test_an_ask_that_was_never_looked_at(
        self, open_limiter: Callable[..., Any], store: FailingStore, seen: Seen
    ) -> None:
        """That it is wrong is not what its caller has to know now."""
        limiter = open_limiter("failing://")
        store.error = AWAY
        for asks in ([[Ask("e", "r"), Ask("", "r")]], [[Ask("e", "r"), Ask("e", ["r"])]]):  # type: ignore[list-item]
            with pytest.raises(RateLimiterUnavailable):
                limiter.try_acquire_each(asks)
            assert seen.news() == [("e", "r", "unavailable")]


class TestCallsToTheStore:
    def test_of_threads_that_share_one(self, store: FailingStore, seen: Seen) -> None:
        with SyncRateLimiter("failing://") as limiter:
            limiter.try_acquire("e", "r", {"rpm": 1}, RPM)
            limiter.watch(seen)
            store.gate.clear()
            calls = store.calls
            threads = [
                threading.Thread(target=limiter.try_acquire, args=("e", "r", {"rpm": 1}, RPM), daemon=True)
                for _ in range(6)
            ]
            for thread in threads:
                thread.start()
            assert eventually(lambda: store.calls > calls)
            assert eventually(lambda: len(limiter.engine._settle.__self__._queue) == 5)  # type: ignore[attr-defined]
            store.gate.set()
            for thread in threads:
                thread.join()
        assert seen.calls == [(1, True), (5, True)]
        assert len(seen.decisions) == 6

    def test_of_tasks_that_share_one(self, store: FailingStore, seen: Seen) -> None:
        async def scenario() -> None:
            async with RateLimiter("failing://") as limiter:
                await limiter.try_acquire("e", "r", {"rpm": 1}, RPM)
                limiter.watch(seen)
                await asyncio.gather(*(limiter.try_acquire("e", "r", {"rpm": 1}, RPM) for _ in range(6)))

        asyncio.run(scenario())
        assert seen.calls == [(6, True)]
        assert len(seen.decisions) == 6

    def test_who_gave_up_was_not_decided(self, store: FailingStore, seen: Seen) -> None:
        async def scenario() -> None:
            async with RateLimiter("failing://") as limiter:
                limiter.watch(seen)
                await limiter.try_acquire("e", "r", {"rpm": 1}, RPM)
                store.gate.clear()
                before = store.calls
                asking = asyncio.create_task(limiter.try_acquire("e", "r", {"rpm": 1}, RPM))
                assert await soon(lambda: store.calls > before)
                asking.cancel()
                store.gate.set()
                with suppress(asyncio.CancelledError):
                    await asking
                assert await limiter.available("e", "r", RPM) == {"rpm": 9}

        asyncio.run(scenario())
        assert seen.decisions == [("e", "r", "allowed")]
        assert all(ok for _, ok in seen.calls)

    @pytest.mark.parametrize("coalesce", [True, False])
    def test_all_that_the_store_is_asked(
        self, open_limiter: Callable[..., Any], store: FailingStore, seen: Seen, coalesce: bool
    ) -> None:
        limiter = open_limiter("failing://", coalesce=coalesce)
        with limiter.acquire("e", "r", {"rpm": 1, "parallel": 1}, ONE) as lease:
            lease.adjust(rpm=1)
            lease.renew()
        limiter.available("e", "r", RPM)
        assert seen.calls == [(1, True)] * 5


Action = tuple[str, int]
ACTIONS = st.lists(st.tuples(st.sampled_from(["try", "each", "many", "consume", "away", "back"]), st.integers(1, 6)))


@settings(max_examples=30, deadline=None)
@given(ACTIONS, st.sampled_from(["block", "allow", "local"]))
def test_what_is_told_is_what_was_answered(actions: list[Action], policy: Any) -> None:
    store, seen = failing_store(), Seen()
    answered: list[str] = []
    with SyncRateLimiter("failing://", clock=ManualClock(), on_unavailable=policy) as limiter:
        lease = limiter.try_acquire("e", "r", {"rpm": 1}, RPM).lease
        assert lease is not None
        limiter.watch(seen)
        before = store.calls
        for action, amount in actions:
            ask = Ask("e", "r", {"rpm": amount}, RPM)
            try:
                if action == "try":
                    answered += [_outcome(limiter.try_acquire(*ask))]
                elif action == "each":
                    answered += map(_outcome, limiter.try_acquire_each([ask, ask]))
                elif action == "many":
                    with limiter.acquire_many({"e#r": {"rpm": amount}}, limits={"e#r": RPM}) as leases:
                        answered += ["degraded" if leases["e#r"].degraded else "allowed"]
                elif action == "consume":
                    lease.consume(rpm=amount)
                    answered += ["allowed"]
                else:
                    store.error = AWAY if action == "away" else None
            except RateLimiterUnavailable:
                answered += ["unavailable"] * (2 if action == "each" else 1)
            except RateLimitExceeded:
                answered += ["refused"]
        made = store.calls - before
    assert [outcome for _, _, outcome in seen.decisions] == answered
    if policy != "local":  # which also counts instances
        assert len(seen.calls) == made


def _outcome(decision: Any) -> str:
    return "refused" if not decision else "degraded" if decision.degraded else "allowed"


class TestWatchers:
    def test_watcher_observes_once_until_it_is_removed(self, limiter: Any, seen: Seen) -> None:
        other = Seen()
        limiter.watch(other)
        limiter.watch(other)  # which is once
        limiter.try_acquire("e", "r", {"rpm": 1}, RPM)
        limiter.unwatch(seen)
        limiter.unwatch(seen)
        limiter.try_acquire("e", "r", {"rpm": 1}, RPM)
        limiter.unwatch(other)
        limiter.try_acquire("e", "r", {"rpm": 1}, RPM)
        assert (len(seen.decisions), len(seen.calls)) == (1, 1)
        assert (len(other.decisions), len(other.calls)) == (2, 2)

    def test_one_that_fails_hurts_nobody(self, limiter: Any, seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
        class Broken:
            def decided(self, *told: Any) -> None:
                raise ZeroDivisionError

            settled = decided

            def __repr__(self) -> str:
                return "broken"

        broken = Broken()
        limiter.unwatch(seen)
        limiter.watch(broken)
        limiter.watch(seen)
        for _ in range(3):
            assert limiter.try_acquire("e", "r", {"rpm": 1}, RPM)
        assert len(seen.decisions) == len(seen.calls) == 3
        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert [record.getMessage() for record in errors] == [
            "the watcher broken failed; further failures of it are not logged"
        ]
        assert errors[0].exc_info
        limiter.unwatch(broken)

    @pytest.mark.parametrize("bad", [None, print, object(), Seen])
    def test_watcher_without_both_methods_is_refused(self, bad: Any) -> None:
        if bad is Seen:
            bad = type("Half", (), {"decided": Seen.decided})()
        with SyncRateLimiter("memory://") as limiter, pytest.raises(ValidationError, match=r"decided.*settled"):
            limiter.watch(bad)

    @pytest.mark.parametrize("kind", [SyncRateLimiter, RateLimiter])
    def test_who_is_not_watched_goes_the_short_way(self, kind: Any, seen: Seen) -> None:
        limiter = kind("memory://")
        ways = ("_ask", "take")
        before = [getattr(limiter.engine, way) for way in ways]
        assert not limiter.observers.active
        limiter.watch(seen)
        assert not any(getattr(limiter.engine, way) == old for way, old in zip(ways, before))
        assert limiter.observers.active
        limiter.unwatch(seen)
        assert [getattr(limiter.engine, way) for way in ways] == before
        assert not limiter.observers.active
