"""The store for coroutines."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from ...core.decide import Answer, Request
from ...core.errors import HeadgateError, PartlyAnswered, RateLimiterUnavailable
from ...plan import Call, arun
from ..contract import Landed
from ..notifications import LoopNotifications
from ..replies import AskAgain
from ..server import AsyncServerCall, AsyncServerStore, LoopBound, Lost
from .driver import DriverError, PostgresConnection, host_names, wait_for, with_addresses
from .exchange import Execute, Reply, Statement
from .notifications import open_notifications
from .pipelined import LibpqPipeline
from .plans import PostgresPlans, answers_of
from .queries import patience_ms
from .url import PostgresSettings
from .wire import PostgresBatch


class AsyncPostgresStore(AsyncServerStore["_AsyncPostgresCall"]):
    own_clock = True
    _plans: PostgresPlans
    _wire: _AsyncPool

    def __init__(self, settings: PostgresSettings, timeout_seconds: float) -> None:
        plans = PostgresPlans(settings)
        super().__init__(plans, _AsyncPool(settings, plans, timeout_seconds), _AsyncPostgresCall)
        self._received = open_notifications(settings, timeout_seconds)
        self.notifications = LoopNotifications(self._received)

    async def _settle(self, batch: Sequence[Request], now_ms: int | None, call: _AsyncPostgresCall) -> list[Answer]:
        plans = self._plans
        encoded = PostgresBatch(batch, self._received.listener, plans.believed_ms(now_ms))
        execute = plans.settling(encoded, now_ms, self._wire.patience_ms)
        first: Reply | None = None
        if plans.checked:
            # The shortcut past the plan, which is only needed when something goes wrong.
            first = await call.execute(execute)
            if first.__class__ is list:
                try:
                    return answers_of(encoded, first)
                except AskAgain:
                    pass  # which the plan does
        return await arun(plans.settle_plan(encoded, execute, first), call.perform)

    def start(self, batch: Sequence[Request], now_ms: int | None, landed: Landed) -> bool:
        """Send a batch without waiting for anything. False: it was not sent, because there is no connection that can
        take it just now."""
        plans = self._plans
        if not (plans.checked and plans.prepares and self._wire.may_start()):
            return False
        encoded = PostgresBatch(batch, self._received.listener, plans.believed_ms(now_ms))
        execute = plans.settling(encoded, now_ms, self._wire.patience_ms)
        pipeline = self._wire.pipeline(execute.statement)
        if pipeline is None:
            return False

        deadline = time.monotonic() + self._wire.timeout_seconds

        def replied(reply: Reply) -> None:
            answers: Sequence[Answer | HeadgateError] = ()
            if type(reply) is list:
                try:
                    answers = answers_of(encoded, reply)
                except AskAgain:
                    pass
                except PartlyAnswered as partly:
                    answers = partly.results
            if answers:
                landed(answers, None)
                return
            call = _AsyncPostgresCall(self._wire)
            call.to_the_end, call.deadline = True, deadline
            landed((), lambda: self._whole(arun(plans.settle_plan(encoded, execute, reply), call.perform), call))

        return pipeline.send(execute, replied)

    async def close(self) -> None:
        self._received.close()
        await self._wire.close()


class _AsyncConnection(PostgresConnection):
    """A connection whose socket the event loop watches: it wakes the waiting task, and notices when it is closed."""

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
            self.watch()
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
        """Until `_wake`, or the deadline."""
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(max(0.0, deadline - time.monotonic()), self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def watch(self) -> None:
        """While no pipeline does."""
        self._loop.add_reader(self.fd, self._readable)

    def _readable(self) -> None:
        if not self._asked:
            self.dead = True  # an idle connection is readable only when it was closed
            self._unwatch()
            return
        try:
            if self.received():
                self._asked = False
                self._wake()
        except DriverError:
            self._lose()

    def _writable(self) -> None:
        try:
            if self.flushed():
                self._loop.remove_writer(self.fd)
        except DriverError:
            self._lose()

    def _lose(self) -> None:
        self.dead = True
        self.results = []
        self._asked = False
        self._unwatch()
        self._wake()

    async def exchange(self, call: _AsyncPostgresCall) -> Reply | None:
        """The reply to what was sent, or None if there was none in time."""
        self._asked = True
        if not self.flushed():
            self._loop.add_writer(self.fd, self._writable)
        while self._asked:
            if time.monotonic() >= call.deadline:
                return None
            try:
                await self._sleep(call.deadline)
            except asyncio.CancelledError as cancelled:
                if not call.to_the_end:
                    raise
                call.cancelled = cancelled
        return Lost(f"closed the connection: {self.why}", sent=True) if self.dead else self.reply()

    def _unwatch(self) -> None:
        if self.fd >= 0 and not self._loop.is_closed():
            self._loop.remove_reader(self.fd)
            self._loop.remove_writer(self.fd)

    def close(self) -> None:
        self._unwatch()
        self.fd = -1  # another connection may get the same number
        super().close()


async def resolved(conninfo: str, deadline: float) -> str:
    """With addresses in place of host names, which libpq itself would block for."""
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


class _AsyncPool(LoopBound):
    """Idle connections, and a queue for when all there may be are in use."""

    def __init__(self, settings: PostgresSettings, plans: PostgresPlans, timeout_seconds: float) -> None:
        super().__init__()
        self._settings = settings
        self.plans = plans
        self.timeout_seconds = timeout_seconds
        self.patience_ms = patience_ms(int(timeout_seconds * 1000))
        self._start()

    def _start(self) -> None:
        self._resting: deque[_AsyncConnection] = deque()
        self._queue: deque[asyncio.Future[None]] = deque()
        self._used = 0
        self._pipeline: LibpqPipeline | None = None

    def may_start(self) -> bool:
        """Whether there may be a pipeline. Calls that wait for a connection go first."""
        ours = self._loop is not None and asyncio.get_running_loop() is self._loop
        return ours and not self._queue and (self._pipeline is not None or bool(self._resting))

    def pipeline(self, statement: Statement) -> LibpqPipeline | None:
        """The connection on which calls are in progress, or one at rest that is known to be alive. Nothing follows a
        call that also prepares its statement, which may fail."""
        if self._pipeline is not None:
            return self._pipeline if statement.name in self._pipeline.connection.prepared else None
        connection = self._resting[-1]
        if connection.dead or not connection.direct or wait_for(connection.fd, 0):  # as in `take`
            return None
        pipeline = LibpqPipeline(connection, self.timeout_seconds, partial(self._ended, connection))
        self._resting.pop()
        self._used += 1
        self._pipeline = pipeline
        return pipeline

    def _ended(self, connection: _AsyncConnection) -> None:
        self._pipeline = None
        if connection.usable:
            connection.watch()
        self.give(connection)

    async def take(self, deadline: float) -> _AsyncConnection:
        """A connection. RateLimiterUnavailable and ValidationError say why there is none."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            await self._enter(loop)
        if self._used >= self._settings.pool:
            await self._wait_for_turn(deadline)
        self._used += 1
        try:
            while self._resting:
                connection = self._resting.pop()
                if not connection.dead and not wait_for(connection.fd, 0):  # the loop may not have run since
                    return connection
                connection.close()
            return await self._connect(deadline)
        except BaseException:
            self._leave()
            raise

    async def _connect(self, deadline: float) -> _AsyncConnection:
        connection = _AsyncConnection(await resolved(self._settings.conninfo, deadline))
        try:
            await connection.connect(deadline, int(self.timeout_seconds * 1000))
        except BaseException:
            connection.close()
            raise
        return connection

    async def _wait_for_turn(self, deadline: float) -> None:
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

    def give(self, connection: _AsyncConnection) -> None:
        if self._closed or not connection.usable:
            connection.close()
        else:
            self._resting.append(connection)
        self._leave()

    def drop(self, connection: _AsyncConnection) -> None:
        connection.close()
        self._leave()

    async def _close_idle(self) -> None:
        if self._pipeline is not None:
            self._pipeline.end("was closed")
        while self._resting:
            self._resting.pop().close()


class _AsyncPostgresCall(AsyncServerCall):
    _wire: _AsyncPool

    async def perform(self, call: Call[Any]) -> Any:
        return await (self.execute(call) if isinstance(call, Execute) else super().perform(call))

    async def execute(self, execute: Execute) -> Reply:
        connection = await self._wire.take(self.deadline)
        try:
            reply = await self._converse(connection, execute)
        except BaseException:
            self._wire.drop(connection)
            raise
        if isinstance(reply, Lost):
            self._wire.drop(connection)
        else:
            self._wire.give(connection)
        return reply

    async def _converse(self, connection: _AsyncConnection, execute: Execute) -> Reply:
        statement = execute.statement
        prepared = self._wire.plans.prepares and not statement.script
        sent = False
        try:
            if prepared and statement.name not in connection.prepared:
                connection.prepare(statement)
                reply = await self._exchange(connection)
                if not isinstance(reply, list):
                    return reply._replace(sent=False) if isinstance(reply, Lost) else reply
                connection.prepared.add(statement.name)
            sent = True
            connection.send(statement, execute.parameters, prepared=prepared)
            return await self._exchange(connection)
        except DriverError as error:
            return Lost(f"closed the connection: {error}", sent=sent)

    async def _exchange(self, connection: _AsyncConnection) -> Reply:
        reply = await connection.exchange(self)
        return self.late(sent=True) if reply is None else reply
