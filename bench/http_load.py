"""A load of HTTP requests: so many connections, each sending its next request when the last one is answered."""

from __future__ import annotations

import asyncio
import time

from .measure import Turn, quiet, to_the_end


class _Client(asyncio.Protocol):
    """As little as there can be between two requests: it looks for the end of an answer, and whether it was a 200."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._buffer = bytearray()
        self._left = 0
        self._done: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, requests: int) -> asyncio.Future[None]:
        assert self._transport is not None
        if self._transport.is_closing():
            raise ConnectionError("the server has closed the connection")
        self._left = requests
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(self._request)
        return self._done

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        head = buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        lower = bytes(buffer[:head]).lower()
        at = lower.find(b"content-length:")
        length = int(lower[at + 15 : lower.find(b"\r\n", at) if b"\r\n" in lower[at:] else head])
        if len(buffer) < head + 4 + length:
            return
        assert self._transport is not None
        assert self._done is not None
        if not lower.startswith(b"http/1.1 200"):
            self._done.set_exception(RuntimeError(f"answered {bytes(buffer[:200])!r}"))
            return
        buffer.clear()
        self._left -= 1
        if self._left:
            self._transport.write(self._request)
        else:
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error or ConnectionError("the server has closed the connection"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    return head.encode() + b"\r\n" + body


def connections(loop: asyncio.AbstractEventLoop, port: int, request: bytes, count: int) -> tuple[Turn, list[_Client]]:
    async def connect() -> list[_Client]:
        made = [loop.create_connection(lambda: _Client(request), "127.0.0.1", port) for _ in range(count)]
        return [client for _, client in await asyncio.gather(*made)]

    clients = loop.run_until_complete(connect())

    async def timed(hits: int) -> float:
        each = -(-hits // len(clients))
        start = time.perf_counter()
        await asyncio.gather(*[client.send(each) for client in clients])
        return (time.perf_counter() - start) * hits / (each * len(clients))

    def turn(hits: int) -> float:
        with quiet():
            return to_the_end(loop, timed(hits))

    return turn, clients
