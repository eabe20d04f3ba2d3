"""Several calls in progress on one connection, in libpq's pipeline mode. The server does them in order, each in a
transaction of its own.

A reply is handed over in the very callback that received it, and the next call can leave while the last one is being
answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from ..server import Lost
from .driver import DriverError, PostgresConnection
from .exchange import Execute, Reply

Replied: TypeAlias = "Callable[[Reply], None]"


class LibpqPipeline:
    """A connection from its first call on, for as long as any is in progress. Every call has the same time to be
    answered, so that the oldest one is always the next to be late."""

    def __init__(self, connection: PostgresConnection, timeout_seconds: float, ended: Callable[[], None]) -> None:
        """`ended`: no call is in progress any more; the connection may be usable, or not."""
        self._loop = asyncio.get_running_loop()
        self._timeout_seconds = timeout_seconds
        self._ended = ended
        self._calls: deque[tuple[float, bytes, Replied]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self.connection = connection
        connection.enter_pipeline()
        self._loop.add_reader(connection.fd, self._readable)

    def send(self, execute: Execute, replied: Replied) -> bool:
        """Whether it was sent."""
        at = self._loop.time() + self._timeout_seconds
        try:
            self._calls.append((at, execute.statement.name, replied))
            self.connection.send_next(execute.statement, execute.parameters)
            if not self.connection.flushed():
                self._loop.add_writer(self.connection.fd, self._writable)
            if self._timer is None:
                self._timer = self._loop.call_at(at, self._look)
        except DriverError as error:  # the server has not got all of it, and does not do it
            self._calls.pop()
            self._loop.call_soon(self.end, f"closed the connection: {error}")
            return False
        except BaseException:  # it is not known how much of it was sent
            if self._calls and self._calls[-1][2] is replied:
                self._calls.pop()
            self.end("was interrupted")
            raise
        return True

    def end(self, why: str, *, late: bool = False) -> None:
        """Close the connection. Calls in progress are lost."""
        if self._over:
            return
        self.connection.close()
        self._stop()
        lost = Lost(why, sent=True, late=late)
        while self._calls:
            *_, replied = self._calls.popleft()
            replied(lost)

    def _stop(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ended()

    def _readable(self) -> None:
        try:
            self.connection.libpq.consume_input()
            while self._calls and self.connection.received_next():
                _, name, replied = self._calls[0]
                reply = self.connection.reply()
                if type(reply) is list:
                    self.connection.prepared.add(name)
                replied(reply)
                self._calls.popleft()
            if not self._calls:
                self.connection.exit_pipeline()
                self._stop()
        except DriverError as error:
            self.end(f"closed the connection: {error}")
        except BaseException:  # it is not known which call the next reply belongs to
            self.end("was interrupted")
            raise

    def _writable(self) -> None:
        try:
            if self.connection.flushed():
                self._loop.remove_writer(self.connection.fd)
        except DriverError as error:
            self.end(f"closed the connection: {error}")

    def _look(self) -> None:
        self._timer = None
        if not self._calls:
            return
        at, *_ = self._calls[0]
        if at > self._loop.time():
            self._timer = self._loop.call_at(at, self._look)
        else:
            self.end(f"did not answer within {self._timeout_seconds:g} s", late=True)
