"""Tasks that are cancelled while DynamoDB is slow, busy or away: whatever they took comes back, and they end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from dynamodb_limiters import TEN, Scene, Table, new_entity, scene_on

from headgate import RateLimiter
from headgate.testing.servers.process import eventually
from local_servers.dynamodb import Engine, Request

coalesced = pytest.mark.parametrize("coalesce", [True, False])


@pytest.fixture(scope="module")
def table(ministack: Engine, aws_credentials: str) -> Iterator[Table]:
    with closing(Table(ministack)) as table:
        yield table


@pytest.fixture
def scene(table: Table) -> Iterator[Scene]:
    with scene_on(table) as scene:
        yield scene


class Gate:
    """Stops a request on its way until it is opened."""

    def __init__(self) -> None:
        self._arrived = threading.Event()
        self._open = threading.Event()

    def __call__(self, request: Request) -> None:
        self._arrived.set()
        assert self._open.wait(20)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._arrived.wait, 20)

    def open(self) -> None:
        self._open.set()


def drive(scene: Scene, scenario: Callable[[RateLimiter], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with RateLimiter(scene.url, **({"store_timeout": 20.0} | settings)) as limiter:
            await scenario(limiter)

    asyncio.run(main())


def take(limiter: RateLimiter, entity: str, amount: int = 4) -> asyncio.Task[Any]:
    return asyncio.create_task(limiter.try_acquire(entity, "r", {"n": amount}, [TEN]))


async def ended(*tasks: asyncio.Task[Any]) -> None:
    """All are cancelled, not merely over."""
    await asyncio.wait(tasks, timeout=20)
    assert all(task.cancelled() for task in tasks)


async def arrived(scene: Scene, writes: int) -> None:
    await asyncio.to_thread(eventually, lambda: scene.proxy.count("UpdateItem") >= writes, "the writes arrive")


@coalesced
@pytest.mark.parametrize("times", [1, 3])
def test_task_cancelled_before_its_request_was_sent_takes_nothing(coalesce: bool, times: int, scene: Scene) -> None:
    """Another's request is under way, or it is still being found out what the limits are."""
    entity = new_entity()

    async def scenario(limiter: RateLimiter) -> None:
        for operation in ("BatchGetItem", "UpdateItem"):
            gate = Gate()
            scene.proxy.before(gate, operation=operation)
            first = take(limiter, entity, 1)
            await gate.reached()
            second = take(limiter, entity)
            await asyncio.sleep(0)
            for _ in range(times):
                second.cancel()
                await asyncio.sleep(0)
            gate.open()
            await ended(second)
            assert await first

    drive(scene, scenario, coalesce=coalesce)
    assert scene.left(entity) == 8


@coalesced
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("stage", ["before", "after"])
def test_while_it_is_under_way(coalesce: bool, times: int, stage: str, scene: Scene) -> None:
    """It is done, and given back; who shared the request with it has its answer."""
    entity = new_entity()

    async def scenario(limiter: RateLimiter) -> None:
        assert await take(limiter, entity, 1)
        gate = Gate()
        scene.proxy.forget()
        getattr(scene.proxy, stage)(gate, 2, operation="UpdateItem")
        tasks = [take(limiter, entity, 3), take(limiter, entity, 2)]
        await arrived(scene, 1 if coalesce else 2)
        for _ in range(times):
            tasks[0].cancel()
            await asyncio.sleep(0)
        gate.open()
        await ended(tasks[0])
        assert await tasks[1]

    drive(scene, scenario, coalesce=coalesce)
    assert scene.left(entity) == 7


@coalesced
@pytest.mark.parametrize("operation", ["GetItem", "TransactWriteItems", "UpdateItem"])
def test_cancelled_cascade_gives_back_on_every_level(coalesce: bool, operation: str, scene: Scene) -> None:
    """The first one reads and is written in a transaction, the next ones are written item by item."""
    family = scene.family()

    async def scenario(limiter: RateLimiter) -> None:
        if operation == "UpdateItem":
            assert await take(limiter, family[0], 1)
            await limiter.adjust(family[0], "r", {"n": -1}, [TEN])
        gate = Gate()
        scene.proxy.before(gate, operation=operation)
        task = take(limiter, family[0])
        await gate.reached()
        task.cancel()
        gate.open()
        await ended(task)

    drive(scene, scenario, coalesce=coalesce)
    assert scene.left(*family) == [10, 10]


@coalesced
@pytest.mark.parametrize("stage", ["before", "after"])
def test_while_it_is_being_given_back(coalesce: bool, stage: str, scene: Scene) -> None:
    """The parent has nothing left: what was taken of the child comes back, whoever is cancelled meanwhile."""
    child, parent = scene.family()

    async def scenario(limiter: RateLimiter) -> None:
        assert await take(limiter, child, 1)
        scene.direct.adjust(parent, "r", {"n": 9}, [TEN])
        gate = Gate()

        def is_refund(request: Request) -> None:
            values = request.body.get("ExpressionAttributeValues", {})
            if values.get(":c0", {}).get("N", "").startswith("-"):
                gate(request)

        getattr(scene.proxy, stage)(is_refund, 10, operation="UpdateItem")
        task = take(limiter, child, 2)
        await gate.reached()
        task.cancel()
        gate.open()
        await ended(task)

    drive(scene, scenario, coalesce=coalesce)
    assert scene.left(child, parent) == [9, 0]


@coalesced
@pytest.mark.parametrize("on_unavailable", ["block", "allow"])
def test_task_cancelled_without_a_reply_ends_cancelled(coalesce: bool, on_unavailable: str, scene: Scene) -> None:
    """No reply comes. The task ends cancelled all the same, and nothing goes on as if it had been allowed."""
    entity = new_entity()

    async def scenario(limiter: RateLimiter) -> None:
        assert await take(limiter, entity, 1)
        scene.proxy.forget()
        scene.proxy.lose_replies(1, operation="UpdateItem", silently=True)
        task = take(limiter, entity)
        await arrived(scene, 1)
        task.cancel()
        await ended(task)

    drive(scene, scenario, coalesce=coalesce, on_unavailable=on_unavailable, store_timeout=4.0)
    assert scene.left(entity) == 5, "it may not have been done, and then would be given back for nothing"


@coalesced
def test_acquire_that_times_out_gives_back_what_it_took(coalesce: bool, scene: Scene) -> None:
    entity = new_entity()

    async def scenario(limiter: RateLimiter) -> None:
        assert await take(limiter, entity, 1)
        scene.proxy.delay(1.0)
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(limiter.try_acquire(entity, "r", {"n": 4}, [TEN]), 0.05)
        scene.proxy.delay(0)

    drive(scene, scenario, coalesce=coalesce)
    assert scene.left(entity) == 9


@coalesced
@pytest.mark.parametrize("stage", ["before", "after"])
def test_the_event_loop_ends_meanwhile(coalesce: bool, stage: str, scene: Scene) -> None:
    """asyncio.run() cancels whatever still runs: nobody hangs, everything comes back, and another loop can go on."""
    entity = new_entity()
    limiter = RateLimiter(scene.url, store_timeout=20, coalesce=coalesce)
    gate = Gate()
    tasks: list[asyncio.Task[Any]] = []

    async def main() -> None:
        assert await take(limiter, entity, 1)
        scene.proxy.forget()
        getattr(scene.proxy, stage)(gate, 4, operation="UpdateItem")
        tasks.extend(take(limiter, entity, 1) for _ in range(4))
        await arrived(scene, 1 if coalesce else 4)
        asyncio.get_running_loop().call_later(0.05, gate.open)

    asyncio.run(main())
    assert all(task.cancelled() for task in tasks)
    assert scene.left(entity) == 9

    async def again() -> None:
        assert await take(limiter, entity, 1)
        await limiter.close()

    asyncio.run(again())
    assert scene.left(entity) == 8
