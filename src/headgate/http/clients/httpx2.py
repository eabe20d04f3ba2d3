"""For httpx2, which the openai package comes with: `httpx2.Client(transport=HeadgateTransport(...))`."""

from __future__ import annotations

import httpx2

from .transport import ABOUT, AsyncTransport, SyncTransport


class HeadgateTransport(SyncTransport[httpx2.BaseTransport], httpx2.BaseTransport, library=httpx2):
    __doc__ = ABOUT


class AsyncHeadgateTransport(AsyncTransport[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport, library=httpx2):
    __doc__ = ABOUT
