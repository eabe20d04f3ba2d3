"""A signal handler raises in the middle of a call, or calls the limiter itself; a fork comes amid acquires."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from headgate import Limit, RateLimiterUnavailable, SyncRateLimiter
from headgate.core.decide import Answer, Mode, Part, Request
from headgate.limiter.acquire.task_coalescer import TaskCoalescer
from headgate.limiter.acquire.thread_coalescer import ThreadCoalescer
from headgate.limiter.single_flight import ThreadSingleFlight

LIMIT = Limit.custom("x", 1_000_000, 0.001, 366 * 86_400)  # as good as no refill
IN_TIME = 20.0
WATCHED = ("task_coalescer.py", "thread_coalescer.py", "single_flight.py", "store.py", "locks.py")


class Interrupt(KeyboardInterrupt):
    """What a signal handler raises."""


class CountingStore:
    """Allows everything, and knows what is taken."""

    def __init__(self) -> None:
        self.taken = 0
        self._lock = threading.Lock()

    def settle(self, batch: Sequence[Request]) -> list[Answer]:
        with self._lock:
            self.taken += sum(request.parts[0].amount_milli for request in batch)
        return [Answer(True, 0, [(0, 0)]) for _ in batch]


def take() -> Request:
    return Request(Mode.TAKE, ("n/e#r",), (Part(0, LIMIT, 1),))


def interrupted_at(step: int, work: Callable[[], Any]) -> bool:
    """Run the work, and raise when so many calls were made in it: an interpreter looks for signals where a function of
    Python's begins, and when one of C's has returned. False if there are not so many."""
    steps = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal steps
        if event in ("call", "c_return") and frame.f_code.co_filename.endswith(WATCHED):
            steps += 1
            if steps == step:
                sys.setprofile(None)
                raise Interrupt

    sys.setprofile(count)
    try:
        work()
    except Interrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def finished(work: Callable[[], Any], count: int = 4) -> list[Any]:
    """What threads return that do it, all of them in time."""
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(work()), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + IN_TIME
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    return results


def test_lone_call_interrupted_at_any_moment_leaves_the_next_ones_free_to_lead() -> None:
    step, coalescer = 1, ThreadCoalescer(CountingStore().settle)
    while interrupted_at(step, lambda: coalescer.settle(take())):
        assert all(answer.allowed for answer in finished(lambda: coalescer.settle(take()), 2))
        step += 1
    assert step > 5


@pytest.mark.parametrize("leads", [False, True])
def test_waiting_call_interrupted_at_any_moment_leaves_nothing_taken_and_no_one_waiting(leads: bool) -> None:
    """It waits for another's flight, then leads its own; three threads wait behind it."""
    step, interrupted = 1, True
    while interrupted:
        store = CountingStore()
        flying, land = threading.Event(), threading.Event()

        def settle(
            batch: Sequence[Request], store: CountingStore = store, flying: Any = flying, land: Any = land
        ) -> list[Answer]:
            if not flying.is_set():
                flying.set()
                assert land.wait(IN_TIME)
            return store.settle(batch)

        coalescer = ThreadCoalescer(settle)
        outcomes: list[bool] = []

        def victim(step: int = step, coalescer: ThreadCoalescer = coalescer, outcomes: list[bool] = outcomes) -> None:
            outcomes.append(interrupted_at(step, lambda: coalescer.settle(take())))

        def other(coalescer: ThreadCoalescer = coalescer) -> int:
            try:
                return int(coalescer.settle(take()).allowed)
            except RateLimiterUnavailable:
                return 0

        first = threading.Thread(target=other, daemon=True)
        first.start()
        assert flying.wait(IN_TIME)
        wounded = threading.Thread(target=victim, daemon=True)
        wounded.start()
        if leads:  # else those behind may be first in the queue
            while not coalescer._queue and wounded.is_alive():
                time.sleep(0)
        threading.Timer(0.01, land.set).start()
        granted = finished(other, 3)
        wounded.join(IN_TIME)
        first.join(IN_TIME)
        assert not wounded.is_alive()
        assert not first.is_alive()
        (interrupted,) = outcomes
        # What a flight took whose leader was interrupted before it knew may stay taken; nothing is given twice.
        assert store.taken >= sum(granted) + 1, step
        assert finished(lambda coalescer=coalescer: coalescer.settle(take()).allowed, 2) == [True, True]
        step += 1
    assert step > 8


@pytest.mark.parametrize("step", range(1, 40))
@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_limiter_interrupted_at_any_moment_goes_on(scheme: str, step: int, tmp_path: Path) -> None:
    url = "memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/i.db"
    with SyncRateLimiter(url) as limiter:
        interrupted_at(step, lambda: limiter.try_acquire("e", "r", {"x": 1}, [LIMIT]))
        assert finished(lambda: bool(limiter.try_acquire("e", "r", {"x": 1}, [LIMIT])), 2) == [True, True]
        assert limiter.available("e", "r", [LIMIT])["x"] in (999_997, 999_998)


def test_single_flight_work_interrupted_at_any_moment_is_done_by_others() -> None:
    step, flight = 1, ThreadSingleFlight(0.05)
    while interrupted_at(step, lambda: flight.run("key", lambda: 1)):
        assert finished(lambda: flight.run("key", lambda: 2), 2) == [2, 2]
        step += 1
    assert step > 5


@pytest.fixture
def alarm() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Run a handler in the main thread every millisecond or so."""

    def ring(handler: Callable[[], None]) -> None:
        signal.signal(signal.SIGALRM, lambda *_: handler())
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)

    before = signal.getsignal(signal.SIGALRM)
    yield ring
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_signal_handler_that_acquires_never_deadlocks(
    scheme: str, tmp_path: Path, alarm: Callable[[Callable[[], None]], None]
) -> None:
    url = "memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/h.db"
    outcomes: list[bool] = []
    refused: list[str] = []
    with SyncRateLimiter(url) as limiter:
        nested = 0

        def handler() -> None:
            nonlocal nested
            if nested == 10:  # on a busy machine the timer is faster than what it interrupts
                return
            nested += 1
            try:
                outcomes.append(bool(limiter.try_acquire("e", "r", {"x": 1}, [LIMIT])))
            except RateLimiterUnavailable as error:
                outcomes.append(False)
                refused.append(str(error))
            finally:
                nested -= 1

        threads = [threading.Thread(target=_hammer, args=(limiter, 50)) for _ in range(2)]
        alarm(handler)
        for thread in threads:
            thread.start()
        passed = 100
        while len(outcomes) < 50:
            passed += bool(limiter.try_acquire("e", "r", {"x": 1}, [LIMIT]))
        signal.setitimer(signal.ITIMER_REAL, 0)
        for thread in threads:
            thread.join()
        passed += sum(outcomes)
        assert all("signal handler" in why for why in refused)
        assert limiter.available("e", "r", [LIMIT]) == {"x": 1_000_000 - passed}


def _hammer(limiter: SyncRateLimiter, times: int) -> None:
    for _ in range(times):
        assert limiter.try_acquire("e", "r", {"x": 1}, [LIMIT])


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_child_forked_while_threads_acquire_can_acquire(scheme: str, tmp_path: Path) -> None:
    url = "memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/f.db"
    stop = threading.Event()
    with SyncRateLimiter(url) as limiter:

        def work() -> None:
            while not stop.is_set():
                limiter.try_acquire("e", "r", {"x": 1}, [LIMIT])

        threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(30):
                child = os.fork()
                if child == 0:
                    signal.alarm(int(IN_TIME))
                    os._exit(0 if limiter.try_acquire("e", "r", {"x": 1}, [LIMIT]) else 1)
                _, status = os.waitpid(child, 0)
                assert status == 0, "the child hangs"
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@pytest.mark.parametrize("together", [True, False])
def test_flight_of_tasks_interrupted_at_any_moment_leaves_no_task_waiting(together: bool) -> None:
    """A second Ctrl-C is raised amid whatever runs in the event loop, be it the flight that all of them wait for."""
    step, interrupted = 1, True
    while interrupted:
        store = CountingStore()

        async def settle(batch: Sequence[Request], store: CountingStore = store) -> list[Answer]:
            await asyncio.sleep(0)
            return store.settle(batch)

        coalescer = TaskCoalescer(settle, together=together)

        async def ask(coalescer: TaskCoalescer = coalescer) -> None:
            asked = (coalescer.settle(take()) for _ in range(3))
            await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), IN_TIME)

        loop = asyncio.new_event_loop()
        first = loop.create_task(ask())
        try:
            interrupted = interrupted_at(step, lambda loop=loop, first=first: loop.run_until_complete(first))  # type: ignore[misc]
            loop.run_until_complete(asyncio.wait([first], timeout=IN_TIME))
            assert first.done(), step
            with suppress(BaseException):
                first.result()
            loop.run_until_complete(ask())
            loop.run_until_complete(coalescer.drain(IN_TIME))
        finally:
            loop.close()
        step += 1
    assert step > 20
