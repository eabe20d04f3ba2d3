"""The transports of httpx and httpx2. The two libraries have classes of the same form, and accept only their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ...limiter import RateLimiter, SyncRateLimiter
from ...plan import arun, run
from .gate import Dimensions, Gate, GateOptions, HttpExchange
from .steps import Finish, aperform, perform
from .usage import Inflater

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self, Unpack

BaseTransport = TypeVar("BaseTransport")

_UNSENT = ("ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol")
ABOUT = f"""Waits for the limits of the dimension before each request, then sends it through `transport`.

{cleandoc(GateOptions.__doc__ or "")}"""


class BodyStream:
    """The body of a response, counted as it is read. When it is closed, the exchange ends."""

    def __init__(self, stream: Any, exchange: HttpExchange, inflate: Inflater) -> None:
        self._stream = stream
        self._exchange = exchange
        self._inflate = inflate

    def _feed(self, chunk: bytes) -> None:
        for piece in self._inflate(chunk):
            self._exchange.feed(piece)


class SyncBodyStream(BodyStream):
    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._stream:
            self._feed(chunk)
            yield chunk

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            run(self._exchange.end_plan(), perform)


class AsyncBodyStream(BodyStream):
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


class LimitedTransport(Generic[BaseTransport]):
    """Makes a transport class of a library: a subclass that names the `library` gets the classes it needs from it.

    `BaseTransport` is the library's base class of that name.
    """

    _limiter: ClassVar[type[SyncRateLimiter] | type[RateLimiter]]
    _default: ClassVar[str]  # in the library, the transport that sends if none is given
    _body: ClassVar[tuple[type[BodyStream], str]]  # and what the body of a response must be

    _inner: ClassVar[type[Any]]
    _stream: ClassVar[type[Any]]
    _unsent: ClassVar[tuple[type[BaseException], ...]]

    def __init_subclass__(cls, *, library: Any = None, **others: Any) -> None:
        super().__init_subclass__(**others)
        if library is None:
            return
        counted, body = cls._body
        cls._inner = getattr(library, cls._default)
        cls._stream = type(f"Counted{body}", (counted, getattr(library, body)), {})
        cls._unsent = tuple(getattr(library, name) for name in _UNSENT)

    def _open(self, limiter: Any, dimension: Dimensions, transport: BaseTransport | None, options: GateOptions) -> None:
        self._gate = Gate(limiter, dimension, lambda error: isinstance(error, self._unsent), self._limiter, **options)
        self._transport: Any = self._inner() if transport is None else transport

    def _prepare(self, request: Any) -> None:
        """To find the usage in the body, its encoding must be one that can be decoded here."""
        if self._gate.usage is not None and request.headers.get("accept-encoding", "identity") != "identity":
            request.headers["accept-encoding"] = "gzip"

    def _watched(self, response: Any, exchange: HttpExchange | None) -> Any:
        if exchange is not None:
            response.stream = self._stream(response.stream, exchange, Inflater(response.headers))
        return response


class SyncTransport(LimitedTransport[BaseTransport]):
    __doc__ = ABOUT

    _limiter = SyncRateLimiter
    _default = "HTTPTransport"
    _body = (SyncBodyStream, "SyncByteStream")

    def __init__(
        self,
        limiter: SyncRateLimiter,
        dimension: Dimensions,
        *,
        transport: BaseTransport | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        self._open(limiter, dimension, transport, options)

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


class AsyncTransport(LimitedTransport[BaseTransport]):
    __doc__ = ABOUT

    _limiter = RateLimiter
    _default = "AsyncHTTPTransport"
    _body = (AsyncBodyStream, "AsyncByteStream")

    def __init__(
        self,
        limiter: RateLimiter,
        dimension: Dimensions,
        *,
        transport: BaseTransport | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        self._open(limiter, dimension, transport, options)

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
