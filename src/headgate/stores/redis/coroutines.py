"""The store for coroutines."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from redis import exceptions
from redis.asyncio import connection as redis_connection

from ...core.decide import Answer, Request
from ...core.errors import HeadgateError, PartlyAnswered
from ...plan import Call, arun
from ..contract import Landed
from ..notifications import LoopNotifications
from ..server import AsyncServerCall, AsyncServerStore, LoopBound, Lost
from .driver import NOT_LET_IN, REFUSALS, connection, packed, reply_error
from .exchange import Arguments, HangUp, Pipeline, Replies, SendPipelines
from .notifications import open_notifications
from .pipelined import PipelinedConnection
from .plans import RedisPlans
from .url import Address, RedisSettings
from .wire import RedisBatch

T = TypeVar("T")


class AsyncRedisStore(AsyncServerStore["_AsyncRedisCall"]):
    own_clock = True
    _plans: RedisPlans
    _wire: _AsyncRedisWire

    def __init__(self, settings: RedisSettings, timeout_seconds: float) -> None:
        self._received = open_notifications(settings, lambda: self._plans.router.one_server, timeout_seconds)
        self.notifications = LoopNotifications(self._received)
        plans = RedisPlans(settings, lambda: self._received.listener)
        super().__init__(plans, _AsyncRedisWire(settings, timeout_seconds), _AsyncRedisCall)

    async def _settle(self, batch: Sequence[Request], now_ms: int | None, call: _AsyncRedisCall) -> list[Answer]:
        address = self._plans.router.one_server
        if address is None:
            return await arun(self._plans.settle_plan(batch, now_ms), call.perform)
        encoded = self._plans.encoder.encode(batch, now_ms)
        opened = await call.pipelined(address)
        replies = opened if isinstance(opened, (list, Lost)) else await call.send_on(opened, encoded.arguments)
        return await self._answers(encoded, replies, call)

    async def _answers(self, encoded: RedisBatch, replies: Replies, call: _AsyncRedisCall) -> list[Answer]:
        if isinstance(replies, list) and isinstance(replies[0], list):
            return encoded.answers(replies[0])
        return await arun(self._plans.settle_encoded_plan(encoded, [replies]), call.perform)

    def start(self, batch: Sequence[Request], now_ms: int | None, landed: Landed) -> bool:
        """Send a batch without waiting for anything. False: it was not sent, because there is no connection that is
        known to be alive."""
        address = self._plans.router.one_server
        connected = None if address is None else self._wire.pipelined_at_rest(address)
        if connected is None:
            return False
        encoded = self._plans.encoder.encode(batch, now_ms)
        if not encoded.repeatable and connected.idle:
            return False

        deadline = time.monotonic() + self._wire.timeout_seconds

        def replied(reply: Any) -> None:
            if type(reply) is list:
                try:
                    answers: Sequence[Answer | HeadgateError] = encoded.answers(reply)
                except PartlyAnswered as partly:
                    answers = partly.results
                landed(answers, None)
            else:
                call = _AsyncRedisCall(self._wire)
                call.to_the_end, call.deadline = True, deadline
                landed((), lambda: self._whole(self._answers(encoded, as_replies(reply), call), call))

        connected.send(encoded.arguments, replied)
        return True

    async def close(self) -> None:
        self._received.close()
        await self._wire.close()


class _AsyncRedisWire(LoopBound):
    """Idle connections, by server."""

    def __init__(self, settings: RedisSettings, timeout_seconds: float) -> None:
        super().__init__()
        self._settings = settings
        self.timeout_seconds = timeout_seconds
        self.timer = _SharedTimer()
        self._start()

    def _start(self) -> None:
        self._resting: dict[Address, deque[tuple[Any, float]]] = {}
        self._pipelined: dict[Address, PipelinedConnection] = {}
        self._opening: dict[Address, asyncio.Future[None]] = {}

    def pipelined_at_rest(self, address: Address) -> PipelinedConnection | None:
        """The connection, if it is open, and no call waits to be sent on it."""
        found = self._pipelined.get(address)
        if found is None or found.closed or self._opening or asyncio.get_running_loop() is not self._loop:
            return None
        return found

    async def pipelined(self, address: Address) -> PipelinedConnection:
        """The connection, known to be alive, or a new one. Calls get it in the order in which they came."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            await self._enter(loop)
        while (before := self._opening.get(address)) is not None:
            await asyncio.wait([before])
        opening = self._opening[address] = loop.create_future()
        try:
            found = self._pipelined.get(address)
            if found is not None and found.idle:
                for _ in range(2):  # turns of the loop: one to learn that it was closed, one to note it
                    await asyncio.sleep(0)
            if found is None or found.closed:
                made = await self.take(Pipeline(address, ()))
                found = self._pipelined[address] = PipelinedConnection(made, self.timeout_seconds)
            return found
        finally:
            del self._opening[address]
            opening.set_result(None)

    async def take(self, pipeline: Pipeline) -> Any:
        """A connection to the server. Raises redis-py's exceptions: nothing was sent."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            await self._enter(loop)
        resting = self._resting.get(pipeline.address)
        while resting:
            found, _ = resting.pop()
            if await _closed_on_error(found, _is_alive(found)):
                return found
            await found.disconnect(nowait=True)
        timeouts = {"socket_connect_timeout": None, "socket_timeout": None}  # there is one around all of it
        made = connection(
            redis_connection, self._settings, pipeline.address, to_sentinel=pipeline.to_sentinel, **timeouts
        )
        await _closed_on_error(made, made.connect())
        return made

    async def rest(self, address: Address, used: Any) -> None:
        if self._closed:
            await used.disconnect(nowait=True)
        else:
            self._resting.setdefault(address, deque()).append((used, time.monotonic()))

    async def hang_up(self, address: Address) -> None:
        pipelined = self._pipelined.get(address)
        if pipelined is not None and pipelined.idle:
            await self._pipelined.pop(address).close()
        for resting, _ in self._resting.pop(address, ()):
            await resting.disconnect(nowait=True)

    async def _close_idle(self) -> None:
        """Wait for the end of each, which with TLS takes a while: the loop may be closed right after."""
        resting = [used for of_server in self._resting.values() for used, _ in of_server]
        self._resting.clear()
        pipelined, self._pipelined = [*self._pipelined.values()], {}
        ends = [used.disconnect() for used in resting] + [one.close() for one in pipelined]
        closing = asyncio.gather(*ends, return_exceptions=True)
        closing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # it was seen
        try:
            await asyncio.wait([closing], timeout=self.timeout_seconds)
        finally:
            closing.cancel()


async def _closed_on_error(connected: Any, work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except BaseException:
        await connected.disconnect(nowait=True)
        raise


async def _is_alive(resting: Any) -> bool:
    look = getattr(resting, "can_read", None) or resting.can_read_destructive
    for _ in range(2):  # turns of the loop: one to learn that it was closed, one to note it
        await asyncio.sleep(0)
    try:
        return not await look()
    except (exceptions.RedisError, OSError):
        return False


class _SharedTimer:
    """The deadlines of all calls in progress, on one timer of the event loop. Most are met, and a timer for each would
    cost more than what it guards."""

    def __init__(self) -> None:
        self._alarms: set[_Alarm] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, alarm: _Alarm) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._timer = loop, None
            self._alarms.clear()
        self._alarms.add(alarm)
        if self._timer is None or self._timer.when() > alarm.at:
            self._set(alarm.at)

    def discard(self, alarm: _Alarm) -> None:
        self._alarms.discard(alarm)

    def _set(self, at: float) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        assert self._loop is not None
        self._timer = None
        now = self._loop.time()
        for alarm in [alarm for alarm in self._alarms if alarm.at <= now]:
            self._alarms.discard(alarm)
            alarm.ring()
        if self._alarms:
            self._set(min(alarm.at for alarm in self._alarms))


class _Alarm:
    """Interrupts the task inside it when its time is up."""

    __slots__ = ("_cancelled", "_task", "_timer", "at", "rang")

    def __init__(self, timer: _SharedTimer, seconds: float) -> None:
        self._timer = timer
        self.rang = False
        self.at = asyncio.get_running_loop().time() + seconds

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._cancelled = self._cancelling()
        self._timer.add(self)

    def ring(self) -> None:
        self.rang = True
        assert self._task is not None
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._timer.discard(self)
        if self.rang and self._task is not None and hasattr(self._task, "uncancel"):
            self._task.uncancel()
        others = self._cancelling() > self._cancelled  # others may have cancelled it at the same moment
        return self.rang and kind is asyncio.CancelledError and not others

    def _cancelling(self) -> int:
        """How often the task was cancelled: unknown before Python 3.11."""
        return self._task.cancelling() if self._task is not None and hasattr(self._task, "cancelling") else 0


class _AsyncRedisCall(AsyncServerCall):
    _wire: _AsyncRedisWire

    async def perform(self, call: Call[Any]) -> Any:
        if isinstance(call, SendPipelines):
            return await self._send_all(call.pipelines, call.share)
        if isinstance(call, HangUp):
            return await self._wire.hang_up(call.address)
        return await super().perform(call)

    async def pipelined(self, address: Address) -> PipelinedConnection | Replies:
        """The connection of the settle calls, or why there is none."""
        alarm = _Alarm(self._wire.timer, self.left)
        try:
            with alarm:
                return await self._wire.pipelined(address)
        except (exceptions.RedisError, OSError) as error:
            return _not_connected(Pipeline(address, ((),)), error)
        return self.late(sent=False)

    async def send_on(self, connected: PipelinedConnection, arguments: Arguments) -> Replies:
        """Send it, and wait for its reply however often the task is cancelled: not longer than the deadline."""
        loop = asyncio.get_running_loop()
        came: list[Any] = []
        waiting = loop.create_future()

        def replied(reply: Any) -> None:
            came.append(reply)
            if not waiting.done():
                waiting.set_result(None)

        connected.send(arguments, replied)
        while not came:
            try:
                await waiting
            except asyncio.CancelledError as cancelled:
                self.cancelled = cancelled
                waiting = loop.create_future()
        return as_replies(came[0])

    async def _send_all(self, pipelines: Sequence[Pipeline], share: float) -> list[Replies]:
        until = min(self.deadline, time.monotonic() + self.left * share)
        if len(pipelines) == 1:
            return [await self._converse(pipelines[0], until)]
        tasks = [asyncio.ensure_future(self._converse(pipeline, until)) for pipeline in pipelines]
        await self.wait_for(tasks)
        return [Lost("was not waited for", sent=True) if task.cancelled() else task.result() for task in tasks]

    async def _converse(self, pipeline: Pipeline, until: float) -> Replies:
        connected: Any = None
        replies: Replies | None = None
        sent = False
        alarm = _Alarm(self._wire.timer, until - time.monotonic())
        try:
            with alarm:
                connected = await self._wire.take(pipeline)
                sent = True
                await connected.send_packed_command(packed(pipeline.commands), check_health=False)
                replies = await self._receive(pipeline, connected, alarm)
                connected = None
        except (exceptions.RedisError, OSError) as error:
            if not sent:
                return _not_connected(pipeline, error)
            replies = await self._broken(pipeline, connected, error)
        finally:
            if connected is not None:  # late, or cancelled: a reply that comes now would be taken for the next one
                await connected.disconnect(nowait=True)
        return replies or self.late(sent=sent)

    async def _receive(self, pipeline: Pipeline, connected: Any, alarm: _Alarm) -> Replies:
        replies: list[Any] = []
        try:
            while len(replies) < len(pipeline.commands):
                try:
                    replies.append(await connected.read_response(disconnect_on_error=False))
                except exceptions.ResponseError as error:
                    replies.append(reply_error(error))
                except asyncio.CancelledError as cancelled:
                    if alarm.rang or not self.to_the_end:
                        raise
                    self.cancelled = cancelled
        except REFUSALS as error:
            await connected.disconnect(nowait=True)
            return replies + [reply_error(error)] * (len(pipeline.commands) - len(replies))
        except (exceptions.RedisError, OSError) as error:
            return await self._broken(pipeline, connected, error)
        await self._wire.rest(pipeline.address, connected)
        return replies

    async def _broken(self, pipeline: Pipeline, connected: Any, error: Exception) -> Lost:
        await connected.disconnect(nowait=True)
        await self._wire.hang_up(pipeline.address)
        return Lost(f"closed the connection: {error}", sent=True)


def as_replies(reply: Any) -> Replies:
    """From a PipelinedConnection, where an error of the server is an exception of hiredis."""
    if isinstance(reply, Lost):
        return reply
    return [reply_error(reply) if isinstance(reply, Exception) else reply]


def _not_connected(pipeline: Pipeline, error: Exception) -> Replies:
    if isinstance(error, NOT_LET_IN):
        return [reply_error(error)] * len(pipeline.commands)
    return Lost(f"cannot be reached: {error}", sent=False)
