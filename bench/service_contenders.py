"""`headgate serve`: decisions in a second over HTTP, one by one and in batches, and over gRPC as Envoy asks."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from headgate.service.envoy.ratelimit_pb2 import RateLimitDescriptor, RateLimitRequest, RateLimitResponse
from headgate.service.envoy.servicer import SERVICE as GRPC_SERVICE

from .http_contenders import process
from .http_load import connections, post
from .http_scenes import BATCH, BATCHED, GRPC, SINGLE
from .http_scenes import SERVICE_CONNECTIONS as CONNECTIONS
from .measure import Contender, Opener, Turn, quiet, to_the_end

LIMIT = "1000000000/hour"
RULES = f"descriptors: [{{id: bench, domain: bench, match: {{key: '*'}}, limits: {LIMIT}}}]"


def service(loop: asyncio.AbstractEventLoop) -> list[Contender]:
    return [
        Contender(SINGLE, _over_http(loop, 1)),
        Contender(BATCHED, _over_http(loop, BATCH)),
        Contender(GRPC, _over_grpc(loop), note="Envoy's protocol"),
    ]


def _ask(number: int) -> dict[str, object]:
    return {"entity_id": f"user-{number}", "resource": "bench", "consume": {"hour": 1}, "limits": [f"hour={LIMIT}"]}


def _command(folder: Path) -> list[str]:
    rules = folder / "rules.yaml"
    rules.write_text(RULES)
    flags = ["--url", "memory://", "--max-requests", "off", "--rules", str(rules)]
    return [sys.executable, "-m", "headgate.cli", "serve", *flags]


def _over_http(loop: asyncio.AbstractEventLoop, batch: int) -> Opener:
    path, body = "/v1/acquire", json.dumps(_ask(7))
    if batch > 1:
        path, body = "/v1/acquire/batch", json.dumps({"asks": [_ask(number) for number in range(batch)]})

    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        with process([*_command(folder), "--grpc", "off", "--bind"], "127.0.0.1:{}") as port:
            turn, clients = connections(loop, port, post(path, body.encode()), CONNECTIONS)

            def decisions(hits: int) -> float:
                requests = -(-hits // batch)
                return turn(requests) * hits / (requests * batch)

            yield decisions
            for client in clients:
                client.close()

    return opened


def _over_grpc(loop: asyncio.AbstractEventLoop) -> Opener:
    entry = RateLimitDescriptor.Entry(key="key", value=b"7")
    question = RateLimitRequest(domain="bench", descriptors=[RateLimitDescriptor(entries=[entry])])

    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        with process([*_command(folder), "--bind", "127.0.0.1:0", "--grpc"], "127.0.0.1:{}") as port:
            channels = loop.run_until_complete(_channels(port))
            yield _turn(loop, channels, question)
            loop.run_until_complete(_close(channels))

    return opened


async def _channels(port: int) -> list[grpc.aio.Channel]:
    own = [("grpc.use_local_subchannel_pool", 1)]  # a connection each
    return [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=own) for _ in range(CONNECTIONS)]


async def _close(channels: list[grpc.aio.Channel]) -> None:
    for channel in channels:
        await channel.close()


def _turn(loop: asyncio.AbstractEventLoop, channels: list[grpc.aio.Channel], question: RateLimitRequest) -> Turn:
    asks = [
        channel.unary_unary(
            f"/{GRPC_SERVICE}/ShouldRateLimit",
            request_serializer=RateLimitRequest.SerializeToString,
            response_deserializer=RateLimitResponse.FromString,
        )
        for channel in channels
    ]

    async def timed(hits: int) -> float:
        each = -(-hits // len(asks))

        async def share(ask: grpc.aio.UnaryUnaryMultiCallable) -> None:
            for _ in range(each):
                answer = await ask(question)
            if answer.overall_code != RateLimitResponse.OK:
                raise RuntimeError("a hit was refused")

        start = time.perf_counter()
        await asyncio.gather(*[share(ask) for ask in asks])
        return (time.perf_counter() - start) * hits / (each * len(asks))

    def turn(hits: int) -> float:
        with quiet():
            return to_the_end(loop, timed(hits))

    return turn
