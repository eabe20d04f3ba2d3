"""One way to drive all the clients: a blocking face for those that are async too."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import httpx2
import requests

from headgate import Limit, RateLimiter, SyncRateLimiter
from headgate.http.clients import httpx as for_httpx
from headgate.http.clients import httpx2 as for_httpx2
from headgate.http.clients import requests as for_requests
from headgate.http.clients import token_usage
from headgate.testing import ManualClock

RPM, TPM, SLOTS = Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 1000), Limit.concurrent("parallel", 2)
LIMITS = [RPM, TPM, SLOTS]
DIMENSION = "openai#gpt-4o"
TAKES = {"rpm": 1, "tpm": 100, "parallel": 1}
TIMEOUT_SECONDS = 30.0
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # costs time, and nobody uses it


class Answer(NamedTuple):
    status: int
    body: Any


class Kit:
    """A client behind the gate, and a limiter on the same store to see what it took."""

    def __init__(self, url: str, dimension: Any = DIMENSION, *, clock: Any = None, **options: Any) -> None:
        self.clock = clock or ManualClock()
        self.seen = SyncRateLimiter(url, clock=self.clock)
        options = {"limits": LIMITS, "consume": TAKES, "usage": token_usage, **options}
        self._open(url, dimension, options)

    def available(self, dimension: str = DIMENSION) -> dict[str, int]:
        entity_id, _, resource = dimension.partition("#")
        return self.seen.available(entity_id, resource, LIMITS)

    def taken(self, dimension: str = DIMENSION) -> dict[str, int]:
        return {limit.name: limit.capacity - self.available(dimension)[limit.name] for limit in LIMITS}

    def __enter__(self) -> Kit:
        return self

    def __exit__(self, *error: object) -> None:
        self.seen.close()
        self.close()

    def _open(self, url: str, dimension: Any, options: dict[str, Any]) -> None:
        raise NotImplementedError

    def post(self, url: str, body: Any, *, read_timeout: float = TIMEOUT_SECONDS) -> Answer:
        raise NotImplementedError

    def stream(self, url: str, body: Any) -> Body:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Body(NamedTuple):
    """Of a response that is read bit by bit."""

    chunks: Iterator[bytes]
    close: Callable[[], None]

    def rest(self) -> bytes:
        return b"".join(self.chunks)


class HttpxKit(Kit):
    http: Any = httpx
    ours: Any = for_httpx

    def _timeout(self, read_timeout: float) -> Any:
        return self.http.Timeout(TIMEOUT_SECONDS, read=read_timeout)

    def _open(self, url: str, dimension: Any, options: dict[str, Any]) -> None:
        self.limiter = SyncRateLimiter(url, clock=self.clock)
        inner = self.http.HTTPTransport(verify=TLS)
        transport = self.ours.HeadgateTransport(self.limiter, dimension, transport=inner, **options)
        self.client = self.http.Client(transport=transport, follow_redirects=True, timeout=TIMEOUT_SECONDS)

    def post(self, url: str, body: Any, *, read_timeout: float = TIMEOUT_SECONDS) -> Answer:
        response = self.client.post(url, json=body, timeout=self._timeout(read_timeout))
        return Answer(response.status_code, response.json())

    def stream(self, url: str, body: Any) -> Body:
        response = self.client.send(self.client.build_request("POST", url, json=body), stream=True)
        return Body(response.iter_bytes(), response.close)

    def close(self) -> None:
        self.client.close()
        self.limiter.close()


class Httpx2Kit(HttpxKit):
    http = httpx2
    ours = for_httpx2


class AsyncHttpxKit(Kit):
    http: Any = httpx
    ours: Any = for_httpx

    def _timeout(self, read_timeout: float) -> Any:
        return self.http.Timeout(TIMEOUT_SECONDS, read=read_timeout)

    def _open(self, url: str, dimension: Any, options: dict[str, Any]) -> None:
        self.loop = asyncio.new_event_loop()
        self.limiter = RateLimiter(url, clock=self.clock)
        inner = self.http.AsyncHTTPTransport(verify=TLS)
        transport = self.ours.AsyncHeadgateTransport(self.limiter, dimension, transport=inner, **options)
        self.client = self.http.AsyncClient(transport=transport, follow_redirects=True, timeout=TIMEOUT_SECONDS)

    def post(self, url: str, body: Any, *, read_timeout: float = TIMEOUT_SECONDS) -> Answer:
        response = self.loop.run_until_complete(self.client.post(url, json=body, timeout=self._timeout(read_timeout)))
        return Answer(response.status_code, response.json())

    def stream(self, url: str, body: Any) -> Body:
        sending = self.client.send(self.client.build_request("POST", url, json=body), stream=True)
        response = self.loop.run_until_complete(sending)
        return Body(self._chunks(response), lambda: self.loop.run_until_complete(response.aclose()))

    def _chunks(self, response: Any) -> Iterator[bytes]:
        chunks = response.aiter_bytes().__aiter__()
        while True:
            try:
                yield self.loop.run_until_complete(chunks.__anext__())
            except StopAsyncIteration:
                return

    def close(self) -> None:
        self.loop.run_until_complete(self.client.aclose())
        self.loop.run_until_complete(self.limiter.close())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


class AsyncHttpx2Kit(AsyncHttpxKit):
    http = httpx2
    ours = for_httpx2


class RequestsKit(Kit):
    def _open(self, url: str, dimension: Any, options: dict[str, Any]) -> None:
        self.limiter = SyncRateLimiter(url, clock=self.clock)
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.mount("http://", for_requests.HeadgateAdapter(self.limiter, dimension, **options))

    def post(self, url: str, body: Any, *, read_timeout: float = TIMEOUT_SECONDS) -> Answer:
        response = self.session.post(url, json=body, timeout=(TIMEOUT_SECONDS, read_timeout))
        return Answer(response.status_code, response.json())

    def stream(self, url: str, body: Any) -> Body:
        response = self.session.post(url, json=body, stream=True, timeout=TIMEOUT_SECONDS)
        return Body(response.iter_content(None), response.close)

    def close(self) -> None:
        self.session.close()
        self.limiter.close()


KITS: dict[str, type[Kit]] = {
    "httpx": HttpxKit,
    "httpx2": Httpx2Kit,
    "async httpx": AsyncHttpxKit,
    "async httpx2": AsyncHttpx2Kit,
    "requests": RequestsKit,
}
ASYNC = [name for name in KITS if name.startswith("async")]
