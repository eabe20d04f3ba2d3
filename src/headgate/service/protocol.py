"""HTTP/1.1 by httptools, with bounds on what a client may send, and how slowly, before its token is checked.

httptools and uvicorn have none: they keep all headers and trailers, and wait forever for the rest of a request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from math import inf
from typing import Any, Literal, TypeAlias

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .reading import AT_ONCE, AtOnce

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
MAX_BODY_BYTES = 2 * 1024 * 1024  # more than any operation reads: a client that is still sending can read its refusal
MAX_PIPELINED = 100
MAX_CONNECTIONS = 2000
READ_SECONDS = 20.0
IDLE_SECONDS = 75.0

_CHUNK_BYTES = 16  # that a byte of the body may cost besides, in chunks of one byte each
_SENT_BYTES = 16 * 1024  # the least a client takes of an answer in the time it has to send a request
_LARGE_HEAD = f"The head of the request is larger than {MAX_HEAD_BYTES} bytes."
_NO_REQUEST = ("head", "idle")

# What the connection waits for: a request's head, its body, our response, or the next request.
Phase: TypeAlias = Literal["head", "body", "answer", "idle"]


class TooMuchError(Exception):
    """A request exceeds a bound, and is not read to its end."""


@dataclass(slots=True)
class Bounds:
    """Shared by all connections of a server. `without_request`: connections that wait for a request, oldest first."""

    read_seconds: float = READ_SECONDS
    idle_seconds: float = IDLE_SECONDS
    connections: int = MAX_CONNECTIONS
    without_request: OrderedDict[BoundedProtocol, None] = field(default_factory=OrderedDict)

    def seconds(self, phase: Phase) -> float:
        return {"head": self.read_seconds, "body": self.read_seconds, "answer": inf, "idle": self.idle_seconds}[phase]

    def protocol(self) -> Callable[..., BoundedProtocol]:
        """A factory for the protocol of a connection."""

        def made(*args: Any, **kwargs: Any) -> BoundedProtocol:
            return BoundedProtocol(self, *args, **kwargs)

        return made


class BoundedProtocol(HttpToolsProtocol):
    """`look` must be called regularly: it closes a connection that takes too long."""

    def __init__(self, bounds: Bounds, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bounds = bounds
        self._phase: Phase = "idle"
        self._deadline = inf
        self._received = self._head_bytes = self._headers = self._body_bytes = 0
        self._refusal: tuple[int, str] | None = None
        self._unsent: tuple[int, float] | None = None

    # Connections

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._enter("head")
        if len(self.connections) > self._bounds.connections:
            oldest = next(iter(self._bounds.without_request))
            oldest._end(503, "There are too many connections.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._bounds.without_request.pop(self, None)
        super().connection_lost(exc)

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._deadline = self.loop.time() + self._bounds.seconds(phase)
        if phase in _NO_REQUEST and not self._has_to_wait():
            self._bounds.without_request[self] = None
            self._bounds.without_request.move_to_end(self)
        else:
            self._bounds.without_request.pop(self, None)

    # Time

    def look(self, now: float) -> None:
        if self._is_stuck(now):
            self.transport.abort()
        elif now >= self._deadline and not self.transport.is_closing():
            if self._has_to_wait():
                self._enter(self._phase)
            else:
                self._end(408, "The request took too long.")

    def _has_to_wait(self) -> bool:
        """Whether the delay is ours: an earlier request has no response yet."""
        if self._phase == "body":
            return bool(self.pipeline)
        return self.cycle is not None and not self.cycle.response_complete

    def _is_stuck(self, now: float) -> bool:
        """Whether the client does not read our response."""
        left = self.transport.get_write_buffer_size()
        if not left:
            self._unsent = None
            return False
        before, until = self._unsent or (left + _SENT_BYTES, now)
        if now < until:
            return False
        self._unsent = left, now + self._bounds.read_seconds
        return left > before - _SENT_BYTES

    def on_response_complete(self) -> None:
        self._unsent = None
        super().on_response_complete()
        if self._phase == "head":
            self._enter("head")
        elif self._phase == "answer" and self.cycle.response_complete:
            self._enter("idle")

    def _end(self, status: int, words: str) -> None:
        self._bounds.without_request.pop(self, None)
        if self._received or status == 503:
            self._refuse(status, words)
        else:
            self.transport.close()

    # Bytes

    def data_received(self, data: bytes) -> None:
        if self._phase == "idle":
            self._enter("head")
        self._received += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._phase == "head" and self._received > MAX_HEAD_BYTES:
            self._refuse(431, _LARGE_HEAD)
        elif self._phase == "body" and self._received > 2 * MAX_HEAD_BYTES + (1 + _CHUNK_BYTES) * self._body_bytes:
            self._refuse(431, "The trailers or the chunks of the request are too large.")

    def on_message_begin(self) -> None:
        self._enter("head")
        self._head_bytes = self._headers = self._body_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        if self._headers > MAX_HEADERS:
            self._stop(431, f"The request has more than {MAX_HEADERS} headers.")
        self._count_head(len(name) + len(value))
        if self._phase == "head":  # trailers arrive while the request is handled, and are ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(429, f"There are {MAX_PIPELINED} requests before this one: wait for responses.")
        super().on_headers_complete()
        cycle = self.cycle
        at_once = AtOnce(partial(_read_at_once, cycle), partial(_answer_at_once, cycle))
        self.scope["extensions"] = {AT_ONCE: at_once}  # type: ignore[dict-item]
        self._enter("body")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY_BYTES:
            self._stop(413, f"The body of the request is larger than {MAX_BODY_BYTES} bytes.")
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._received = 0
        self._enter("idle" if self.cycle.response_complete else "answer")

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._stop(431, _LARGE_HEAD)

    def _stop(self, status: int, words: str) -> None:
        """Leave the parser, which wraps the exception in its own."""
        self._refusal = status, words
        raise TooMuchError(words)

    # Refusals

    def send_400_response(self, msg: str) -> None:
        self._refuse(*(self._refusal or (400, msg)))

    def _refuse(self, status: int, words: str) -> None:
        """Say why and close, unless the client would take it for part of another response."""
        if not self._is_answering() and not self.transport.is_closing():
            body = words.encode("ascii")
            head = [
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
                "content-type: text/plain; charset=utf-8",
                f"content-length: {len(body)}",
                "connection: close",
                *(["retry-after: 1"] if status == 503 else []),
            ]
            self.transport.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        self.transport.close()

    def _is_answering(self) -> bool:
        """Whether a response is being sent, or this request has one already."""
        if self.cycle is None or not self.cycle.response_started:
            return bool(self.pipeline)
        return self._phase == "body" or not self.cycle.response_complete

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: any client could fill the log."""


def _read_at_once(cycle: RequestResponseCycle) -> bytes | None:
    """The body, if all of it is there."""
    return None if cycle.more_body or cycle.disconnected else bytes(cycle.body)


def _answer_at_once(cycle: RequestResponseCycle, head: bytes, body: bytes) -> bool:
    """Do what the two messages of an ASGI response do, in one write. `head`: the status and headers, but the length."""
    if cycle.flow.write_paused or cycle.disconnected or cycle.response_started:
        return False
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    common = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])
    close = b"" if cycle.keep_alive else b"connection: close\r\n"
    sent = b"" if cycle.scope["method"] == "HEAD" else body
    cycle.transport.write(b"%b%b%bcontent-length: %d\r\n\r\n%b" % (head, common, close, len(body), sent))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True
