"""The store as coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from ...core.decide import Answer, Request
from ...core.errors import ValidationError
from ...plan import Call, Sleep, arun
from ..server import AsyncServerCall, AsyncServerStore
from .driver import (
    ERRORS,
    LOADER,
    NO_CLIENT,
    UNUSABLE,
    ErrorReply,
    client_options,
    config_options,
    failed,
    late,
    lost,
    method_name,
)
from .exchange import MISCONFIGURED, Exchange, Failed, Reply, Send
from .plans import DynamoDBPlans
from .url import DynamoDBSettings


class AsyncDynamoDBStore(AsyncServerStore["_AsyncTalk"]):
    own_clock = False
    _plans: DynamoDBPlans
    _wire: _AsyncWire

    def __init__(self, settings: DynamoDBSettings, timeout_seconds: float) -> None:
        super().__init__(DynamoDBPlans(settings), _AsyncWire(settings, timeout_seconds), _AsyncTalk)

    async def _settle(self, batch: Sequence[Request], now_ms: int | None, call: _AsyncTalk) -> list[Answer]:
        return await arun(self._plans.settle_plan(batch, now_ms), call.perform)

    async def close(self) -> None:
        await self._wire.close()


class _AsyncWire:
    """A client of aiobotocore. It belongs to an event loop, and is closed at its end at the latest."""

    def __init__(self, settings: DynamoDBSettings, timeout_seconds: float) -> None:
        self.settings = settings
        self.timeout_seconds = timeout_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: _Steady | None = None
        self._life: AsyncGenerator[Any, None] | None = None
        self._client: Any = None

    @property
    def is_open(self) -> bool:
        return self._client is not None and self._loop is asyncio.get_running_loop()

    async def client(self) -> Any:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._client, self._opening = loop, None, None
        if self._client is None:
            opening = self._opening
            if opening is None:
                opening = self._opening = _Steady(self._open(), loop=loop)
            await asyncio.wait([opening])
            if opening.exception() is not None and self._opening is opening:
                self._opening = None
            self._client = opening.result()
        return self._client

    async def _open(self) -> Any:
        try:
            self._life = self._living()
            return await self._life.__anext__()
        except NO_CLIENT as error:
            raise self.settings.misconfigured(error) from error

    async def _living(self) -> AsyncGenerator[Any, None]:
        """An event loop ends the generators begun in it before it closes; later connections could not be closed."""
        try:
            from aiobotocore.config import AioConfig
            from aiobotocore.session import AioSession
        except ImportError as error:
            raise ValidationError("a DynamoDB store needs aiobotocore: pip install 'headgate[dynamodb]'") from error
        session = AioSession(profile=self.settings.profile)
        session.register_component("data_loader", LOADER)
        config = AioConfig(**config_options(self.timeout_seconds))
        async with session.create_client("dynamodb", config=config, **client_options(self.settings)) as client:
            yield client

    async def close(self) -> None:
        if self._life is not None and self._loop is asyncio.get_running_loop():
            await self._life.aclose()
        self._life = self._client = self._opening = self._loop = None


class _Steady(asyncio.Task[Any]):
    """A task that only `stop` cancels: not an event loop that is closing, which waits for it all the same."""

    def cancel(self, msg: Any = None) -> bool:
        return False

    def stop(self) -> None:
        super().cancel()


class _AsyncTalk(AsyncServerCall):
    _wire: _AsyncWire

    async def perform(self, call: Call[Any]) -> Any:
        if isinstance(call, Exchange):
            return await self._exchange(call.sends)
        if isinstance(call, Sleep):
            return await self._wait([_Steady(asyncio.sleep(self._pause(call)))])
        return await super().perform(call)

    async def _exchange(self, sends: Sequence[Send]) -> list[Reply]:
        if self.left <= 0:
            return [late(self._wire.timeout_seconds, sent=False)] * len(sends)
        if not self._wire.is_open:
            opening = _Steady(self._wire.client())
            await self._wait([opening])
            if not opening.cancelled():
                opening.result()
            self.restart()  # to make a client takes a while, and is no fault of DynamoDB's
        client = await self._wire.client()
        tasks = [_Steady(self._send(client, send)) for send in sends]
        await self._wait(tasks)
        return [late(self._wire.timeout_seconds, sent=True) if task.cancelled() else task.result() for task in tasks]

    async def _wait(self, tasks: list[_Steady]) -> None:
        """Until all are done, or there is no time left for them."""
        while pending := [task for task in tasks if not task.done()]:
            try:
                await asyncio.wait(pending, timeout=max(self.left, 0))
                if self.left <= 0:
                    await self._stop(pending)
            except asyncio.CancelledError as cancelled:
                self.cancelled = cancelled
                if not self.to_the_end:
                    await self._stop(pending)
                    raise

    async def _stop(self, tasks: list[_Steady]) -> None:
        for task in tasks:
            task.stop()
        await asyncio.wait(tasks)

    async def _send(self, client: Any, send: Send) -> Reply:
        try:
            reply: Reply = await getattr(client, method_name(send.operation))(**send.parameters)
            return reply
        except ErrorReply as error:
            return failed(error)
        except UNUSABLE as error:
            return Failed(MISCONFIGURED, str(error))
        except ERRORS as error:
            return lost(error, self._wire.timeout_seconds)
