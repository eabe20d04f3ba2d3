"""A store that dies after the vendor was asked. The vendor's answer gets through."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from client_kits import DIMENSION, LIMITS, TAKES
from stub_vendor import StubVendor

from headgate import RateLimiter, RateLimiterUnavailable, SyncRateLimiter
from headgate.http.clients import token_usage
from headgate.http.clients.httpx import AsyncHeadgateTransport, HeadgateTransport
from headgate.testing.servers.redis import RedisServer

OPTIONS: dict[str, Any] = {"limits": LIMITS, "consume": TAKES, "usage": token_usage}


@pytest.fixture
def killed(own_redis_server: RedisServer, vendor: StubVendor) -> Iterator[tuple[str, dict[str, Any]]]:
    """A store, and a body for the vendor, who answers when the store is dead."""
    hold = f"outage {own_redis_server.url}"
    body = {"stub": {"hold": hold, "actual": 37, "headers": {"x-ratelimit-remaining-requests": "9"}}}

    def kill() -> None:
        assert vendor.begun[hold].wait(30)
        own_redis_server.kill()
        vendor.go[hold].set()

    thread = threading.Thread(target=kill)
    thread.start()
    yield own_redis_server.url, body
    thread.join()


def test_the_answer_gets_through(
    killed: tuple[str, dict[str, Any]], vendor: StubVendor, caplog: pytest.LogCaptureFixture
) -> None:
    url, body = killed
    with SyncRateLimiter(url, store_timeout=5) as limiter, caplog.at_level(logging.WARNING, "headgate"):
        with httpx.Client(transport=HeadgateTransport(limiter, DIMENSION, **OPTIONS)) as client:
            assert client.post(vendor.chat, json=body).json()["usage"]["total_tokens"] == 37
            assert sum("could not be counted" in record.message for record in caplog.records) == 1
            with pytest.raises(RateLimiterUnavailable):
                client.post(vendor.chat, json={})
        transport = HeadgateTransport(limiter, DIMENSION, on_unavailable="allow", **OPTIONS)
        with httpx.Client(transport=transport) as client:
            assert client.post(vendor.chat, json={}).status_code == 200
            assert client.post(vendor.chat, json={"stub": {"status": 429}}).status_code == 429


def test_the_answer_gets_through_to_tasks(killed: tuple[str, dict[str, Any]], vendor: StubVendor) -> None:
    url, body = killed

    async def scenario() -> None:
        limiter = RateLimiter(url, store_timeout=5)
        transport = AsyncHeadgateTransport(limiter, DIMENSION, **OPTIONS)
        async with limiter, httpx.AsyncClient(transport=transport) as client:
            assert (await client.post(vendor.chat, json=body)).json()["usage"]["total_tokens"] == 37

    asyncio.run(scenario())
