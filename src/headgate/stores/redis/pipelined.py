"""A connection for coroutines on which several calls are in progress at once. The server answers them in order.

redis-py opens it (TLS, password, database). Then the replies no longer take the road through its streams: a reply is
handed over in the very callback that received it, and the next call can leave while the last one is being answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import hiredis

from ..server import Lost
from .driver import pack_command
from .exchange import Arguments

Replied: TypeAlias = "Callable[[Any], None]"  # with the reply, an exception of the server's, or Lost


class PipelinedConnection(asyncio.Protocol):
    """Every call has the same time to be answered, so that the oldest one is always the next to be late."""

    def __init__(self, opened: Any, timeout_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_seconds = timeout_seconds
        self._reader = hiredis.Reader()
        self._calls: deque[tuple[float, Replied]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._writer = cast(asyncio.StreamWriter, opened._writer)
        opened._reader = opened._writer = None  # redis-py has nothing to close any more
        self._transport = self._writer.transport
        self._streams = self._transport.get_protocol()
        self._transport.set_protocol(self)
        self.closed = False

    @property
    def idle(self) -> bool:
        return not self._calls

    def send(self, arguments: Arguments, replied: Replied) -> None:
        at = self._loop.time() + self._timeout_seconds
        packed = pack_command(arguments)
        try:
            self._calls.append((at, replied))
            if self._timer is None:
                self._timer = self._loop.call_at(at, self._look)
            self._transport.write(packed)
        except BaseException:  # it is not known whether a reply will come
            if self._calls and self._calls[-1][1] is replied:
                self._calls.pop()
            self.abort("was interrupted")
            raise

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while self._calls:
                reply = self._reader.gets()
                if reply is False:  # not complete yet
                    return
                _, replied = self._calls[0]
                replied(reply)
                self._calls.popleft()
        except hiredis.ProtocolError as error:
            self.abort(f"cannot be understood: {error}")
        except BaseException:  # interrupted: it is not known which call the next reply belongs to
            self.abort("was interrupted")
            raise

    def connection_lost(self, error: Exception | None) -> None:
        cast(asyncio.Protocol, self._streams).connection_lost(error)
        self._end(Lost(f"closed the connection: {error or 'without a reason'}", sent=True))

    def abort(self, why: str) -> None:
        self._transport.abort()
        self._end(Lost(why, sent=True))

    async def close(self) -> None:
        self._writer.close()
        self._end(Lost("was closed", sent=True))
        await self._writer.wait_closed()

    def _look(self) -> None:
        self._timer = None
        if not self._calls:
            return
        at, _ = self._calls[0]
        if at > self._loop.time():
            self._timer = self._loop.call_at(at, self._look)
            return
        self._transport.abort()
        self._end(Lost(f"did not answer within {self._timeout_seconds:g} s", sent=True, late=True))

    def _end(self, lost: Lost) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._calls:
            _, replied = self._calls.popleft()
            replied(lost)
