"""For httpx: `httpx.Client(transport=HeadgateTransport(limiter, "openai#gpt-4o"))`."""

from __future__ import annotations

import httpx

from .transport import ABOUT, AsyncTransport, SyncTransport


class HeadgateTransport(SyncTransport[httpx.BaseTransport], httpx.BaseTransport, library=httpx):
    __doc__ = ABOUT


class AsyncHeadgateTransport(AsyncTransport[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport, library=httpx):
    __doc__ = ABOUT
