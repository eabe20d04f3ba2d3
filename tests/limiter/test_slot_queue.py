"""Standing in line for slots, in threads and tasks. That it is first come, first served is in the conformance suite."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limiter_helpers import eventually, failing_store, in_thread, soon

from headgate import Limit, RateLimiter, RateLimiterUnavailable, RateLimitExceeded, SyncRateLimiter
from headgate.limiter.acquire.slot_queue import FASTEST, LEFT_TO_OTHERS, SLOWEST, SlotQueues, pause
from headgate.testing import ManualClock

ONE = [Limit.concurrent("parallel", 1)]
TWO = [Limit.concurrent("parallel", 2)]
PAIR = [Limit.concurrent("parallel", 1), Limit.concurrent("other", 1)]
WISH: Any = ("e", "r", {"parallel": 1}, ONE)


def in_line(limiter: Any) -> int:
    return int(limiter.waiters)


@given(st.floats(0, 1e6))
def test_the_longer_one_waits_the_more_often_one_asks(waited: float) -> None:
    assert FASTEST / 2 <= pause(waited) <= SLOWEST
    assert pause(0) >= SLOWEST / 2
    if waited > SLOWEST / FASTEST:
        assert pause(waited) <= FASTEST


def test_what_is_shared_is_left_to_other_processes_now_and_then() -> None:
    lines = SlotQueues(threading.Event, shared=True)
    wish = frozenset({("key", "parallel")})
    ticket = lines.join(wish)
    woken = []
    for _ in range(2 * LEFT_TO_OTHERS):
        lines.given_back(wish)
        woken.append(ticket.bell.is_set())  # type: ignore[attr-defined]
        ticket.bell.clear()
    assert woken == ([True] * (LEFT_TO_OTHERS - 1) + [False]) * 2


def test_who_leaves_wakes_the_next_and_who_gives_back_the_first() -> None:
    lines = SlotQueues(threading.Event, shared=False)
    wish, other = frozenset({("k", "a"), ("k", "b")}), frozenset({("k", "c")})
    first, second, elsewhere = lines.join(wish), lines.join(wish), lines.join(other)
    bells = first.bell, second.bell, elsewhere.bell

    def rung() -> list[bool]:
        found = [bell.is_set() for bell in bells]  # type: ignore[attr-defined]
        for bell in bells:
            bell.clear()
        return found

    assert (first.first, second.first) == (True, False)
    lines.given_back([("k", "b"), ("k", "x")])
    assert rung() == [True, False, False]
    lines.given_back([("l", "b")])
    assert rung() == [False, False, False]
    lines.leave(wish, first)
    assert second.first
    assert rung() == [False, True, False]
    lines.leave(wish, second)
    lines.leave(other, elsewhere)
    assert not lines.waiting(wish)
    lines.given_back([("k", "a")])
    assert rung() == [False, False, False]


def test_whoever_gives_back_wakes_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.limiter.acquire.waiting.pause", lambda waited: 1000.0)  # nobody asks by itself
    with SyncRateLimiter("memory://") as limiter:
        for end in ("commit", "rollback", "release"):
            lease: Any = limiter.try_acquire(*WISH).lease
            with in_thread(lambda: limiter.try_acquire(*WISH, max_wait=600)) as found:
                assert eventually(lambda: in_line(limiter) == 1)
                lease.release(parallel=1) if end == "release" else getattr(lease, end)()
            assert found[0]
            found[0].lease.commit()


def test_only_the_first_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.limiter.acquire.waiting.pause", lambda waited: 1000.0)
    store, order = failing_store(), []

    def work(number: int) -> None:
        with limiter.acquire(*WISH, max_wait=600):
            order.append(number)

    with SyncRateLimiter("failing://") as limiter:
        lease: Any = limiter.try_acquire(*WISH).lease
        calls = store.calls
        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
        for number, thread in enumerate(threads, 1):
            thread.start()
            assert eventually(lambda number=number: in_line(limiter) == number)
        assert store.calls == calls + 1
        lease.commit()
        for thread in threads:
            thread.join()
    assert order == [0, 1, 2, 3]


def test_who_has_died_wakes_nobody_but_is_found_out() -> None:
    brief = [Limit.concurrent("parallel", 1, ttl=0.2)]
    with SyncRateLimiter("memory://") as limiter:
        dead: Any = limiter.try_acquire("e", "r", {"parallel": 1}, brief).lease
        dead._hold.ended = True  # nobody renews it
        decision = limiter.try_acquire("e", "r", {"parallel": 1}, brief, max_wait=30)
        assert decision.lease is not None
        decision.lease.commit()


def test_waiter_gets_a_slot_that_another_limiter_frees() -> None:
    url = "memory://two-limiters"
    with SyncRateLimiter(url) as one, SyncRateLimiter(url) as other:
        lease: Any = one.try_acquire(*WISH).lease
        with in_thread(lambda: other.try_acquire(*WISH, max_wait=30)) as found:
            assert eventually(lambda: in_line(other) == 1)
            lease.commit()
        assert found[0]
        found[0].lease.commit()


def test_what_can_never_be_had_does_not_stand_in_line() -> None:
    with SyncRateLimiter("memory://") as limiter, limiter.acquire(*WISH):
        assert not limiter.try_acquire("e", "r", {"parallel": 2}, ONE, max_wait=3600)
        rpm = Limit.per_minute("rpm", 60)
        limiter.adjust("e", "r", {"rpm": 3600}, [rpm, *ONE])
        assert not limiter.try_acquire("e", "r", {"rpm": 1, "parallel": 1}, [rpm, *ONE], max_wait=60)


def test_everybody_gets_in_and_never_two_at_once() -> None:
    """Threads of two limiters, over slots of several kinds."""
    url, inside, most = "memory://everybody", [0], [0]
    lock = threading.Lock()

    def work(limiter: SyncRateLimiter, consume: dict[str, int]) -> None:
        for _ in range(10):
            with limiter.acquire("e", "r", consume, PAIR, max_wait=60):
                with lock:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                with lock:
                    inside[0] -= 1

    with SyncRateLimiter(url) as one, SyncRateLimiter(url) as other:
        threads = [
            threading.Thread(target=work, args=(limiter, consume))
            for limiter in (one, other)
            for consume in ({"parallel": 1}, {"parallel": 1, "other": 1}, {"parallel": 1})
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == [1]
        assert (in_line(one), in_line(other)) == (0, 0)
        assert one.available("e", "r", PAIR) == {"parallel": 1, "other": 1}


def test_a_store_that_goes_away_while_one_stands_in_line() -> None:
    store = failing_store()

    def wait(limiter: SyncRateLimiter) -> str:
        try:
            return str(limiter.try_acquire(*WISH, max_wait=30))
        except RateLimiterUnavailable as away:
            return str(away)

    with SyncRateLimiter("failing://") as limiter:
        lease: Any = limiter.try_acquire(*WISH).lease
        with in_thread(lambda: wait(limiter)) as found:
            assert eventually(lambda: in_line(limiter) == 1)
            store.error = RateLimiterUnavailable("it went away")
        assert "it went away" in found[0]
        assert in_line(limiter) == 0
        store.error = None
        lease.rollback()


def test_tasks_are_woken_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.limiter.acquire.waiting.pause", lambda waited: 1000.0)

    async def scenario() -> None:
        async with RateLimiter("memory://") as limiter:
            first = await limiter.try_acquire("e", "r", {"parallel": 2}, TWO)
            waiting = [
                asyncio.create_task(limiter.try_acquire("e", "r", {"parallel": 1}, TWO, max_wait=600)) for _ in range(2)
            ]
            assert await soon(lambda: in_line(limiter) == 2)
            await first.lease.release(parallel=2)
            for decision in await asyncio.wait_for(asyncio.gather(*waiting), 30):
                await decision.lease.commit()
            await first.lease.commit()

    asyncio.run(scenario())


# On a clock that stands still, or is set


def test_nobody_waits_for_longer_than_they_said() -> None:
    with SyncRateLimiter("memory://", clock=ManualClock()) as limiter, limiter.acquire(*WISH):
        with in_thread(lambda: limiter.try_acquire(*WISH, max_wait=0.05)) as found:
            pass
        assert not found[0]


def test_who_is_second_is_woken_too() -> None:
    with SyncRateLimiter("memory://", clock=ManualClock()) as limiter:
        lease: Any = limiter.try_acquire(*WISH).lease

        def work() -> bool:
            with limiter.acquire(*WISH, max_wait=3600):
                return True

        with in_thread(work) as first, in_thread(work) as second:
            assert eventually(lambda: in_line(limiter) == 2)
            lease.commit()
        assert (first, second) == ([True], [True])


def test_tokens_that_went_while_one_stood_in_line() -> None:
    """The slot is free, the tokens are not in time any more: that is what the refusal says."""
    clock, rpm = ManualClock(), Limit.per_minute("rpm", 60)
    limits = [rpm, *ONE]
    with SyncRateLimiter("memory://", clock=clock) as limiter:
        lease: Any = limiter.try_acquire("e", "r", {"parallel": 1}, limits).lease
        wish: Any = ("e", "r", {"parallel": 1, "rpm": 30}, limits)
        with in_thread(lambda: limiter.try_acquire(*wish, max_wait=100)) as found:
            assert eventually(lambda: in_line(limiter) == 1)
            clock.advance(95)
            limiter.adjust("e", "r", {"rpm": 90}, limits)
            lease.commit()
            clock.advance(0.001)
        (decision,) = found
        assert [(status.limit_name, status.exceeded) for status in decision.statuses] == [
            ("parallel", False),
            ("rpm", True),
        ]
        assert "rpm" in str(RateLimitExceeded(decision.statuses))
