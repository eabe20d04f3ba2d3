"""Group commit among threads, and flights of tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from headgate import Limit, RateLimiterUnavailable
from headgate.core.decide import Answer, Mode, Part, Request
from headgate.limiter.acquire.task_coalescer import TaskCoalescer
from headgate.limiter.acquire.thread_coalescer import ThreadCoalescer
from headgate.stores.contract import Landed

LIMIT = Limit.per_minute("x", 100)


def take(amount: int) -> Request:
    return Request(Mode.TAKE, ("n/e#r",), (Part(0, LIMIT, amount),))


class SlowStore:
    """Allows everything, remembers its batches, and answers only when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.arrived = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def settle(self, batch: Sequence[Request]) -> list[Answer]:
        self.batches.append([request.parts[0].amount_milli for request in batch])
        self.arrived.release()
        assert self.go.acquire(timeout=60)
        return [Answer(True, 0, [(request.parts[0].amount_milli, 0)]) for request in batch]


def started(coalescer: ThreadCoalescer, amount: int, answers: dict[int, int]) -> threading.Thread:
    def work() -> None:
        answers[amount] = coalescer.settle(take(amount)).levels[0][0]

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def queued(coalescer: ThreadCoalescer, count: int) -> None:
    while len(coalescer._queue) < count:
        pass


def test_threads_share_a_call_in_the_order_they_came() -> None:
    store, answers = SlowStore(), {}
    coalescer = ThreadCoalescer(store.settle)
    threads = [started(coalescer, 1, answers)]
    assert store.arrived.acquire(timeout=60)
    for amount in (2, 3, 4):
        threads.append(started(coalescer, amount, answers))
        queued(coalescer, amount - 1)
    store.go.release(2)
    for thread in threads:
        thread.join(60)
    assert store.batches == [[1], [2, 3, 4]]
    assert answers == {1: 1, 2: 2, 3: 3, 4: 4}
    assert coalescer._turn.acquire(blocking=False)


def test_an_error_of_a_call_reaches_everyone_in_it() -> None:
    failing = threading.Event()

    def settle(batch: Sequence[Request]) -> list[Answer]:
        failing.set()
        raise RateLimiterUnavailable("away")

    coalescer = ThreadCoalescer(settle)
    for _ in range(2):
        with pytest.raises(RateLimiterUnavailable, match="away"):
            coalescer.settle(take(1))


def test_an_interrupted_leader_leaves_nobody_waiting() -> None:
    store, answers = SlowStore(), {}
    calls = 0

    def settle(batch: Sequence[Request]) -> list[Answer]:
        nonlocal calls
        calls += 1
        if calls == 1:
            store.arrived.release()
            assert store.go.acquire(timeout=60)
            raise KeyboardInterrupt
        return store.settle(batch)

    coalescer = ThreadCoalescer(settle)
    interrupted = []

    def lead() -> None:
        try:
            coalescer.settle(take(1))
        except KeyboardInterrupt:
            interrupted.append(True)

    leader = threading.Thread(target=lead)
    leader.start()
    assert store.arrived.acquire(timeout=60)
    follower = started(coalescer, 2, answers)
    queued(coalescer, 1)
    store.go.release(2)
    leader.join(60)
    follower.join(60)
    assert interrupted == [True]
    assert answers == {2: 2}


def test_tasks_share_a_call() -> None:
    batches: list[list[int]] = []

    async def settle(batch: Sequence[Request]) -> list[Answer]:
        batches.append([request.parts[0].amount_milli for request in batch])
        await asyncio.sleep(0)
        return [Answer(True, 0, []) for _ in batch]

    async def scenario(together: bool) -> None:
        coalescer = TaskCoalescer(settle, together=together)
        await asyncio.gather(*(coalescer.settle(take(n)) for n in range(1, 5)))
        await coalescer.settle(take(5))

    asyncio.run(scenario(together=True))
    assert batches == [[1, 2, 3, 4], [5]]
    batches.clear()
    asyncio.run(scenario(together=False))
    assert batches == [[1], [2], [3], [4], [5]]


def test_a_cancelled_take_that_was_not_sent_is_never_sent() -> None:
    sent: list[int] = []
    go = asyncio.Event

    async def scenario() -> None:
        gate = go()

        async def settle(batch: Sequence[Request]) -> list[Answer]:
            sent.extend(request.parts[0].amount_milli for request in batch)
            await gate.wait()
            return [Answer(True, 0, []) for _ in batch]

        coalescer = TaskCoalescer(settle, together=True)
        first = asyncio.create_task(coalescer.settle(take(1)))
        await asyncio.sleep(0.001)
        second = asyncio.create_task(coalescer.settle(take(2)))
        await asyncio.sleep(0.001)
        first.cancel()
        second.cancel()
        await asyncio.sleep(0.001)
        assert not first.done(), "its answer is awaited, to be given back"
        gate.set()
        await asyncio.wait([first, second])
        assert first.cancelled()
        assert second.cancelled()

    asyncio.run(scenario())
    assert sent == [1, -1]


def test_one_limiter_on_two_event_loops() -> None:
    async def settle(batch: Sequence[Request]) -> list[Answer]:
        return [Answer(True, 0, []) for _ in batch]

    coalescer = TaskCoalescer(settle, together=True)

    async def scenario() -> bool:
        return (await coalescer.settle(take(1))).allowed

    assert asyncio.run(scenario())
    assert asyncio.run(scenario())


def test_a_task_that_is_cancelled_as_its_error_arrives_does_not_wait_for_another() -> None:
    async def main() -> None:
        tasks: list[asyncio.Task[Answer]] = []

        async def settle(batch: Sequence[Request]) -> list[Answer]:
            await asyncio.sleep(0)
            for task in tasks[1:]:
                asyncio.get_running_loop().call_soon(task.cancel)  # before the task hears of the error
            raise RateLimiterUnavailable("away")

        coalescer = TaskCoalescer(settle, together=True)
        tasks.extend(asyncio.create_task(coalescer.settle(take(1))) for _ in range(3))
        await asyncio.wait_for(asyncio.wait(tasks), 10)
        assert isinstance(tasks[0].exception(), RateLimiterUnavailable)
        assert all(task.cancelled() for task in tasks[1:])

    asyncio.run(main())


def test_a_task_that_is_cancelled_as_its_answer_arrives_leaves_nothing_taken() -> None:
    sent: list[int] = []

    async def main() -> None:
        async def settle(batch: Sequence[Request]) -> list[Answer]:
            sent.extend(request.parts[0].amount_milli for request in batch)
            asyncio.get_running_loop().call_soon(task.cancel)  # before the task hears of the answer
            return [Answer(True, 0, []) for _ in batch]

        task = asyncio.create_task(TaskCoalescer(settle, together=True).settle(take(1)))
        await asyncio.wait_for(asyncio.wait([task]), 10)
        assert task.cancelled()

    asyncio.run(main())
    assert sent == [1, -1]


def test_what_is_about_to_be_given_back_is_not_withdrawn() -> None:
    sent: list[int] = []

    async def main() -> None:
        def start(batch: Sequence[Request], landed: Landed) -> bool:
            sent.extend(request.parts[0].amount_milli for request in batch)

            def land() -> None:
                task.cancel()
                landed([Answer(True, 0, []) for _ in batch], None)  # before the task hears of its cancellation

            asyncio.get_running_loop().call_soon(land)
            return True

        async def settle(batch: Sequence[Request]) -> list[Answer]:
            raise AssertionError

        task = asyncio.create_task(TaskCoalescer(settle, together=True, start=start).settle(take(1)))
        await asyncio.wait_for(asyncio.wait([task]), 10)
        assert task.cancelled()

    asyncio.run(main())
    assert sent == [1, -1]


def test_a_store_that_takes_no_second_batch_is_not_asked_for_every_caller() -> None:
    async def scenario() -> int:
        asked: list[int] = []
        landings: list[tuple[Sequence[Request], Landed]] = []

        def start(batch: Sequence[Request], landed: Landed) -> bool:
            asked.append(len(batch))
            if not landings:
                landings.append((batch, landed))
                return True
            return False

        async def settle(batch: Sequence[Request]) -> list[Answer]:
            return [Answer(True, 0, ((0, 0),)) for _ in batch]

        coalescer = TaskCoalescer(settle, together=True, start=start)
        futures = [coalescer.submit(take(1)) for _ in range(500)]
        await asyncio.sleep(0)
        ((batch, landed),) = landings
        landed([Answer(True, 0, ((0, 0),)) for _ in batch], None)
        await asyncio.gather(*futures)
        return len(asked)

    assert asyncio.run(scenario()) < 10
