"""What a limiter does in the background, in one thread or one task: renew its leases, give back what was taken ahead
and not used, and be counted.

It runs only while there is something to do, and keeps neither the limiter nor a lease alive: the slots of a lease
that is dropped without being ended expire.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...core.decide import Answer
from ...core.errors import HeadgateError, LimiterClosed, PartlyAnswered, RateLimiterUnavailable
from ...plan import Plan, SettleAll, SettleEach, SettleHere, arun, run
from ..acquire.fallback import BEAT_SECONDS
from ..clock import GLANCE_SECONDS, rings
from ..fork import anew_after_fork
from .held_slots import HeldSlots

if TYPE_CHECKING:
    from ..engine import Engine

log = logging.getLogger("headgate")

RENEWALS = 3  # in the time of a ttl
_AGAIN = 4  # after no answer, so many times faster
_LOOK_SECONDS = 1.0  # how often to see whether there is still anything to do


class Chores:
    """What is to be done when. Safe to use from many threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)
        self.after_fork()
        anew_after_fork(self)

    def after_fork(self) -> None:
        """What the parent holds is renewed there."""
        self._lock = threading.RLock()
        self._holds: weakref.WeakSet[HeldSlots] = weakref.WeakSet()
        self._count_at: float | None = None  # None: not needed

    def add(self, hold: HeldSlots) -> None:
        hold.due = hold.asked_at + hold.ttl_seconds / RENEWALS
        with self._lock:
            self._holds.add(hold)

    def drop(self, hold: HeldSlots) -> None:
        with self._lock:
            self._holds.discard(hold)

    def held(self) -> int:
        return len(self._all())

    def count(self) -> bool:
        """Count the limiters at work from now on. False if that is being done."""
        if self._count_at is None:
            self._count_at = time.monotonic()
            return True
        return False

    def do_plan(self) -> Plan[float | None]:
        """Do what is due, and say in how many seconds there is more; None if there is nothing left to do."""
        engine = self._engine()
        if engine is None:
            return None
        now = time.monotonic()
        yield from _renew_plan([hold for hold in self._all() if hold.due <= now], now)
        if engine.slices is not None:
            with engine.slices.due() as back:
                if back:
                    yield from SettleEach(back.requests)
        if self._count_at is not None and now >= self._count_at:
            self._count_at = now + BEAT_SECONDS
            try:
                yield from engine.fallback.count_plan(engine.clock.now_ms())
            except RateLimiterUnavailable:
                pass  # the number as it was last known is what counts now
        return self._pause(None if engine.slices is None else engine.slices.next_end())

    def _pause(self, slice_ends_in: float | None) -> float | None:
        now = time.monotonic()
        times = [hold.due for hold in self._all()]
        if self._count_at is not None:
            times.append(self._count_at)
        if slice_ends_in is not None:
            times.append(now + slice_ends_in + GLANCE_SECONDS)  # the next request may well take it along
        return min(max(0.0, min(times) - now), _LOOK_SECONDS) if times else None

    def _all(self) -> list[HeldSlots]:
        with self._lock:
            return [hold for hold in self._holds if hold.parts and not (hold.lost or hold.ended)]


def _renew_plan(due: Sequence[HeldSlots], now: float) -> Plan[None]:
    for hold in due:
        if hold.here:
            request = hold.request()
            hold.renewed(request, (yield from SettleHere(request)), now)
            hold.due = now + hold.ttl_seconds / RENEWALS
    elsewhere = [hold for hold in due if not hold.here]
    if elsewhere:
        yield from _renew_in_store_plan(elsewhere)


def _renew_in_store_plan(holds: Sequence[HeldSlots]) -> Plan[None]:
    asked_at = time.monotonic()
    requests = [hold.request() for hold in holds]
    answers: Sequence[Answer | HeadgateError | None] = [None] * len(holds)
    try:
        answers = yield from SettleAll(requests)
    except PartlyAnswered as partly:
        answers = partly.results
    except LimiterClosed:
        raise
    except Exception as error:
        if not isinstance(error, RateLimiterUnavailable):
            log.warning("slots could not be renewed: %s", error)
    for hold, request, result in zip(holds, requests, answers):
        answer = result if isinstance(result, Answer) else None
        hurry = 1 if answer is not None else _AGAIN
        hold.due = asked_at + hold.ttl_seconds / RENEWALS / hurry
        hold.renewed(request, answer, asked_at)


class ThreadRenewal:
    def __init__(self, engine: Engine) -> None:
        self.chores = Chores(engine)
        self._engine = weakref.ref(engine)
        self.after_fork()
        anew_after_fork(self)

    def after_fork(self) -> None:
        self._lock = threading.RLock()
        self._bell = threading.Event()
        self._thread: threading.Thread | None = None
        self._asleep_until = 0.0

    def wake(self, due: float) -> None:
        """There is something new to do by then."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._bell = threading.Event()
                self._thread = threading.Thread(target=self._work, name="headgate-keeper", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:  # the main thread has ended, and no other can be started
                    self._thread = None
                    log.warning("slots are not renewed any more: %s", error)
            elif due < self._asleep_until:
                self._bell.set()

    def _work(self) -> None:
        bell = self._bell
        while True:
            bell.clear()
            self._asleep_until = math.inf
            pause = self._do()
            if pause is not None:
                self._asleep_until = time.monotonic() + pause
                bell.wait(pause)
                continue
            with self._lock:
                if not bell.is_set():
                    self._thread = None
                    return

    def _do(self) -> float | None:
        engine: Any = self._engine()
        if engine is None or engine.closed:
            return None
        try:
            return run(self.chores.do_plan(), engine.perform)
        except LimiterClosed:
            return None
        except Exception as error:
            return _shrug(error)

    def close(self, timeout: float) -> None:
        thread = self._thread
        self._bell.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)


class TaskRenewal:
    def __init__(self, engine: Engine) -> None:
        self.chores = Chores(engine)
        self._engine = weakref.ref(engine)
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._asleep_until = math.inf

    def wake(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._bell = asyncio.Event()
            self._task = loop.create_task(self._work(self._bell), name="headgate-keeper")
        elif due < self._asleep_until:
            self._bell.set()

    async def _work(self, bell: asyncio.Event) -> None:
        while True:
            bell.clear()
            self._asleep_until = math.inf
            pause = await self._do()
            if pause is not None:
                self._asleep_until = time.monotonic() + pause
                await rings(bell, pause)
            elif not bell.is_set():
                return

    async def _do(self) -> float | None:
        engine: Any = self._engine()
        if engine is None or engine.closed:
            return None
        try:
            return await arun(self.chores.do_plan(), engine.perform)
        except LimiterClosed:
            return None
        except Exception as error:
            return _shrug(error)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])


def _shrug(error: Exception) -> float:
    """It must not end for one error: there are others' slots to hold on to."""
    log.warning("upkeep failed: %s", error, exc_info=not isinstance(error, HeadgateError))
    return 1.0
