"""Transports of httpx and of httpx2, whose classes have the same form, and must be their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ...limiter import RateLimiter, SyncRateLimiter
from ...plan import arun, run
from .gate import Exchange, Gate, GateOptions
from .places import Places
from .steps import Finish, aperform, perform
from .usage import Inflater

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self, Unpack


class Stream:
    """A response's body, which goes by. With its end, or when it is closed, the exchange ends."""

    def __init__(self, stream: Any, exchange: Exchange, inflate: Inflater) -> None:
        self._stream = stream
        self._exchange = exchange
        self._inflate = inflate

    def _feed(self, chunk: bytes) -> None:
        for piece in self._inflate(chunk):
            self._exchange.feed(piece)


class SyncStream(Stream):
    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            self._feed(chunk)
            yield chunk

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            run(self._exchange.end_plan(), perform)


class AsyncStream(Stream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = self._stream.__aiter__()
        try:
            async for chunk in chunks:
                self._feed(chunk)
                yield chunk
        finally:
            if hasattr(chunks, "aclose"):
                await chunks.aclose()

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            await aperform(Finish(self._exchange.end_plan()))


class Transport:
    """Subclasses say of which classes: of the transport that sends if none is given, and of what never left."""

    _inner: ClassVar[type[Any]]
    _stream: ClassVar[type[Stream]]
    _unsent: ClassVar[tuple[type[BaseException], ...]]
    _kind: ClassVar[type[SyncRateLimiter] | type[RateLimiter]]

    def __init__(self, limiter: Any, dimension: Places, transport: Any, **options: Unpack[GateOptions]) -> None:
        self._gate = Gate(limiter, dimension, lambda error: isinstance(error, self._unsent), self._kind, **options)
        self._transport = self._inner() if transport is None else transport

    def _prepare(self, request: Any) -> None:
        """Where the body is to be read here, it has to come in an encoding that can be."""
        if self._gate.usage is not None and request.headers.get("accept-encoding", "identity") != "identity":
            request.headers["accept-encoding"] = "gzip"

    def _watched(self, response: Any, exchange: Exchange | None) -> Any:
        if exchange is not None:
            response.stream = self._stream(response.stream, exchange, Inflater(response.headers))
        return response


class SyncTransport(Transport):
    _kind = SyncRateLimiter

    def handle_request(self, request: Any) -> Any:
        self._prepare(request)
        send = partial(self._transport.handle_request, request)
        response, exchange = run(self._gate.send_plan(request, send, lambda response: response.close()), perform)
        return self._watched(response, exchange)

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        self._transport.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._transport.__exit__(kind, error, traceback)


class AsyncTransport(Transport):
    _kind = RateLimiter

    async def handle_async_request(self, request: Any) -> Any:
        self._prepare(request)
        send = partial(self._transport.handle_async_request, request)
        response, exchange = await arun(
            self._gate.send_plan(request, send, lambda response: response.aclose()), aperform
        )
        return self._watched(response, exchange)

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._transport.__aexit__(kind, error, traceback)
