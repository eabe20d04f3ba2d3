"""What a client is made with, and what it goes through."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest

from headgate import Limit, RateLimiter, SyncRateLimiter, ValidationError
from headgate.http.clients import httpx as for_httpx
from headgate.http.clients import httpx2 as for_httpx2
from headgate.http.clients import token_usage
from headgate.http.clients.gate import which
from headgate.http.clients.requests import HeadgateAdapter

LIMITS = [Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 1000), Limit.concurrent("parallel", 2)]


class Request:
    def __init__(self, url: str) -> None:
        self.url = url


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://api.openai.com/v1", "openai#all"),
        ("https://API.OpenAI.com/v1", "openai#all"),
        ("https://api.openai.com./v1", "openai#all"),
        ("https://api.openai.com:443/v1", "openai#all"),
        ("https://api.openai.com:8443/v1", "openai#all"),
        ("https://key:secret@api.openai.com/v1", "openai#all"),
        ("http://localhost/v1", "local#http"),
        ("http://localhost:80/v1", "local#http"),
        ("https://localhost/v1", None),
        ("http://[::1]:8080/", "six#8080"),
        ("https://xn--bcher-kva.example/", "books#all"),
        ("https://openai.com/", None),
        ("https://api.openai.com.example/", None),
        ("https://api.openai.com@elsewhere.example/", None),
    ],
)
def test_a_host_is_found_however_it_is_written(url: str, found: str | None) -> None:
    places = {
        "Api.OpenAI.com.": "openai#all",
        "localhost:80": "local#http",
        "[::1]:8080": lambda request: f"six#{request.url[-5:-1]}",
        "bücher.example": "books#all",
    }
    with SyncRateLimiter("memory://") as limiter:
        assert which(limiter, places)(Request(url)) == found
        for module in (httpx, httpx2):
            assert which(limiter, {**places, "[::1]:8080": "six#8080"})(module.Request("GET", url)) == found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dimension": "openai"}, "dimension 'openai' cannot be read"),
        ({"dimension": None}, "dimension must be like 'openai#gpt-4o'"),
        ({"dimension": {}}, "dimension must be like 'openai#gpt-4o'"),
        ({"dimension": {"https://api.openai.com": "a#b"}}, "host 'https://api.openai.com' is not valid"),
        ({"dimension": {"api.openai.com/v1": "a#b"}}, "host 'api.openai.com/v1' is not valid"),
        ({"dimension": {"": "a#b"}}, "host '' is not valid"),
        ({"dimension": {"host:port": "a#b"}}, "host 'host:port' is not valid"),
        ({"dimension": {"a..b": "a#b"}}, "host 'a..b' is not valid"),
        ({"dimension": {"api.openai.com": "a"}}, "dimension 'a' cannot be read"),
        ({"timeout": -1}, "timeout must be from 0"),
        ({"timeout": "soon"}, "timeout must be a number of seconds"),
        ({"on_unavailable": "panic"}, "on_unavailable"),
    ],
)
def test_what_cannot_be_is_said_at_once(arguments: dict[str, Any], message: str) -> None:
    arguments = {"dimension": "openai#gpt-4o", **arguments}
    with SyncRateLimiter("memory://") as limiter:
        for make in (for_httpx.HeadgateTransport, for_httpx2.HeadgateTransport, HeadgateAdapter):
            with pytest.raises(ValidationError, match=re.escape(message)):
                make(limiter, **arguments)
            with pytest.raises(TypeError, match="unexpected argument 'wait'; there are: consume, usage, timeout"):
                make(limiter, "openai#gpt-4o", wait=3)  # type: ignore[call-arg]


def test_each_has_its_own_kind_of_limiter() -> None:
    with SyncRateLimiter("memory://") as limiter, pytest.raises(ValidationError, match="needs a RateLimiter, not Sync"):
        for_httpx.AsyncHeadgateTransport(limiter, "a#b")  # type: ignore[arg-type]

    async def scenario() -> None:
        async with RateLimiter("memory://") as limiter:
            with pytest.raises(ValidationError, match="needs a SyncRateLimiter, not RateLimiter"):
                for_httpx.HeadgateTransport(limiter, "a#b")  # type: ignore[arg-type]

    asyncio.run(scenario())


def test_a_response_that_came_in_one_piece_is_counted() -> None:
    """From a cache, or a test's double: nobody will read its stream."""
    usage = {"usage": {"total_tokens": 37}}
    options: dict[str, Any] = {"limits": LIMITS, "consume": {"tpm": 100, "parallel": 1}, "usage": token_usage}
    with SyncRateLimiter("memory://") as limiter:
        inner = httpx.MockTransport(lambda request: httpx.Response(200, json=usage))
        with httpx.Client(transport=for_httpx.HeadgateTransport(limiter, "a#b", transport=inner, **options)) as client:
            assert client.get("http://vendor.example").json() == usage
        assert limiter.available("a", "b", LIMITS) == {"rpm": 60, "tpm": 963, "parallel": 2}

    async def scenario() -> None:
        async with RateLimiter("memory://") as limiter:
            inner = httpx2.MockTransport(lambda request: httpx2.Response(200, json=usage))
            transport = for_httpx2.AsyncHeadgateTransport(limiter, "a#b", transport=inner, **options)
            async with httpx2.AsyncClient(transport=transport) as client:
                assert (await client.get("http://vendor.example")).json() == usage
            assert await limiter.available("a", "b", LIMITS) == {"rpm": 60, "tpm": 963, "parallel": 2}

    asyncio.run(scenario())


def test_a_request_of_no_dimension_just_goes() -> None:
    inner = httpx.MockTransport(lambda request: httpx.Response(200, text=request.headers["accept-encoding"]))
    with SyncRateLimiter("memory://") as limiter:
        transport = for_httpx.HeadgateTransport(limiter, lambda request: None, transport=inner)
        with httpx.Client(transport=transport) as client:
            assert "deflate" in client.get("http://vendor.example").text  # it is asked for as always


def test_what_is_to_be_read_here_is_asked_for_as_gzip() -> None:
    inner = httpx.MockTransport(lambda request: httpx.Response(200, text=request.headers["accept-encoding"]))
    with SyncRateLimiter("memory://") as limiter:
        transport = for_httpx.HeadgateTransport(limiter, "a#b", limits=LIMITS, usage=token_usage, transport=inner)
        with httpx.Client(transport=transport) as client:
            assert client.get("http://vendor.example").text == "gzip"
            assert client.get("http://vendor.example", headers={"accept-encoding": "identity"}).text == "identity"


def test_the_transports_of_httpx_and_httpx2_differ_in_name_only() -> None:
    texts = [Path(module.__file__).read_text().partition("\n")[2] for module in (for_httpx, for_httpx2)]
    assert texts[0] == texts[1].replace("httpx2", "httpx")
