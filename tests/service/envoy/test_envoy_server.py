"""The server around the service: health, bounds, and how it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from envoy_proxy import Client, Loop, descriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headgate import HeadgateError, RateLimiter
from headgate.service.envoy.ratelimit_pb2 import RateLimitResponse
from headgate.service.envoy.rules import DescriptorRule, DescriptorRules
from headgate.service.envoy.server import EnvoyServer, start_envoy_server
from headgate.service.envoy.servicer import SERVICE, RateLimitServicer
from headgate.testing.servers.process import eventually

ADDRESS = DescriptorRule("per-address", "edge", {"remote_address": "*"}, "3/minute")
ONE = descriptor({"remote_address": "10.0.0.1"})


class Slow(RateLimiter):
    """It decides when it may."""

    def __init__(self) -> None:
        super().__init__("memory://")
        self.asked = 0
        self.may = threading.Event()

    async def try_acquire(self, *arguments: Any, **named: Any) -> Any:
        self.asked += 1
        await asyncio.to_thread(self.may.wait, 10)
        return await super().try_acquire(*arguments, **named)


class Running:
    """A small server, a slow limiter and a client."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.limiter, self.server = loop.run(self._start())
        self.client = Client(self.server.port)

    async def _start(self) -> tuple[Slow, EnvoyServer]:
        limiter = Slow()
        servicer = RateLimitServicer(DescriptorRules([ADDRESS]), lambda token, scope: limiter)
        return limiter, await start_envoy_server(servicer, "127.0.0.1:0", max_message_bytes=1000, max_concurrent=2)

    def healthy(self, service: str = "") -> bool:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            answer = health_pb2_grpc.HealthStub(self.client.channel).Check(request, timeout=10)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        self.limiter.may.set()
        self.client.close()
        self.loop.run(self.server.stop(0))
        self.loop.run(self.limiter.close())


@pytest.fixture
def running(loop: Loop) -> Iterator[Running]:
    running = Running(loop)
    yield running
    running.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_it_says_that_it_is_healthy(running: Running) -> None:
    assert running.healthy()
    assert running.healthy(SERVICE)
    assert not running.healthy("another")


def test_it_answers_what_it_was_asked_before_it_ends(running: Running, pool: ThreadPoolExecutor) -> None:
    under_way = pool.submit(running.client.ask, ONE)
    eventually(lambda: running.limiter.asked == 1, "it was asked")
    stopping = pool.submit(running.loop.run, running.server.stop())
    eventually(lambda: not running.healthy(), "it is known to be going")
    assert not under_way.done()
    running.limiter.may.set()
    assert under_way.result(60).overall_code == RateLimitResponse.OK
    stopping.result(60)
    running.loop.run(running.server.wait())


def test_whoever_watches_its_health_hears_that_it_goes(running: Running, pool: ThreadPoolExecutor) -> None:
    watch = health_pb2_grpc.HealthStub(running.client.channel).Watch(health_pb2.HealthCheckRequest(), timeout=10)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    stopping = pool.submit(running.loop.run, running.server.stop())
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()
    stopping.result(60)


def code_of(client: Client, *asked: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        client.ask(*asked)
    code: grpc.StatusCode = caught.value.code()
    return code


def test_large_requests_and_too_many_at_once_are_refused(running: Running, pool: ThreadPoolExecutor) -> None:
    large = descriptor({"remote_address": b"x" * 1000})
    assert code_of(running.client, large) is grpc.StatusCode.RESOURCE_EXHAUSTED
    both = [pool.submit(running.client.ask, ONE) for _ in range(2)]
    eventually(lambda: running.limiter.asked == 2, "both were asked")
    assert code_of(running.client, ONE) is grpc.StatusCode.RESOURCE_EXHAUSTED
    running.limiter.may.set()
    assert [asked.result(60).statuses[0].limit_remaining for asked in both] in ([2, 1], [1, 2])


def test_a_port_that_is_taken(running: Running) -> None:
    servicer = RateLimitServicer(DescriptorRules(), lambda token, scope: None)
    with pytest.raises(HeadgateError, match=f"cannot listen on '127.0.0.1:{running.server.port}'"):
        running.loop.run(start_envoy_server(servicer, f"127.0.0.1:{running.server.port}"))
