"""What the stores on servers share (stores/server.py): deadlines, late cancellations, and the end of an event loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import HeadgateError, RateLimiterUnavailable
from headgate.core.decide import Answer
from headgate.core.errors import PartlyAnswered
from headgate.plan import Plan, Sleep, run
from headgate.stores import LostThenCancelled, SettledThenCancelled
from headgate.stores.server import AsyncServerCall, AsyncServerStore, LoopBound, MoreTime, ServerCall, TimeLeft

ANSWERS = [Answer(True, 0, ())]


class Wire:
    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds


class Clock:
    """time.monotonic and time.sleep, without waiting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


calls = st.one_of(st.builds(Sleep, st.floats(0, 5)), st.just(MoreTime()), st.just(TimeLeft()), st.floats(0, 5))


@given(timeout_seconds=st.floats(0.1, 5), steps=st.lists(calls, max_size=20))
def test_a_call_never_sleeps_past_its_deadline(timeout_seconds: float, steps: list[Any]) -> None:
    """Unless it is granted more time. A number among the steps is time that passes otherwise."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = Clock(monkeypatch)
        call = ServerCall(Wire(timeout_seconds))
        deadline = clock.now + timeout_seconds
        for step in steps:
            before = clock.now
            if isinstance(step, float):
                clock.now += step
            elif isinstance(step, TimeLeft):
                assert call.perform(step) == max(0, int((deadline - clock.now) * 1000))
            else:
                call.perform(step)
            if isinstance(step, MoreTime):
                deadline = clock.now + timeout_seconds
            if isinstance(step, Sleep):
                assert clock.now == pytest.approx(max(before, min(before + step.seconds, deadline)))
            assert call.deadline == deadline
            assert call.late(sent=True).late is (clock.now >= deadline)


def test_a_plan_learns_how_much_time_is_left() -> None:
    def plan() -> Plan[tuple[int, int]]:
        yield from Sleep(60)
        late = yield from TimeLeft()
        yield from MoreTime()
        return late, (yield from TimeLeft())

    late, renewed = run(plan(), ServerCall(Wire(0.5)).perform)
    assert late == 0
    assert renewed > 0


class OneCallStore(AsyncServerStore[AsyncServerCall]):
    """Its `settle` is sent, waits for the reply, and ends with `outcome`."""

    def __init__(self, outcome: Any) -> None:
        super().__init__(None, Wire(10.0), AsyncServerCall)  # type: ignore[arg-type]
        self.outcome = outcome
        self.sent, self.replied = asyncio.Event(), asyncio.Event()

    async def _settle(self, batch: Any, now_ms: int | None, call: AsyncServerCall) -> list[Answer]:
        self.sent.set()
        reply = asyncio.ensure_future(self.replied.wait())
        await call.wait_for([reply])
        assert reply.result(), "it was waited for"
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome  # type: ignore[no-any-return]


async def settle(outcome: Any, *, cancel: bool) -> Any:
    """What a settle returns or raises that is cancelled, or not, while it waits for the reply."""
    store = OneCallStore(outcome)
    task = asyncio.ensure_future(store.settle([], None))
    await store.sent.wait()
    if cancel:
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done(), "it goes on to the end"
    store.replied.set()
    try:
        return await task
    except (Exception, asyncio.CancelledError) as error:
        return error


@pytest.mark.parametrize("outcome", [ANSWERS, PartlyAnswered([*ANSWERS, HeadgateError("x")]), HeadgateError("lost")])
def test_a_settle_that_is_not_cancelled_returns_or_raises_its_outcome(outcome: Any) -> None:
    assert asyncio.run(settle(outcome, cancel=False)) is outcome


def test_a_settle_cancelled_after_it_was_sent_has_its_answers() -> None:
    error = asyncio.run(settle(ANSWERS, cancel=True))
    assert isinstance(error, SettledThenCancelled)
    assert error.answers is ANSWERS
    assert isinstance(error.own, asyncio.CancelledError)


def test_a_settle_cancelled_after_it_was_sent_has_the_answers_of_a_part() -> None:
    partly = PartlyAnswered([*ANSWERS, HeadgateError("x")])
    error = asyncio.run(settle(partly, cancel=True))
    assert isinstance(error, SettledThenCancelled)
    assert error.answers is partly.results


def test_a_settle_cancelled_after_it_was_sent_and_then_lost_says_so() -> None:
    error = asyncio.run(settle(RateLimiterUnavailable("no reply"), cancel=True))
    assert isinstance(error, LostThenCancelled)


def test_a_cancelled_call_ends_its_tasks_before_it_raises() -> None:
    async def scenario() -> None:
        call = AsyncServerCall(Wire(10.0))
        tasks = [asyncio.ensure_future(asyncio.sleep(60)) for _ in range(3)]
        waiting = asyncio.ensure_future(call.wait_for(tasks))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert all(task.cancelled() for task in tasks)

    asyncio.run(scenario())


class Connections(LoopBound):
    def __init__(self) -> None:
        super().__init__()
        self.closed: list[str] = []
        self._start()

    def _start(self) -> None:
        self.idle: list[str] = []

    async def _close_idle(self) -> None:
        self.closed += self.idle
        self.idle.clear()

    async def use(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            await self._enter(loop)
        self.idle.append(name)


def test_connections_are_closed_before_their_event_loop() -> None:
    connections = Connections()
    asyncio.run(connections.use("a"))
    assert connections.closed == ["a"]
    asyncio.run(connections.use("b"))
    assert connections.closed == ["a", "b"]


def test_connections_of_an_event_loop_that_did_not_end_are_not_used_in_another() -> None:
    connections = Connections()
    first = asyncio.new_event_loop()
    first.run_until_complete(connections.use("a"))

    async def other() -> None:
        await connections.use("b")
        assert connections.idle == ["b"]
        await connections.close()

    asyncio.run(other())
    assert connections.closed == ["b"]
    first.run_until_complete(first.shutdown_asyncgens())
    first.close()
