"""What a limiter does by itself: renew what its leases hold. One thread or one task, only as long as there is need.

Renewals come by real time, a third of the ttl apart. What they are worth is up to the clock of the test: where it
stands still nothing runs out, however slow the machine is.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from limiter_helpers import FailingStore, eventually, failing_store, keepers, soon

from headgate import Event, Limit, RateLimiter, RateLimiterUnavailable, SyncRateLimiter
from headgate.testing import ManualClock

TTL = 0.15
MANY = [Limit.per_minute("rpm", 1000), Limit.concurrent("parallel", 1000, ttl=TTL)]
LONG = [Limit.concurrent("parallel", 1000, ttl=60)]
AWAY = RateLimiterUnavailable("it is away")


@pytest.fixture
def store() -> FailingStore:
    return failing_store()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limiter(store: FailingStore, clock: ManualClock) -> Iterator[Any]:
    limiter = SyncRateLimiter("failing://", clock=clock)
    yield limiter
    limiter.close()


@pytest.fixture
def mine() -> Any:
    """The keeper threads of this test."""
    before = keepers()
    return lambda: [thread for thread in keepers() if thread not in before]


def take(limiter: Any, limits: list[Limit] = MANY, **how: Any) -> Any:
    lease = limiter.try_acquire("e", "r", {"parallel": 1}, limits, **how).lease
    assert lease is not None
    return lease


def renewed_again(store: FailingStore, lease: Any, times: int = 1) -> bool:
    wanted = store.renewals(lease) + times
    return eventually(lambda: store.renewals(lease) >= wanted)


def test_one_thread_for_all_leases(store: FailingStore, limiter: Any, mine: Any) -> None:
    leases = [take(limiter) for _ in range(50)]
    assert len(mine()) == 1
    assert mine()[0].daemon
    assert eventually(lambda: min(map(store.renewals, leases)) >= 2)
    assert len(mine()) == 1
    assert max(map(len, store.renewed)) > 1, "those that are due together go together"
    for lease in leases:
        lease.commit()


def test_tokens_need_no_thread(limiter: Any, mine: Any) -> None:
    with limiter.acquire("e", "r", {"rpm": 1}, MANY):
        assert mine() == []


def test_a_long_call_keeps_its_slot(store: FailingStore, limiter: Any, clock: ManualClock) -> None:
    with limiter.acquire("e", "r", {"parallel": 999}, MANY) as lease:
        dead = limiter.try_acquire("e", "r", {"parallel": 1}, MANY).lease
        dead._hold.ended = True
        for _ in range(6):
            clock.advance(TTL * 0.9)
            assert renewed_again(store, lease)
        assert limiter.available("e", "r", MANY)["parallel"] == 1
        assert not lease.lost


def test_slots_taken_later_are_renewed_too(store: FailingStore, limiter: Any, clock: ManualClock) -> None:
    with limiter.acquire("e", "r", {"rpm": 1}, MANY) as lease:
        lease.consume(parallel=5)
        for _ in range(3):
            clock.advance(TTL * 0.9)
            assert renewed_again(store, lease)
        assert limiter.available("e", "r", MANY)["parallel"] == 995


def test_a_recorded_lease_is_renewed_without_slots(store: FailingStore, limiter: Any, clock: ManualClock) -> None:
    how: Any = {"record_lease": True, "restore_on_expiry": True, "lease_ttl": TTL}
    with limiter.acquire("e", "r", {"rpm": 1000}, [Limit.per_day("rpm", 1000)], **how) as lease:
        for _ in range(3):
            clock.advance(TTL * 0.9)
            assert renewed_again(store, lease)
        assert limiter.reconcile().leases == 0


def test_the_thread_ends_when_nothing_is_left_and_another_begins(store: FailingStore, limiter: Any, mine: Any) -> None:
    for _ in range(2):
        lease = take(limiter)
        assert len(mine()) == 1
        assert renewed_again(store, lease)
        lease.rollback()
        assert eventually(lambda: mine() == [])


def test_an_ended_lease_is_renewed_no_more(store: FailingStore, limiter: Any) -> None:
    ended, alive = take(limiter), take(limiter)
    assert renewed_again(store, ended)
    ended.commit()
    before = store.renewals(ended)
    assert renewed_again(store, alive, 4)
    assert store.renewals(ended) == before
    alive.commit()


def test_a_dropped_lease_is_renewed_no_more(store: FailingStore, limiter: Any) -> None:
    dropped, alive = take(limiter), take(limiter)
    lease_id = dropped.id
    assert renewed_again(store, dropped)
    del dropped
    gc.collect()
    assert renewed_again(store, alive)  # one may have been under way
    before = sum(batch.count(lease_id) for batch in store.renewed)
    assert renewed_again(store, alive, 4)
    assert sum(batch.count(lease_id) for batch in store.renewed) == before
    alive.commit()


def test_a_dropped_limiter_is_not_kept_alive(store: FailingStore, mine: Any) -> None:
    limiter = SyncRateLimiter("failing://")
    lease = take(limiter)
    assert renewed_again(store, lease)
    del limiter, lease
    gc.collect()
    assert eventually(lambda: mine() == [])


def test_close_ends_the_thread(store: FailingStore, limiter: Any, mine: Any) -> None:
    lease = take(limiter, LONG)
    assert len(mine()) == 1
    limiter.close()
    assert eventually(lambda: mine() == [])
    assert not lease.lost


def test_a_soon_due_lease_does_not_wait_for_a_late_one(store: FailingStore, limiter: Any) -> None:
    late = take(limiter, LONG)
    soon_due = limiter.try_acquire("f", "r", {"parallel": 1}, MANY).lease
    assert renewed_again(store, soon_due, 2)
    assert store.renewals(late) == 0
    for lease in (late, soon_due):
        lease.commit()


def test_the_store_is_away_for_a_moment(store: FailingStore, limiter: Any, clock: ManualClock) -> None:
    lease = take(limiter, [Limit.concurrent("parallel", 1, ttl=3)])
    store.error = AWAY
    calls = store.calls
    assert eventually(lambda: store.calls > calls)
    store.error = None
    assert renewed_again(store, lease)
    assert not lease.lost
    lease.commit()


def test_the_store_is_away_for_longer_than_the_slots_last(store: FailingStore, clock: ManualClock) -> None:
    told: list[Any] = []
    events: list[Event] = []
    limiter = SyncRateLimiter("failing://", clock=clock, on_event=events.append)
    lease = take(limiter, on_lost=told.append)
    store.error = AWAY
    assert eventually(lambda: told)
    assert lease.lost
    assert told == [lease]
    assert [event.fields["lease_id"] for event in events if event.name == "lease.lost"] == [lease.id]
    store.error = None
    assert not lease.renew()
    assert told == [lease]
    limiter.close()


def test_leases_learn_that_a_reset_took_their_slots(store: FailingStore, limiter: Any) -> None:
    told: list[Any] = []
    with limiter.acquire("e", "r", {"parallel": 1}, MANY, on_lost=told.append) as lease:
        other = take(limiter)
        limiter.reset("e", "r")
        assert eventually(lambda: lease.lost and other.lost)
        assert eventually(lambda: told == [lease])
    other.commit()
    assert limiter.available("e", "r", MANY)["parallel"] == 1000


@pytest.mark.parametrize("coroutine", [True, False])
def test_a_callback_that_fails_is_logged_and_the_others_are_kept(
    store: FailingStore, limiter: Any, caplog: pytest.LogCaptureFixture, coroutine: bool
) -> None:
    def fails(lease: Any) -> None:
        raise ZeroDivisionError

    async def nobody_awaits(lease: Any) -> None: ...

    lost = take(limiter, on_lost=nobody_awaits if coroutine else fails)
    limiter.reset("e", "r")
    kept = limiter.try_acquire("f", "r", {"parallel": 1}, MANY).lease
    assert eventually(lambda: f"on_lost failed for lease {lost.id}" in caplog.text)
    assert renewed_again(store, kept, 2)
    kept.commit()


def test_an_error_that_nobody_thought_of(
    store: FailingStore, limiter: Any, caplog: pytest.LogCaptureFixture, clock: ManualClock
) -> None:
    lease = take(limiter, [Limit.concurrent("parallel", 1, ttl=3)])
    store.error = ZeroDivisionError("a bug")
    assert eventually(lambda: "a bug" in caplog.text)
    store.error = None
    assert renewed_again(store, lease)
    lease.commit()


def test_what_is_held_here_is_renewed_here(store: FailingStore, limiter: Any, clock: ManualClock) -> None:
    limiter.available("e", "r", MANY)
    store.error = AWAY
    lease = take(limiter, on_unavailable="local")
    for _ in range(3):
        clock.advance(TTL * 0.9)
        until_ms = clock.now_ms() + round(TTL * 1000)

        def renewed(until_ms: int = until_ms) -> bool:
            (row,) = limiter.engine.fallback._store.list_buckets("default", "e", "r", None, clock.now_ms())
            return any(state.holders[lease.id][1] == until_ms for state in row.buckets if hasattr(state, "holders"))

        assert eventually(renewed)
    assert not lease.lost
    lease.commit()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on Windows")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_process_renews_its_own_and_not_its_parents(store: FailingStore, limiter: Any) -> None:
    parents = take(limiter)
    assert renewed_again(store, parents)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            before = store.renewals(parents)
            own = take(limiter)
            if renewed_again(store, own, 4) and store.renewals(parents) == before:
                status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert renewed_again(store, parents)
    assert not parents.lost
    parents.commit()


# Tasks


def keeper_tasks() -> list[Any]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "headgate-keeper"]


async def atake(limiter: RateLimiter, **how: Any) -> Any:
    return (await limiter.try_acquire("e", "r", {"parallel": 1}, MANY, **how)).lease


async def renewed_by_task(store: FailingStore, lease: Any, times: int = 1) -> bool:
    wanted = store.renewals(lease) + times
    return await soon(lambda: store.renewals(lease) >= wanted)


def test_one_task_for_all_leases(store: FailingStore, clock: ManualClock, mine: Any) -> None:
    async def scenario() -> None:
        async with RateLimiter("failing://", clock=clock) as limiter:
            leases = [await atake(limiter) for _ in range(20)]
            assert len(keeper_tasks()) == 1
            for _ in range(3):
                clock.advance(TTL * 0.9)
                store.renewed.clear()
                assert await soon(lambda: all(map(store.renewals, leases)))
            assert (await limiter.available("e", "r", MANY))["parallel"] == 980
            for lease in leases:
                await lease.commit()
            assert await soon(lambda: keeper_tasks() == [])
            lease = await atake(limiter)
            assert await renewed_by_task(store, lease)
            await lease.rollback()

    asyncio.run(scenario())
    assert mine() == []


def test_a_task_is_told_too_and_may_await(store: FailingStore, clock: ManualClock) -> None:
    async def scenario() -> None:
        told: list[Any] = []

        async def on_lost(lease: Any) -> None:
            await asyncio.sleep(0)
            told.append(lease)

        async with RateLimiter("failing://", clock=clock) as limiter:
            one, other = await atake(limiter, on_lost=on_lost), await atake(limiter, on_lost=told.append)
            store.error = AWAY
            assert await soon(lambda: len(told) == 2)
            assert set(told) == {one, other}
            assert one.lost
            store.error = None

    asyncio.run(scenario())


@pytest.mark.parametrize("close", [True, False])
def test_no_noise_at_the_end(store: FailingStore, caplog: pytest.LogCaptureFixture, close: bool) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        limiter = RateLimiter("failing://")
        lease = await atake(limiter)
        assert await renewed_by_task(store, lease)
        if close:
            await limiter.close()
            assert keeper_tasks() == []

    asyncio.run(scenario())
    gc.collect()
    assert caplog.records == []


def test_a_limiter_on_one_event_loop_after_another(store: FailingStore, clock: ManualClock) -> None:
    limiter = RateLimiter("failing://", clock=clock)

    async def scenario() -> None:
        async with limiter.acquire("e", "r", {"parallel": 1}, MANY) as lease:
            assert await renewed_by_task(store, lease)

    for _ in range(2):
        asyncio.run(scenario())
    asyncio.run(limiter.close())


def test_a_dropped_lease_is_gone_at_once(limiter: Any) -> None:
    """Not when the garbage is next collected, which may be never."""
    lease = take(limiter, LONG, on_lost=print)
    hold = weakref.ref(lease._hold)
    gc.disable()
    try:
        del lease
        assert hold() is None
    finally:
        gc.enable()
