"""The real openai package behind the transports."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import pytest
from client_kits import DIMENSION, LIMITS, TAKES
from stub_vendor import StubVendor

from headgate import Event, RateLimiter, RateLimitExceeded, SyncRateLimiter
from headgate.http.clients import httpx as for_httpx
from headgate.http.clients import httpx2 as for_httpx2
from headgate.http.clients import token_usage
from headgate.limiter import SystemClock
from headgate.testing import ManualClock

ROOT = Path(__file__).parents[3]
OPTIONS: dict[str, Any] = {"limits": LIMITS, "consume": TAKES, "usage": token_usage}
ASK: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}


class Scene:
    def __init__(self, vendor: StubVendor, http: Any, ours: Any, *, clock: Any = None, **options: Any) -> None:
        self.events: list[Event] = []
        self.limiter = SyncRateLimiter("memory://", clock=clock or ManualClock(), on_event=self.events.append)
        self.transport = ours.HeadgateTransport(self.limiter, DIMENSION, **{**OPTIONS, **options})
        self.client = openai.OpenAI(
            api_key="none", base_url=vendor.url, http_client=http.Client(transport=self.transport)
        )

    def taken(self) -> dict[str, int]:
        left = self.limiter.available("openai", "gpt-4o", LIMITS)
        return {limit.name: limit.capacity - left[limit.name] for limit in LIMITS}

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        self.limiter.close()


@pytest.fixture(params=["httpx", "httpx2"])
def modules(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    return {"httpx": (httpx, for_httpx), "httpx2": (httpx2, for_httpx2)}[request.param]


@pytest.fixture
def scene(vendor: StubVendor, modules: tuple[Any, Any]) -> Iterator[Scene]:
    with Scene(vendor, *modules) as scene:
        yield scene


def test_what_was_used_is_what_is_taken(scene: Scene) -> None:
    answer = scene.client.chat.completions.create(**ASK, extra_body={"stub": {"actual": 37}})
    assert answer.usage is not None
    assert answer.usage.total_tokens == 37
    assert scene.taken() == {"rpm": 1, "tpm": 37, "parallel": 0}


def test_a_stream_is_charged_what_its_usage_says(scene: Scene) -> None:
    extra = {"stub": {"actual": 350}}
    with scene.client.chat.completions.create(**ASK, stream=True, extra_body=extra) as chunks:
        words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert words == ["hel", "lo"]
    assert scene.taken() == {"rpm": 1, "tpm": 350, "parallel": 0}


def test_a_refusal_is_not_retried(vendor: StubVendor, modules: tuple[Any, Any]) -> None:
    with Scene(vendor, *modules, timeout=0, consume={"tpm": 1000}) as scene:
        scene.limiter.adjust("openai", "gpt-4o", {"tpm": 1000}, LIMITS)
        served = len(vendor.served)
        with pytest.raises(RateLimitExceeded):
            scene.client.with_options(max_retries=2).chat.completions.create(**ASK)
        assert [event.name for event in scene.events] == ["acquire.refused"]
        assert len(vendor.served) == served


def test_its_own_retries_take_turns_too(vendor: StubVendor, modules: tuple[Any, Any]) -> None:
    """The client waits as the vendor says and asks again; its next tries wait for the end of the penalty as well."""
    with Scene(vendor, *modules, clock=SystemClock()) as scene:
        served = len(vendor.served)
        extra = {"stub": {"status": 429, "headers": {"retry-after-ms": "20"}}}
        with pytest.raises(openai.RateLimitError):
            scene.client.with_options(max_retries=2).chat.completions.create(**ASK, extra_body=extra)
        assert len(vendor.served) == served + 3
        told = Counter(event.name for event in scene.events)
        assert (told["acquire.granted"], told["penalized"]) == (3, 3)
        assert scene.limiter.try_acquire("openai", "gpt-4o", {"tpm": 1000, "parallel": 2}, LIMITS, max_wait=30)


def test_coroutines_are_charged_what_the_usage_says(vendor: StubVendor, modules: tuple[Any, Any]) -> None:
    http, ours = modules

    async def scenario() -> None:
        async with RateLimiter("memory://", clock=ManualClock()) as limiter:
            transport = ours.AsyncHeadgateTransport(limiter, DIMENSION, **OPTIONS)
            http_client = http.AsyncClient(transport=transport)
            async with openai.AsyncOpenAI(api_key="none", base_url=vendor.url, http_client=http_client) as client:
                chat = client.chat.completions
                await chat.create(**ASK, extra_body={"stub": {"actual": 350}})
                chunks = await chat.create(**ASK, stream=True, extra_body={"stub": {"actual": 350}})
                assert [c.choices[0].delta.content async for c in chunks if c.choices] == ["hel", "lo"]
            assert await limiter.available("openai", "gpt-4o", LIMITS) == {"rpm": 58, "tpm": 300, "parallel": 2}

    asyncio.run(scenario())


def test_example_counts_the_same_tokens_as_the_vendor() -> None:
    example = ROOT / "examples" / "openai_shared_quota.py"
    run = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=60, check=True)
    counted = dict(re.findall(r"^(.+?)  +([\d,]+) tokens$", run.stdout, re.MULTILINE))
    assert counted["used, as the responses say"] == counted["counted by headgate"] == counted["counted by the vendor"]
    assert counted["estimated"] != counted["counted by headgate"]
    assert "refused by the vendor: 0" in run.stdout
