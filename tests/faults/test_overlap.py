"""Things go wrong while two flights of tasks are under way: on every server store, or with the one flight it has."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest
from fault_helpers import LONG_ENOUGH
from overlap_helpers import (
    LIMIT,
    Line,
    ask,
    dynamodb_line,
    postgres_line,
    redis_line,
    under_way,
    warmed,
)

from headgate import CorruptState, Limit, RateLimiter
from headgate.core.bucket import Bucket
from headgate.limiter.acquire.breaker import FAILURES
from headgate.limiter.acquire.task_coalescer import TaskCoalescer

SHORT = 4.0
LINES = {"redis": redis_line, "postgres": postgres_line, "dynamodb": dynamodb_line}
SERVERS = {"redis": "redis_server", "postgres": "postgres_server", "dynamodb": "ministack"}


@pytest.fixture(params=LINES)
def line(request: pytest.FixtureRequest, aws_credentials: str) -> Iterator[Line]:
    relay, line = LINES[request.param](request.getfixturevalue(SERVERS[request.param]))
    with relay:
        yield line(relay)


@pytest.fixture(params=["first", "second", "queued"])
def where(request: pytest.FixtureRequest, line: Line) -> str:
    if request.param == "second" and line.flights == 1:
        pytest.skip("this store has one flight")
    return str(request.param)


async def outcomes(tasks: list[asyncio.Task[Any]]) -> list[str]:
    await asyncio.wait(tasks, timeout=LONG_ENOUGH)
    return [_outcome(task) for task in tasks]


def _outcome(task: asyncio.Task[Any]) -> str:
    assert task.done(), "it waits for ever"
    if task.cancelled():
        return "cancelled"
    if (error := task.exception()) is not None:
        return type(error).__name__
    return "allowed" if task.result().allowed else "refused"


def used_before(line: Line) -> int:
    """What `under_way` has used of `e`."""
    return 1 + line.flights


class TestCancelled:
    @pytest.mark.parametrize("times", [1, 3])
    def test_one_task_leaves_nothing_taken_and_the_others_their_answers(
        self, where: str, times: int, line: Line
    ) -> None:
        async def main() -> None:
            async with line.limiter() as limiter:
                flights = await under_way(line, limiter)
                victim = getattr(flights, where)[1]
                for _ in range(times):
                    victim.cancel()
                    await asyncio.sleep(0)
                line.relay.flow()
                assert await outcomes([victim]) == ["cancelled"]
                others = [task for task in flights.all if task is not victim]
                assert await outcomes(others) == ["allowed"] * len(others)
                assert line.taken() == used_before(line) + len(others)

        asyncio.run(main())

    def test_whole_flight_leaves_nothing_taken(self, where: str, line: Line) -> None:
        async def main() -> None:
            async with line.limiter() as limiter:
                flights = await under_way(line, limiter)
                victims = getattr(flights, where)
                for victim in victims:
                    victim.cancel()
                await asyncio.sleep(0)
                line.relay.flow()
                assert await outcomes(victims) == ["cancelled"] * len(victims)
                others = [task for task in flights.all if task not in victims]
                assert await outcomes(others) == ["allowed"] * len(others)
                assert line.taken() == used_before(line) + len(others)

        asyncio.run(main())

    def test_all_of_them_by_the_end_of_the_event_loop(self, line: Line, caplog: pytest.LogCaptureFixture) -> None:
        limiter = line.limiter()
        asked: list[asyncio.Task[Any]] = []

        async def main() -> None:
            asked.extend((await under_way(line, limiter)).all)
            asyncio.get_running_loop().call_later(0.02, line.relay.flow)

        asyncio.run(main())
        assert all(task.cancelled() for task in asked)
        assert line.taken() == used_before(line)

        async def again() -> None:
            async with limiter:
                assert (await limiter.try_acquire("e", "r", {"n": 1}, [LIMIT])).allowed

        asyncio.run(again())
        assert line.taken() == used_before(line) + 1
        gc.collect()  # what was not closed or awaited is a warning, and that an error
        assert not [record for record in caplog.records if record.name == "asyncio"]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_event_loop_closed_without_its_tasks_leaves_the_next_one_free(line: Line) -> None:
    """Nobody can give back then. What was under way may stay taken; what was not sent is not."""
    limiter = line.limiter()
    loop = asyncio.new_event_loop()
    flights = loop.run_until_complete(under_way(line, limiter))
    loop.close()
    line.relay.flow()

    async def again() -> None:
        async with limiter:
            assert (await limiter.try_acquire("e", "r", {"n": 1}, [LIMIT])).allowed

    asyncio.run(again())
    sent = len(flights.first) + len(flights.second)
    assert used_before(line) + 1 <= line.taken() <= used_before(line) + 1 + sent
    del flights, loop
    gc.collect()  # here, where its warnings are expected


class TestBroken:
    @pytest.mark.parametrize("how", ["after the first answer", "before any", "amid a reply"])
    def test_connection_is_made_anew_and_everybody_has_an_answer(self, how: str, line: Line) -> None:
        """The server had done it, and does it again if the store sends it again."""

        async def main() -> None:
            async with line.limiter() as limiter:
                flights = await under_way(line, limiter)
                lost = flights.first + flights.second
                if how == "after the first answer":
                    line.relay.release()
                    assert await outcomes(flights.first) == ["allowed"] * len(flights.first)
                    await line.relay.held(line.flights)
                    lost = flights.second + flights.queued
                elif how == "amid a reply":
                    line.relay.release(part=0.5)
                line.relay.cut()
                told = [
                    "allowed" if line.repeats or task not in lost else "RateLimiterUnavailable" for task in flights.all
                ]
                assert await outcomes(flights.all) == told
                assert limiter.breaker_state == "closed"
                taken = used_before(line) + told.count("allowed") + len(lost)
                assert line.taken() == taken
                assert (await limiter.try_acquire("e", "r", {"n": 1}, [LIMIT])).allowed
                assert line.taken() == taken + 1

        asyncio.run(main())

    def test_replies_that_do_not_come_end_the_calls_in_time_and_none_is_sent_again(self, line: Line) -> None:
        async def main() -> None:
            async with line.limiter(store_timeout=SHORT) as limiter:
                flights = await under_way(line, limiter, queued="")
                assert await outcomes(flights.all) == ["RateLimiterUnavailable"] * len(flights.all)
                line.relay.flow()
                assert line.taken() == used_before(line) + len(flights.all)

        asyncio.run(main())

    @pytest.mark.parametrize("policy", ["block", "allow"])
    def test_server_that_stays_away_is_an_outage_for_everybody(self, policy: str, line: Line) -> None:
        async def main() -> None:
            async with line.limiter(on_unavailable=policy) as limiter:
                flights = await under_way(line, limiter)
                line.relay.cut(refuse=True)
                assert await outcomes(flights.all) == [outage] * len(flights.all)
                if policy == "allow":
                    assert all(task.result().degraded for task in flights.all)
                for _ in range(FAILURES - line.flights - 1):  # a flight is a failure, those that waited another
                    assert limiter.breaker_state == "closed"
                    assert await outcomes(ask(limiter, "e")) == [outage]
                assert limiter.breaker_state == "open"
                line.relay.flow()
                deadline = time.monotonic() + LONG_ENOUGH
                while limiter.breaker_state != "closed":
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.02)
                    await outcomes(ask(limiter, "e"))
                assert await outcomes(ask(limiter, "e", "e")) == ["allowed"] * 2

        outage = "allowed" if policy == "allow" else "RateLimiterUnavailable"
        asyncio.run(main())


def test_corrupt_row_in_one_flight_concerns_its_own_callers_alone(where: str, line: Line) -> None:
    async def main() -> None:
        async with line.limiter() as limiter:
            aboard = {"first": "fee", "second": "ef", "queued": "eff"} | {where: "fxex"}
            flights = await under_way(line, limiter, **aboard, corrupt="x")
            line.relay.flow()
            expected = [CorruptState.__name__ if task.get_name() == "x" else "allowed" for task in flights.all]
            assert await outcomes(flights.all) == expected
            for entity, used in (("e", used_before(line)), ("f", 1)):
                assert line.taken(entity) == used + sum(task.get_name() == entity for task in flights.all)
            assert limiter.breaker_state == "closed"

    asyncio.run(main())


DAY = Limit.custom("n", 60, 10, 86_400)  # a token in 8,640 seconds, much longer than a test


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_those_of_one_call_after_the_other(seed: int, line: Line) -> None:
    """The model is core's bucket. Replies come one by one, so that flights are of all sizes."""
    chance = random.Random(seed)
    asked: list[tuple[int, Any]] = []  # in the order in which they asked

    async def caller(limiter: RateLimiter) -> None:
        for _ in range(6):
            at = len(asked)
            amount = chance.choice((1, 1, 2, 5, 0, 61))
            asked.append((amount, None))
            asked[at] = amount, await limiter.try_acquire("e", "r", {"n": amount}, [DAY])

    async def main() -> None:
        async with line.limiter() as limiter:
            assert (await limiter.try_acquire("e", "r", {"n": 0}, [DAY])).allowed
            line.relay.hold()
            callers = asyncio.gather(*(caller(limiter) for _ in range(12)))
            await line.relay.held(line.flights)
            while not callers.done():
                line.relay.release(chance.choice((1, 1, 2)))
                await asyncio.sleep(0.001)
            await callers

    start = time.monotonic()
    asyncio.run(main())
    passed_ms = (time.monotonic() - start) * 1000
    bucket = Bucket.full(DAY, 0)
    for amount, decision in asked:
        wait_ms = bucket.wait_ms(amount * 1000)
        assert decision.allowed is (wait_ms == 0)
        if wait_ms == 0:
            bucket.tokens_milli -= amount * 1000
        elif wait_ms is None:
            assert decision.retry_after_ms is None
        else:
            assert wait_ms - passed_ms <= decision.retry_after_ms <= wait_ms
    assert bucket.tokens_milli == 0


# What sends and lands a batch of `start`. (Flights that are tasks: tests/limiter/test_interrupts.py.)
WATCHED = ("task_coalescer.py", "pipelined.py", "redis/coroutines.py", "postgres/coroutines.py")
FUNCTIONS = ("_sent", "start", "send", "data_received", "_readable", "replied", "_arrived", "_land")
SCARCE = Limit.custom("n", 8, 0.001, 366 * 86_400)
STRIDE = 3  # each test takes its share of the moments


class TestInterrupted:
    @pytest.mark.parametrize("landed", [0, 1, 2])
    def test_landing_leaves_no_task_waiting(self, landed: int, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ctrl-C, when some of the first flight's callers have their answers."""
        limiter = line.limiter()
        land = TaskCoalescer._land

        class Interrupted(list[Any]):
            def __getitem__(self, index: Any) -> Any:
                if index == landed:
                    raise KeyboardInterrupt
                return super().__getitem__(index)

            def __iter__(self) -> Iterator[Any]:
                for at, answer in enumerate(super().__iter__()):
                    if at == landed:
                        raise KeyboardInterrupt
                    yield answer

        def interrupted(self: TaskCoalescer, batch: Any, results: Any, error: Any = None) -> None:
            monkeypatch.undo()
            land(self, batch, Interrupted(results), error)

        loop = asyncio.new_event_loop()
        flights = loop.run_until_complete(under_way(line, limiter))
        monkeypatch.setattr(TaskCoalescer, "_land", interrupted)
        line.relay.release()
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asyncio.sleep(LONG_ENOUGH))
        line.relay.flow()
        told = loop.run_until_complete(outcomes(flights.first))
        assert told == ["allowed"] * landed + ["RateLimiterUnavailable"] * (len(flights.first) - landed)
        others = flights.second + flights.queued
        assert loop.run_until_complete(outcomes(others)) == ["allowed"] * len(others)

        async def again() -> list[str]:
            return await outcomes(ask(limiter, "e"))

        assert loop.run_until_complete(again()) == ["allowed"]
        loop.run_until_complete(limiter.close())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        sure = used_before(line) + len(flights.all) + 1
        assert sure <= line.taken() <= sure + len(flights.second), "a flight that was lost is sent again"

    @pytest.mark.parametrize("line", ["redis", "postgres"], indirect=True)
    @pytest.mark.parametrize("offset", range(STRIDE))
    def test_any_moment_leaves_no_task_waiting_and_gives_nothing_for_free(self, offset: int, line: Line) -> None:
        step, interrupted = offset, True
        while interrupted:
            step += STRIDE
            limiter = line._replace(namespace=f"{line.namespace}-{step}").limiter()
            asked: list[asyncio.Task[Any]] = []

            async def twice(limiter: RateLimiter = limiter, asked: list[asyncio.Task[Any]] = asked) -> None:
                for _ in range(2):
                    asked += ask(limiter, *"eeeeee", limit=SCARCE)
                    await asyncio.wait(asked[-6:])

            async def again(limiter: RateLimiter = limiter, asked: list[asyncio.Task[Any]] = asked) -> None:
                asked.extend(ask(limiter, "e", "e", limit=SCARCE))
                await asyncio.wait(asked[-2:])
                await limiter.close()

            loop = asyncio.new_event_loop()
            loop.run_until_complete(warmed(limiter, "f"))
            work = loop.create_task(twice())
            interrupted = interrupted_at(step, partial(loop.run_until_complete, work))
            loop.run_until_complete(asyncio.wait([work], timeout=LONG_ENOUGH))
            loop.run_until_complete(again())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            told = [_outcome(task) for task in asked]
            assert told.count("allowed") <= 8, step
            assert set(told[-2:]) <= {"allowed", "refused"}, step
        assert step > 30


def _is_watched(frame: FrameType, event: str) -> bool:
    """Not where asyncio hands over the data: what it has received is lost then, of any program."""
    name = frame.f_code.co_name
    hands_over = event == "call" and name == "data_received"
    return name in FUNCTIONS and frame.f_code.co_filename.endswith(WATCHED) and not hands_over


def interrupted_at(step: int, work: Callable[[], Any]) -> bool:
    """Do the work, and raise where an interpreter looks for signals for the so manieth time in our code: where a
    function of Python's begins, and when one of C's has returned. False if it does not come to that."""
    steps = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal steps
        if event in ("call", "c_return") and _is_watched(frame, event):
            steps += 1
            if steps == step:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(count)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False
