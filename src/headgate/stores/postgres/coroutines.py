"""The same for coroutines."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Any, TypeVar

from ...core.decide import Answer, Request
from ...core.errors import PartlyAnswered, RateLimiterUnavailable
from ...plan import Call, Plan, Sleep, arun
from ..contract import LostThenCancelled, SettledThenCancelled
from ..notifications import LoopHearing
from ..planned import AsyncPlannedStore
from .asking import patience_ms
from .driver import DriverError, Line, host_names, wait_for, with_addresses
from .exchange import Ask, Lost, MoreTime, Reply, TimeLeft
from .notifications import hearing
from .plans import Plans, answers_of
from .url import Settings
from .wire import Batch

T = TypeVar("T")


class AsyncPostgresStore(AsyncPlannedStore):
    own_clock = True

    def __init__(self, settings: Settings, timeout_seconds: float) -> None:
        self._plans = Plans(settings)
        super().__init__(self._plans)
        self._pool = _Pool(settings, timeout_seconds)
        self._hearing = hearing(settings, timeout_seconds)
        self.hearing = LoopHearing(self._hearing)

    @property
    def usage_ms(self) -> int:
        return self._plans.usage_ms

    @usage_ms.setter
    def usage_ms(self, ms: int) -> None:
        self._plans.usage_ms = ms

    async def _run(self, plan: Plan[T]) -> T:
        return await arun(plan, _Talk(self._pool, self._plans).perform)

    async def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        talk = _Talk(self._pool, self._plans, to_the_end=True)
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
        plans = self._plans
        encoded = Batch(batch, self._hearing.listener)
        ask = plans.settling(encoded, now_ms, self._pool.patience_ms)
        first: Reply | None = None
        if plans.checked:
            # The short cut past the plan, which only has to deal with what goes wrong.
            first = await talk.ask(ask)
            if first.__class__ is list:
                return answers_of(encoded, first)
        return await arun(plans.settle_plan(encoded, ask, first), talk.perform)

    async def close(self) -> None:
        self._hearing.close()
        self._pool.close()


class _AsyncLine(Line):
    """A connection whose socket the event loop watches: it wakes whoever waits, and notes if the server hangs up."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._asked = False
        self.dead = False

    async def connect(self, deadline: float, timeout_ms: int) -> None:
        try:
            while (what := self.connects()) is not None:
                watch = self._loop.add_writer if what == "write" else self._loop.add_reader
                watch(self.fd, self._wake)
                try:
                    await self._sleep(deadline)
                finally:
                    self._unwatch()
                self._check(deadline)
            self._loop.add_reader(self.fd, self._readable)
            for _ in self.greetings(timeout_ms):
                self._asked = True
                while self._asked:
                    await self._sleep(deadline)
                    self._check(deadline)
        except DriverError as error:
            raise RateLimiterUnavailable(f"PostgreSQL cannot be reached: {error}") from error

    def _check(self, deadline: float) -> None:
        if time.monotonic() >= deadline:
            raise RateLimiterUnavailable("PostgreSQL cannot be reached in time")

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _sleep(self, deadline: float) -> None:
        """Until somebody wakes us, or time is up."""
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(max(0.0, deadline - time.monotonic()), self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _readable(self) -> None:
        if not self._asked:
            self.dead = True  # it says nothing unasked, unless that it is closed
            self._unwatch()
            return
        try:
            if self.received():
                self._asked = False
                self._wake()
        except DriverError:
            self._hear_nothing()

    def _writable(self) -> None:
        try:
            if self.flushed():
                self._loop.remove_writer(self.fd)
        except DriverError:
            self._hear_nothing()

    def _hear_nothing(self) -> None:
        self.dead = True
        self.results = []
        self._asked = False
        self._unwatch()
        self._wake()

    async def exchange(self, deadline: float, talk: _Talk) -> Reply | None:
        """The reply to what was sent, or None if there was none in time."""
        self._asked = True
        if not self.flushed():
            self._loop.add_writer(self.fd, self._writable)
        while self._asked:
            if time.monotonic() >= deadline:
                return None
            try:
                await self._sleep(deadline)
            except asyncio.CancelledError as cancelled:
                if not talk.to_the_end:
                    raise
                talk.cancelled = cancelled
        return Lost(f"closed the connection: {self.why}", sent=True) if self.dead else self.reply()

    def _unwatch(self) -> None:
        if self.fd >= 0 and not self._loop.is_closed():
            self._loop.remove_reader(self.fd)
            self._loop.remove_writer(self.fd)

    def close(self) -> None:
        self._unwatch()
        super().close()


async def resolved(conninfo: str, deadline: float) -> str:
    """With addresses for names of hosts, which libpq itself would wait for."""
    loop = asyncio.get_running_loop()
    found: dict[str, list[str]] = {}
    for host in host_names(conninfo):
        lookup = asyncio.ensure_future(loop.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        try:
            await asyncio.wait([lookup], timeout=max(0.0, deadline - time.monotonic()))
            if not lookup.done():
                raise RateLimiterUnavailable(f"PostgreSQL cannot be reached: {host!r} is not found in time")
            answers = lookup.result()
        except OSError as error:
            raise RateLimiterUnavailable(f"PostgreSQL cannot be reached: {host!r} is not found: {error}") from error
        finally:
            lookup.cancel()
        found[host] = list(dict.fromkeys(str(address[0]) for *_, address in answers))
    return with_addresses(conninfo, found) if found else conninfo


class _Pool:
    """Connections at rest, and leave for so many more. They belong to an event loop."""

    def __init__(self, settings: Settings, timeout_seconds: float) -> None:
        self._settings = settings
        self.timeout_seconds = timeout_seconds
        self.patience_ms = patience_ms(int(timeout_seconds * 1000))
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._resting: deque[_AsyncLine] = deque()
        self._queue: deque[asyncio.Future[None]] = deque()
        self._used = 0
        self._guard: AsyncGenerator[None, None] | None = None

    async def take(self, deadline: float) -> _AsyncLine:
        """A connection. RateLimiterUnavailable and ValidationError say why there is none."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._resting, self._queue, self._used = loop, deque(), deque(), 0
            self._guard = self._until_the_loop_ends()
            await self._guard.__anext__()
        if self._used >= self._settings.pool:
            await self._stand_in_line(deadline)
        self._used += 1
        try:
            while self._resting:
                line = self._resting.pop()
                if not line.dead and not wait_for(line.fd, 0):  # the loop may not have run since
                    return line
                line.close()
            return await self._connect(deadline)
        except BaseException:
            self._leave()
            raise

    async def _connect(self, deadline: float) -> _AsyncLine:
        line = _AsyncLine(await resolved(self._settings.conninfo, deadline))
        try:
            await line.connect(deadline, int(self.timeout_seconds * 1000))
        except BaseException:
            line.close()
            raise
        return line

    async def _stand_in_line(self, deadline: float) -> None:
        assert self._loop is not None
        while self._used >= self._settings.pool:
            turn = self._loop.create_future()
            self._queue.append(turn)
            try:
                await asyncio.wait([turn], timeout=max(0.0, deadline - time.monotonic()))
            except BaseException:
                if turn.done():
                    self._call_next()  # it was our turn
                turn.cancel()
                raise
            if not turn.done():
                turn.cancel()
                raise RateLimiterUnavailable(f"all {self._settings.pool} connections to PostgreSQL are in use")

    def _leave(self) -> None:
        self._used -= 1
        self._call_next()

    def _call_next(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        """An event loop ends the generators begun in it before it closes; later its connections could not be closed."""
        try:
            yield
        finally:
            self._hang_up()

    def give(self, line: _AsyncLine) -> None:
        if self._closed or not line.usable:
            line.close()
        else:
            self._resting.append(line)
        self._leave()

    def drop(self, line: _AsyncLine) -> None:
        line.close()
        self._leave()

    def close(self) -> None:
        self._closed = True
        if self._loop is asyncio.get_running_loop():
            self._hang_up()

    def _hang_up(self) -> None:
        while self._resting:
            self._resting.pop().close()


class _Talk:
    """One call of the store, with its deadline. `to_the_end`: once sent, it is not cancelled."""

    __slots__ = ("_deadline", "_plans", "_pool", "cancelled", "to_the_end")

    def __init__(self, pool: _Pool, plans: Plans, *, to_the_end: bool = False) -> None:
        self._pool = pool
        self._plans = plans
        self.to_the_end = to_the_end
        self.cancelled: asyncio.CancelledError | None = None
        self._deadline = time.monotonic() + pool.timeout_seconds

    async def perform(self, call: Call[Any]) -> Any:
        if isinstance(call, Ask):
            return await self.ask(call)
        if isinstance(call, TimeLeft):
            return max(0, int((self._deadline - time.monotonic()) * 1000))
        if isinstance(call, MoreTime):
            self._deadline = time.monotonic() + self._pool.timeout_seconds
            return None
        assert isinstance(call, Sleep)
        return await asyncio.sleep(min(call.seconds, max(self._deadline - time.monotonic(), 0)))

    async def ask(self, ask: Ask) -> Reply:
        line = await self._pool.take(self._deadline)
        try:
            reply = await self._converse(line, ask)
        except BaseException:
            self._pool.drop(line)
            raise
        if isinstance(reply, Lost):
            self._pool.drop(line)
        else:
            self._pool.give(line)
        return reply

    async def _converse(self, line: _AsyncLine, ask: Ask) -> Reply:
        statement = ask.statement
        prepared = self._plans.prepares and not statement.script
        sent = False
        try:
            if prepared and statement.name not in line.prepared:
                line.prepare(statement)
                reply = await self._exchange(line)
                if not isinstance(reply, list):
                    return reply._replace(sent=False) if isinstance(reply, Lost) else reply
                line.prepared.add(statement.name)
            sent = True
            line.send(statement, ask.parameters, prepared=prepared)
            return await self._exchange(line)
        except DriverError as error:
            return Lost(f"closed the connection: {error}", sent=sent)

    async def _exchange(self, line: _AsyncLine) -> Reply:
        reply = await line.exchange(self._deadline, self)
        return Lost(f"did not answer within {self._pool.timeout_seconds:g} s", sent=True) if reply is None else reply
