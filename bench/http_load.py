"""A load of requests: so many connections, each sending its next request when the last one is answered.

There is as little as can be between two requests, and no event loop: the machine should be busy with the server.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from typing import Protocol

from .measure import Turn, quiet


class Connection(Protocol):
    socket: socket.socket

    def request(self) -> bytes: ...

    def answered(self, data: bytes) -> bool:
        """Whether the answer is complete with this. An error if it is not the one expected."""


class HttpConnection:
    def __init__(self, port: int, request: bytes) -> None:
        self.socket = _connected(port)
        self._request = request
        self._before = b""

    def request(self) -> bytes:
        return self._request

    def answered(self, data: bytes) -> bool:
        data = self._before + data
        head = data.find(b"\r\n\r\n")
        if head < 0:
            self._before = data
            return False
        lower = data[:head].lower()
        at = lower.find(b"content-length:") + 15
        end = lower.find(b"\r\n", at)
        if len(data) < head + 4 + int(lower[at : end if end > 0 else head]):
            self._before = data
            return False
        if not data.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"answered {data[:200]!r}")
        self._before = b""
        return True


class GrpcConnection:
    """HTTP/2, as far as one call after the other needs it. A Python client of gRPC would be slower than the server."""

    _DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 4, 6, 7, 8
    _ACK = _END_STREAM = 1
    _END_HEADERS = 4

    def __init__(self, port: int, path: str, message: bytes, starts: bytes) -> None:
        """`starts`: the first bytes of the message in the answer."""
        self.socket = _connected(port)
        fields = {
            ":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost", "te": "trailers",
            "content-type": "application/grpc",
        }  # fmt: skip
        self._head = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
        self._message = b"\0" + len(message).to_bytes(4, "big") + message
        self._starts = starts
        self._stream = -1
        self._before = b""
        more = (2**31 - 1 - 65_535).to_bytes(4, "big")
        self.socket.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(self._SETTINGS, 0, 0) + _frame(self._WINDOW, 0, 0, more)
        )

    def request(self) -> bytes:
        self._stream += 2
        head = _frame(self._HEADERS, self._END_HEADERS, self._stream, self._head)
        return head + _frame(self._DATA, self._END_STREAM, self._stream, self._message)

    def answered(self, data: bytes) -> bool:
        data = self._before + data
        at, done = 0, False
        while len(data) >= at + 9:
            end = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if len(data) < end:
                break
            kind, flags = data[at + 3], data[at + 4]
            if kind == self._DATA:
                if data[at + 14 : at + 14 + len(self._starts)] != self._starts:
                    raise RuntimeError(f"answered {data[at + 14 : end]!r}")
            elif kind == self._HEADERS:
                done = done or bool(flags & self._END_STREAM)
            elif kind in (self._SETTINGS, self._PING) and not flags & self._ACK:
                self.socket.sendall(_frame(kind, self._ACK, 0, data[at + 9 : end] if kind == self._PING else b""))
            elif kind == self._GOAWAY:
                raise ConnectionError(f"the server ends the connection: {data[at + 9 : end]!r}")
            at = end
        self._before = data[at:]
        return done


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _text(text: str) -> bytes:
    """In HPACK, neither compressed nor to be remembered: each request is the same."""
    return bytes([len(text)]) + text.encode()


def _connected(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), 30)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    return head.encode() + b"\r\n" + body


def load(connections: Sequence[Connection]) -> Turn:
    by_number = {one.socket.fileno(): one for one in connections}

    def timed(hits: int) -> float:
        each = -(-hits // len(connections))
        left = dict.fromkeys(by_number, each)
        epoll = select.epoll()
        for number in by_number:
            epoll.register(number, select.EPOLLIN)
        start = time.perf_counter()
        for one in connections:
            one.socket.sendall(one.request())
        open_ones = len(connections)
        while open_ones:
            for number, _ in epoll.poll(30):
                one = by_number[number]
                data = one.socket.recv(65_536)
                if not data:
                    raise ConnectionError("the server has closed the connection")
                if one.answered(data):
                    left[number] -= 1
                    if left[number]:
                        one.socket.sendall(one.request())
                    else:
                        open_ones -= 1
        seconds = time.perf_counter() - start
        epoll.close()
        return seconds * hits / (each * len(connections))

    def turn(hits: int) -> float:
        with quiet():
            return timed(hits)

    return turn
