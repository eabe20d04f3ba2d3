"""For httpx: `httpx.Client(transport=HeadgateTransport(limiter, "openai#gpt-4o"))`."""

from __future__ import annotations

from inspect import cleandoc
from typing import TYPE_CHECKING

import httpx

from ...limiter import RateLimiter, SyncRateLimiter
from .gate import GateOptions
from .places import Places
from .transport import AsyncStream, AsyncTransport, SyncStream, SyncTransport

if TYPE_CHECKING:
    from typing_extensions import Unpack

_UNSENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)


class _Stream(SyncStream, httpx.SyncByteStream):
    pass


class _AsyncStream(AsyncStream, httpx.AsyncByteStream):
    pass


class HeadgateTransport(SyncTransport, httpx.BaseTransport):
    __doc__ = f"""Takes a turn of the dimension for each request, then sends it through `transport`.

{cleandoc(GateOptions.__doc__ or "")}"""

    _inner = httpx.HTTPTransport
    _stream = _Stream
    _unsent = _UNSENT

    def __init__(
        self,
        limiter: SyncRateLimiter,
        dimension: Places,
        *,
        transport: httpx.BaseTransport | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        super().__init__(limiter, dimension, transport, **options)


class AsyncHeadgateTransport(AsyncTransport, httpx.AsyncBaseTransport):
    __doc__ = HeadgateTransport.__doc__

    _inner = httpx.AsyncHTTPTransport
    _stream = _AsyncStream
    _unsent = _UNSENT

    def __init__(
        self,
        limiter: RateLimiter,
        dimension: Places,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        super().__init__(limiter, dimension, transport, **options)
