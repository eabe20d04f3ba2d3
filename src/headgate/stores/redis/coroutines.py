"""The same for coroutines."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, TypeVar

from redis import exceptions
from redis.asyncio import connection as redis_connection

from ...core.decide import Answer, Request
from ...core.errors import PartlyAnswered
from ...plan import Call, Plan, Sleep, arun
from ..contract import LostThenCancelled, SettledThenCancelled
from ..notifications import LoopHearing
from ..planned import AsyncPlannedStore
from .driver import NOT_LET_IN, REFUSALS, RESTED_SECONDS, connection, packed, reply_error
from .exchange import Exchange, HangUp, Lost, MoreTime, Replies, Send
from .notifications import hearing
from .plans import Plans
from .url import Address, Settings

T = TypeVar("T")


class AsyncRedisStore(AsyncPlannedStore):
    own_clock = True

    def __init__(self, settings: Settings, timeout_seconds: float) -> None:
        self._hearing = hearing(settings, lambda: self._plans.one_server, timeout_seconds)
        self.hearing = LoopHearing(self._hearing)
        self._plans = Plans(settings, lambda: self._hearing.listener)
        super().__init__(self._plans)
        self._wire = _Wire(settings, timeout_seconds)

    @property
    def usage_ms(self) -> int:
        return self._plans.usage_ms

    @usage_ms.setter
    def usage_ms(self, ms: int) -> None:
        self._plans.keep_usage(ms)

    async def _run(self, plan: Plan[T]) -> T:
        return await arun(plan, _Talk(self._wire).perform)

    async def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        talk = _Talk(self._wire, to_the_end=True)
        try:
            answers = await self._settle(batch, now_ms, talk)
        except Exception as error:
            if talk.cancelled is None:
                raise
            if isinstance(error, PartlyAnswered):
                raise SettledThenCancelled(error.results, talk.cancelled) from None
            raise LostThenCancelled(talk.cancelled) from error
        if talk.cancelled is not None:
            raise SettledThenCancelled(answers, talk.cancelled)
        return answers

    async def _settle(self, batch: Sequence[Request], now_ms: int | None, talk: _Talk) -> list[Answer]:
        address = self._plans.one_server
        if address is None:
            return await arun(self._plans.settle_plan(batch, now_ms), talk.perform)
        encoded = self._plans.encoder.encode(batch, now_ms)
        if not encoded.repeatable:
            return await arun(self._plans.settle_encoded_plan(encoded), talk.perform)
        # The short cut past the plan, which only has to deal with what goes wrong.
        replies = await talk.ask(Send(address, (encoded.arguments,)))
        if isinstance(replies, list) and isinstance(replies[0], list):
            return encoded.answers(replies[0])
        return await arun(self._plans.settle_encoded_plan(encoded, [replies]), talk.perform)

    async def close(self) -> None:
        self._hearing.close()
        await self._wire.close()


class _Wire:
    """Connections at rest, by server. They belong to an event loop."""

    def __init__(self, settings: Settings, timeout_seconds: float) -> None:
        self._settings = settings
        self.timeout_seconds = timeout_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._resting: dict[Address, deque[tuple[Any, float]]] = {}
        self.watch = _Watch()
        self._guard: AsyncGenerator[None, None] | None = None
        self._closed = False

    async def take(self, send: Send) -> Any:
        """A connection to the server. Raises redis-py's exceptions: nothing was sent."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._resting = loop, {}
            self._guard = self._until_the_loop_ends()
            await self._guard.__anext__()
        resting = self._resting.get(send.address)
        while resting:
            found, _ = resting.pop()
            if await self._made_sure(found, _is_alive(found)):
                return found
            await found.disconnect(nowait=True)
        timeouts = {"socket_connect_timeout": None, "socket_timeout": None}  # there is one around all of it
        made = connection(redis_connection, self._settings, send.address, to_sentinel=send.to_sentinel, **timeouts)
        await self._made_sure(made, made.connect())
        return made

    async def _made_sure(self, connected: Any, what: Coroutine[Any, Any, T]) -> T:
        try:
            return await what
        except BaseException:
            await connected.disconnect(nowait=True)
            raise

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        """An event loop ends the generators begun in it before it closes; later its connections could not be closed."""
        try:
            yield
        finally:
            await self._hang_up_all()

    def take_at_rest(self, address: Address) -> Any:
        """A connection that was used a moment ago, or None. The server may have closed it: nobody looks."""
        if asyncio.get_running_loop() is self._loop:
            resting = self._resting.get(address)
            if resting and time.monotonic() - resting[-1][1] < RESTED_SECONDS:
                return resting.pop()[0]
        return None

    async def rest(self, address: Address, used: Any) -> None:
        if self._closed:
            await used.disconnect(nowait=True)
        else:
            self._resting.setdefault(address, deque()).append((used, time.monotonic()))

    async def hang_up(self, address: Address) -> None:
        for resting, _ in self._resting.pop(address, ()):
            await resting.disconnect(nowait=True)

    async def close(self) -> None:
        self._closed = True
        if self._loop is asyncio.get_running_loop():
            await self._hang_up_all()

    async def _hang_up_all(self) -> None:
        """Wait for the end of each, which with TLS takes a while: the loop may be closed right after."""
        resting = [used for of_server in self._resting.values() for used, _ in of_server]
        self._resting.clear()
        closing = asyncio.gather(*(used.disconnect() for used in resting), return_exceptions=True)
        closing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # it was seen
        try:
            await asyncio.wait([closing], timeout=self.timeout_seconds)
        finally:
            closing.cancel()


async def _is_alive(resting: Any) -> bool:
    look = getattr(resting, "can_read", None) or resting.can_read_destructive
    for _ in range(2):  # turns of the loop: to hear of it, and to note it
        await asyncio.sleep(0)
    try:
        return not await look()
    except (exceptions.RedisError, OSError):
        return False


class _Watch:
    """One timer of the event loop for the deadlines of all calls under way: most are met, and a timer each would cost
    more than what it guards."""

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
    """Interrupts the task inside it after so many seconds."""

    __slots__ = ("_cancelled", "_task", "_watch", "at", "rang")

    def __init__(self, watch: _Watch, seconds: float) -> None:
        self._watch = watch
        self.rang = False
        self.at = asyncio.get_running_loop().time() + seconds

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._cancelled = self._cancelling()
        self._watch.add(self)

    def ring(self) -> None:
        self.rang = True
        assert self._task is not None
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._watch.discard(self)
        if self.rang and self._task is not None and hasattr(self._task, "uncancel"):
            self._task.uncancel()
        others = self._cancelling() > self._cancelled  # others may have cancelled it at the same moment
        return self.rang and kind is asyncio.CancelledError and not others

    def _cancelling(self) -> int:
        """How often the task was cancelled: before Python 3.11 nobody knows."""
        return self._task.cancelling() if self._task is not None and hasattr(self._task, "cancelling") else 0


class _Talk:
    """One call of the store, with its deadline. `to_the_end`: once sent, it is not cancelled."""

    __slots__ = ("_deadline", "_to_the_end", "_wire", "cancelled")

    def __init__(self, wire: _Wire, *, to_the_end: bool = False) -> None:
        self._wire = wire
        self._to_the_end = to_the_end
        self.cancelled: asyncio.CancelledError | None = None
        self._deadline = time.monotonic() + wire.timeout_seconds

    async def perform(self, call: Call[Any]) -> Any:
        if isinstance(call, Exchange):
            return await self.exchange(call.sends, call.share)
        if isinstance(call, MoreTime):
            self._deadline = time.monotonic() + self._wire.timeout_seconds
            return None
        if isinstance(call, HangUp):
            return await self._wire.hang_up(call.address)
        assert isinstance(call, Sleep)
        return await asyncio.sleep(min(call.seconds, max(self._left(), 0)))

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    async def ask(self, send: Send) -> Replies:
        """`exchange` with one server, with nothing in the way as long as all goes well."""
        return await self._converse(send, self._deadline, self._wire.take_at_rest(send.address))

    async def exchange(self, sends: Sequence[Send], share: float = 1.0) -> list[Replies]:
        until = min(self._deadline, time.monotonic() + self._left() * share)
        if len(sends) == 1:
            return [await self._converse(sends[0], until)]
        tasks = [asyncio.ensure_future(self._converse(send, until)) for send in sends]
        cancelled: asyncio.CancelledError | None = None
        while pending := [task for task in tasks if not task.done()]:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError as error:
                cancelled = error
                if not self._to_the_end:
                    for task in pending:
                        task.cancel()
        if cancelled is not None and not self._to_the_end:
            raise cancelled
        self.cancelled = self.cancelled or cancelled
        return [Lost("was not waited for", sent=True) if task.cancelled() else task.result() for task in tasks]

    async def _converse(self, send: Send, until: float, connected: Any = None) -> Replies:
        replies: Replies | None = None
        sent = False
        alarm = _Alarm(self._wire.watch, until - time.monotonic())
        try:
            with alarm:
                connected = connected or await self._wire.take(send)
                sent = True
                await connected.send_packed_command(packed(send.commands), check_health=False)
                replies = await self._receive(send, connected, alarm)
                connected = None
        except (exceptions.RedisError, OSError) as error:
            if not sent:
                return _not_connected(send, error)
            replies = await self._broken(send, connected, error)
        finally:
            if connected is not None:  # late, or cancelled: what it replies now nobody waits for
                await connected.disconnect(nowait=True)
        return replies or self._late(sent=sent)

    async def _receive(self, send: Send, connected: Any, alarm: _Alarm) -> Replies:
        replies: list[Any] = []
        try:
            while len(replies) < len(send.commands):
                try:
                    replies.append(await connected.read_response(disconnect_on_error=False))
                except exceptions.ResponseError as error:
                    replies.append(reply_error(error))
                except asyncio.CancelledError as cancelled:
                    if alarm.rang or not self._to_the_end:
                        raise
                    self.cancelled = cancelled
        except REFUSALS as error:
            await connected.disconnect(nowait=True)
            return replies + [reply_error(error)] * (len(send.commands) - len(replies))
        except (exceptions.RedisError, OSError) as error:
            return await self._broken(send, connected, error)
        await self._wire.rest(send.address, connected)
        return replies

    async def _broken(self, send: Send, connected: Any, error: Exception) -> Lost:
        await connected.disconnect(nowait=True)
        await self._wire.hang_up(send.address)
        return Lost(f"closed the connection: {error}", sent=True)

    def _late(self, *, sent: bool) -> Lost:
        return Lost(f"did not answer within {self._wire.timeout_seconds:g} s", sent=sent, late=self._left() <= 0)


def _not_connected(send: Send, error: Exception) -> Replies:
    if isinstance(error, NOT_LET_IN):
        return [reply_error(error)] * len(send.commands)
    return Lost(f"cannot be reached: {error}", sent=False)
