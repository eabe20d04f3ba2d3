"""Tasks that are cancelled while they wait, while they are answered, while they read: each lease ends, once."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import httpx2
import pytest
from client_kits import DIMENSION, LIMITS, TAKES
from stub_vendor import StubVendor

from headgate import RateLimiter
from headgate.http.clients import token_usage
from headgate.http.clients.httpx2 import AsyncHeadgateTransport
from headgate.testing import ManualClock


class Scene:
    def __init__(self, vendor: StubVendor, **options: Any) -> None:
        self.vendor = vendor
        self.clock = ManualClock()
        self.limiter = RateLimiter("memory://", clock=self.clock)
        options = {"limits": LIMITS, "consume": TAKES, "usage": token_usage, "timeout": 3600, **options}
        transport = AsyncHeadgateTransport(self.limiter, DIMENSION, **options)
        self.client = httpx2.AsyncClient(transport=transport, timeout=30)

    async def __aenter__(self) -> Scene:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.client.aclose()
        await self.limiter.close()

    async def available(self) -> dict[str, int]:
        return await self.limiter.available("openai", "gpt-4o", LIMITS)

    async def post(self, **body: Any) -> httpx2.Response:
        return await self.client.post(self.vendor.chat, json=body)

    async def until(self, expected: dict[str, int]) -> None:
        for _ in range(30_000):
            if await self.available() == expected:
                return
            await asyncio.sleep(0.001)
        raise AssertionError(f"{await self.available()} is not {expected}")


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_while_it_waits_for_its_turn(vendor: StubVendor) -> None:
    async def scenario() -> None:
        async with Scene(vendor, consume={"tpm": 600}) as scene:
            await scene.post(stub={"actual": 600})
            served = len(vendor.served)
            waiting = asyncio.create_task(scene.post())
            await scene.until({"rpm": 60, "tpm": -200, "parallel": 2})
            await cancel(waiting)
            assert await scene.available() == {"rpm": 60, "tpm": 400, "parallel": 2}
            assert len(vendor.served) == served

    asyncio.run(scenario())


@pytest.mark.parametrize("often", [False, True], ids=["once", "again and again"])
def test_request_cancelled_at_the_vendor_is_kept_and_its_slot_comes_back(vendor: StubVendor, often: bool) -> None:
    """The vendor may have counted it: it is kept, and its slot comes back."""

    async def scenario() -> None:
        hold = f"thinks {often}"
        async with Scene(vendor) as scene:
            if often:
                # A cancelled scope of anyio cancels every await in it.
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as group:
                        group.start_soon(lambda: scene.post(stub={"hold": hold}))
                        await asyncio.to_thread(vendor.begun[hold].wait, 30)
                        scope.cancel()
            else:
                asking = asyncio.create_task(scene.post(stub={"hold": hold}))
                await asyncio.to_thread(vendor.begun[hold].wait, 30)
                await cancel(asking)
            vendor.go[hold].set()
            assert await scene.available() == {"rpm": 59, "tpm": 900, "parallel": 2}

    asyncio.run(scenario())


@pytest.mark.parametrize("anthropic", [False, True], ids=["openai", "anthropic"])
def test_while_it_reads_a_stream(vendor: StubVendor, anthropic: bool) -> None:
    async def scenario() -> None:
        hold, begun = f"reads {anthropic}", asyncio.Event()
        body = {"stream": True, "stub": {"hold": hold, "anthropic": anthropic}}

        async def read(scene: Scene) -> None:
            async with scene.client.stream("POST", vendor.chat, json=body) as response:
                async for _ in response.aiter_lines():
                    begun.set()

        async with Scene(vendor) as scene:
            reading = asyncio.create_task(read(scene))
            await begun.wait()
            assert await scene.available() == {"rpm": 59, "tpm": 900, "parallel": 1}
            await cancel(reading)
            assert await scene.available() == {"rpm": 59, "tpm": 900, "parallel": 2}
            vendor.go[hold].set()
            await scene.post(stub={"actual": 37})  # the pool has its connections back
            assert await scene.available() == {"rpm": 58, "tpm": 863, "parallel": 2}

    asyncio.run(scenario())


def test_while_a_429_is_told_to_the_store(vendor: StubVendor) -> None:
    """What it tells is told, its slot comes back, and the response that nobody gets is closed."""

    async def scenario() -> None:
        async with Scene(vendor) as scene:
            telling, told = asyncio.Event(), asyncio.Event()
            penalize = scene.limiter.penalize

            async def slowly(*args: Any, **kwargs: Any) -> None:
                telling.set()
                await told.wait()
                await penalize(*args, **kwargs)

            scene.limiter.penalize = slowly  # type: ignore[assignment]
            asking = asyncio.create_task(scene.post(stub={"status": 429}))
            await telling.wait()
            for _ in range(3):
                asking.cancel()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert not asking.done()
            told.set()
            with pytest.raises(asyncio.CancelledError):
                await asking
            decision = await scene.limiter.try_acquire("openai", "gpt-4o", {"rpm": 1}, LIMITS)
            assert decision.retry_after_seconds == 1
            scene.clock.advance(1)
            assert await scene.available() == {"rpm": 60, "tpm": 1000, "parallel": 2}

    asyncio.run(scenario())
