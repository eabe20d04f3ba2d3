"""The clock that is shipped for tests."""

from __future__ import annotations

import asyncio
import threading

from headgate.testing import ManualClock


def test_it_moves_when_told() -> None:
    clock = ManualClock(start_ms=1000)
    clock.advance(1.5)
    assert clock.now_ms() == 2500
    clock.advance(-0.5)
    assert clock.now_ms() == 2000
    clock.set(7)
    assert clock.now_ms() == 7


def test_a_sleeping_thread_wakes_when_the_clock_gets_there() -> None:
    clock = ManualClock()
    sleeper = threading.Thread(target=clock.sleep, args=(100,))
    sleeper.start()
    while sleeper.is_alive():
        clock.advance(30)
        sleeper.join(0.001)


def test_a_sleeping_task_wakes_when_the_clock_gets_there() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        early, late = (asyncio.create_task(clock.asleep(seconds)) for seconds in (10, 1000))
        await asyncio.sleep(0)
        clock.advance(10)
        await early
        assert not late.done()
        clock.advance(990)
        await late

    asyncio.run(scenario())


def test_real_time_is_enough() -> None:
    clock = ManualClock()
    clock.sleep(0.001)
    asyncio.run(clock.asleep(0.001))
    assert clock.now_ms() == ManualClock().now_ms()
