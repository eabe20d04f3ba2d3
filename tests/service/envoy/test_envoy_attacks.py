"""What a client without a token can do to the port for Envoy: it takes no places from those who have one."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pytest
from envoy_proxy import Loop
from grpc_health.v1 import health_pb2, health_pb2_grpc
from service_process import TOKENS, ServeProcess, tokens_file

from headgate.service.envoy.guard import MAX_HEALTH_CALLS
from headgate.service.envoy.ratelimit_pb2 import RateLimitRequest, RateLimitResponse
from headgate.service.envoy.rules import DescriptorRules
from headgate.service.envoy.server import MAX_CONCURRENT, MAX_STREAMS, start_envoy_server
from headgate.service.envoy.servicer import SERVICE, RateLimitServicer
from headgate.testing.servers.process import eventually

PATIENCE = 20.0
DECIDE = f"/{SERVICE}/ShouldRateLimit"
CHECK = "/grpc.health.v1.Health/Check"
DATA, HEADERS, SETTINGS, PING, GOAWAY = 0, 1, 4, 6, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1
HALF = b"\x00" + (1000).to_bytes(4, "big") + b"x"  # a message of 1000 bytes, and one of them


@pytest.fixture(scope="module")
def served() -> Iterator[ServeProcess]:
    arguments = ["--url", "memory://", "--rules", "rules.yaml", "--tokens", "tokens.yaml", "--grpc", "127.0.0.1:0"]
    with ServeProcess(*arguments, "--read-timeout", "0.5", "--max-connections", "20") as process:
        rule = {"id": "edge", "domain": "edge", "match": {"address": "*"}, "limits": "1000/hour"}
        process.write("rules.yaml", json.dumps({"descriptors": [rule]}))
        process.write("tokens.yaml", tokens_file())
        yield process.start()


def decide(address: str) -> int:
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        ask = channel.unary_unary(
            DECIDE,
            request_serializer=RateLimitRequest.SerializeToString,
            response_deserializer=RateLimitResponse.FromString,
        )
        request = RateLimitRequest(domain="edge")
        request.descriptors.add().entries.add(key="address", value=b"1.2.3.4")
        token = ("authorization", f"Bearer {TOKENS['decide']}")
        answer: RateLimitResponse = ask(request, timeout=PATIENCE, metadata=[token])
        return int(answer.overall_code)


class Raw:
    """HTTP/2 by hand, for what no client would send."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        self._read = b""

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def greet(self) -> Raw:
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.send(SETTINGS)
        self.send(SETTINGS, ACK)
        return self

    def send(self, kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> None:
        head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
        self.socket.sendall(head + payload)

    def call(self, path: str, stream: int, message: bytes = HALF) -> None:
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "x",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        text = [(name.encode(), value.encode()) for name, value in fields.items()]
        block = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in text)
        self.send(HEADERS, END_HEADERS, stream, block)
        self.send(DATA, 0, stream, message)

    def frames(self) -> Iterator[tuple[int, int, int]]:
        """Kind, flags and stream, until the server closes the connection."""
        while True:
            while len(self._read) < 9 or len(self._read) < 9 + int.from_bytes(self._read[:3], "big"):
                try:
                    part = self.socket.recv(65_536)
                except ConnectionError:
                    return
                if not part:
                    return
                self._read += part
            end = 9 + int.from_bytes(self._read[:3], "big")
            frame, self._read = self._read[:end], self._read[end:]
            if frame[3] == PING and not frame[4] & ACK:
                self.send(PING, ACK, 0, frame[9:])
            yield frame[3], frame[4], int.from_bytes(frame[5:9], "big")

    def ended(self, streams: int) -> bool:
        """Whether the server has ended so many streams; it waits for it."""
        left = streams
        for kind, flags, _ in self.frames():
            left -= kind == HEADERS and bool(flags & END_STREAM)
            if not left:
                return True
        return False


def address_of(served: ServeProcess) -> str:
    assert served.grpc is not None
    return served.grpc


@pytest.mark.parametrize("sent", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"PRI"])
def test_a_connection_that_is_half_way_is_closed(served: ServeProcess, sent: bytes) -> None:
    with Raw(address_of(served)) as connection:
        connection.socket.sendall(sent)
        assert len(list(connection.frames())) < 10


def test_a_connection_without_calls_is_closed(loop: Loop) -> None:
    servicer = RateLimitServicer(DescriptorRules(), lambda token, scope: None)
    server = loop.run(start_envoy_server(servicer, "127.0.0.1:0", idle_seconds=0.5))
    try:
        with Raw(f"127.0.0.1:{server.port}") as connection:
            assert [kind for kind, _, _ in connection.greet().frames()][-1] == GOAWAY
    finally:
        loop.run(server.stop(0))


def test_a_flood_of_pings_ends_the_connection(served: ServeProcess) -> None:
    with Raw(address_of(served)) as connection:
        connection.greet()
        with pytest.raises(OSError):
            for _ in range(1000):
                connection.send(PING, 0, 0, b"12345678")
                time.sleep(0.005)


def test_a_token_is_looked_at_before_the_message_is_read(served: ServeProcess) -> None:
    """The message never comes to its end, and the call is refused all the same."""
    with Raw(address_of(served)) as connection:
        connection.greet().call(DECIDE, 1)
        assert connection.ended(1)


def test_half_messages_take_no_places_from_others(served: ServeProcess) -> None:
    """As many as the server decides at once: each more would be an error, which Envoy may let pass."""
    with ExitStack() as opened:
        for _ in range(2 * MAX_CONCURRENT // MAX_STREAMS):
            connection = opened.enter_context(Raw(address_of(served))).greet()
            for stream in range(MAX_STREAMS * 6 // 10):
                connection.call(DECIDE, 2 * stream + 1)
            assert connection.ended(MAX_STREAMS * 6 // 10)
        assert decide(address_of(served)) == RateLimitResponse.OK


def test_calls_for_health_take_no_places_from_others(served: ServeProcess) -> None:
    with grpc.insecure_channel(address_of(served)) as channel, ExitStack() as opened:
        health = health_pb2_grpc.HealthStub(channel)
        watches = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(MAX_HEALTH_CALLS)]
        assert {next(watch).status for watch in watches} == {1}
        with pytest.raises(grpc.RpcError) as caught:
            next(health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        count = MAX_CONCURRENT // MAX_STREAMS
        connections = [opened.enter_context(Raw(address_of(served))).greet() for _ in range(count)]
        for connection in connections:
            for stream in range(MAX_STREAMS - 1):
                connection.call(CHECK, 2 * stream + 1)
        assert decide(address_of(served)) == RateLimitResponse.OK
        for connection in connections:
            assert connection.ended(MAX_STREAMS - 1)  # most at once, and the others when their time is over
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE).status == 1
        for watch in watches:
            watch.cancel()

    def watched() -> bool:
        with grpc.insecure_channel(address_of(served)) as again:
            watch = health_pb2_grpc.HealthStub(again).Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
            try:
                return bool(next(watch).status == 1)
            except grpc.RpcError:
                return False
            finally:
                watch.cancel()

    eventually(watched, "those who went have left their places")


def test_there_are_only_so_many_connections(served: ServeProcess) -> None:
    with ExitStack() as opened:
        many = [opened.enter_context(Raw(address_of(served))) for _ in range(40)]
        for connection in many:
            connection.socket.settimeout(PATIENCE)
        refused = 0
        for connection in many:
            try:
                refused += connection.socket.recv(1) == b""
            except ConnectionError:
                refused += 1
        assert refused >= 20
    eventually(lambda: _decides(served), "there is room again")
    assert "Traceback" not in served.log


def _decides(served: ServeProcess) -> bool:
    try:
        return decide(address_of(served)) == RateLimitResponse.OK
    except grpc.RpcError:
        return False
