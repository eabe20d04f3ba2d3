"""For httpx2, which the openai package comes with: `httpx2.Client(transport=HeadgateTransport(...))`."""

from __future__ import annotations

from inspect import cleandoc
from typing import TYPE_CHECKING

import httpx2

from ...limiter import RateLimiter, SyncRateLimiter
from .gate import GateOptions
from .places import Places
from .transport import AsyncStream, AsyncTransport, SyncStream, SyncTransport

if TYPE_CHECKING:
    from typing_extensions import Unpack

_UNSENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)


class _Stream(SyncStream, httpx2.SyncByteStream):
    pass


class _AsyncStream(AsyncStream, httpx2.AsyncByteStream):
    pass


class HeadgateTransport(SyncTransport, httpx2.BaseTransport):
    __doc__ = f"""Takes a turn of the dimension for each request, then sends it through `transport`.

{cleandoc(GateOptions.__doc__ or "")}"""

    _inner = httpx2.HTTPTransport
    _stream = _Stream
    _unsent = _UNSENT

    def __init__(
        self,
        limiter: SyncRateLimiter,
        dimension: Places,
        *,
        transport: httpx2.BaseTransport | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        super().__init__(limiter, dimension, transport, **options)


class AsyncHeadgateTransport(AsyncTransport, httpx2.AsyncBaseTransport):
    __doc__ = HeadgateTransport.__doc__

    _inner = httpx2.AsyncHTTPTransport
    _stream = _AsyncStream
    _unsent = _UNSENT

    def __init__(
        self,
        limiter: RateLimiter,
        dimension: Places,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        super().__init__(limiter, dimension, transport, **options)
