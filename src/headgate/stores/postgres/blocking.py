"""The store as blocking calls, safe to use from many threads."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from ...core.decide import Answer, Request
from ...core.errors import RateLimiterUnavailable
from ...plan import Call, run
from ..replies import AskAgain
from ..server import Lost, ServerCall, ServerStore
from .driver import DriverError, PostgresConnection, connect, wait_for
from .exchange import Execute, Reply
from .notifications import open_notifications
from .plans import PostgresPlans, answers_of
from .queries import patience_ms
from .url import PostgresSettings
from .wire import PostgresBatch


class PostgresStore(ServerStore):
    own_clock = True
    _plans: PostgresPlans
    _wire: _Pool

    def __init__(self, settings: PostgresSettings, timeout_seconds: float) -> None:
        plans = PostgresPlans(settings)
        super().__init__(plans, _Pool(settings, plans, timeout_seconds), _PostgresCall)
        self.notifications = open_notifications(settings, timeout_seconds)

    def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        plans = self._plans
        call = _PostgresCall(self._wire)
        encoded = PostgresBatch(batch, self.notifications.listener, plans.believed_ms(now_ms))
        execute = plans.settling(encoded, now_ms, self._wire.patience_ms)
        first: Reply | None = None
        if plans.checked:
            # The shortcut past the plan, which is only needed when something goes wrong.
            first = call.execute(execute)
            if first.__class__ is list:
                try:
                    return answers_of(encoded, first)
                except AskAgain:
                    pass  # which the plan does
        return run(plans.settle_plan(encoded, execute, first), call.perform)

    def close(self) -> None:
        self.notifications.close()
        self._wire.close()


class _Pool:
    """Idle connections, and permits for all there may be."""

    def __init__(self, settings: PostgresSettings, plans: PostgresPlans, timeout_seconds: float) -> None:
        self._settings = settings
        self.plans = plans
        self.timeout_seconds = timeout_seconds
        self.patience_ms = patience_ms(int(timeout_seconds * 1000))
        self._closed = False
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._resting: deque[PostgresConnection] = deque()
        self._permits = threading.Semaphore(self._settings.pool)

    def take(self, deadline: float) -> PostgresConnection:
        """A connection. RateLimiterUnavailable and ValidationError say why there is none."""
        if self._pid != os.getpid():  # the parent still uses those connections
            self._start()
        if not self._permits.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise RateLimiterUnavailable(f"all {self._settings.pool} connections to PostgreSQL are in use")
        try:
            while self._resting:
                try:
                    connection = self._resting.pop()
                except IndexError:  # another thread was faster
                    break
                if not wait_for(connection.fd, 0):  # an idle connection is readable only when it was closed
                    return connection
                connection.close()
            return connect(self._settings.conninfo, deadline, int(self.timeout_seconds * 1000))
        except BaseException:
            self._permits.release()
            raise

    def give(self, connection: PostgresConnection) -> None:
        if self._closed or not connection.usable:
            connection.close()
        else:
            self._resting.append(connection)
        self._permits.release()

    def drop(self, connection: PostgresConnection) -> None:
        """Close a broken one. The idle ones may have broken with it; they are checked before use."""
        connection.close()
        self._permits.release()

    def close(self) -> None:
        self._closed = True
        while self._resting and self._pid == os.getpid():
            try:
                self._resting.pop().close()
            except IndexError:
                break


class _PostgresCall(ServerCall):
    __slots__ = ()
    _wire: _Pool

    def perform(self, call: Call[Any]) -> Any:
        return self.execute(call) if isinstance(call, Execute) else super().perform(call)

    def execute(self, execute: Execute) -> Reply:
        connection = self._wire.take(self.deadline)
        try:
            reply = self._converse(connection, execute)
        except BaseException:
            self._wire.drop(connection)
            raise
        if isinstance(reply, Lost):
            self._wire.drop(connection)
        else:
            self._wire.give(connection)
        return reply

    def _converse(self, connection: PostgresConnection, execute: Execute) -> Reply:
        statement = execute.statement
        prepared = self._wire.plans.prepares and not statement.script
        sent = False
        try:
            if prepared and statement.name not in connection.prepared:
                connection.prepare(statement)
                reply = self._receive(connection)
                if not isinstance(reply, list):
                    return reply._replace(sent=False) if isinstance(reply, Lost) else reply
                connection.prepared.add(statement.name)
            sent = True
            connection.send(statement, execute.parameters, prepared=prepared)
            return self._receive(connection)
        except DriverError as error:
            return Lost(f"closed the connection: {error}", sent=sent)

    def _receive(self, connection: PostgresConnection) -> Reply:
        while not connection.flushed():
            if not self._wait(connection, write=True):
                return self.late(sent=True)
        while True:
            if not self._wait(connection):
                return self.late(sent=True)
            if connection.received():
                return connection.reply()

    def _wait(self, connection: PostgresConnection, *, write: bool = False) -> bool:
        return wait_for(connection.fd, max(0.0, self.deadline - time.monotonic()), write=write)
