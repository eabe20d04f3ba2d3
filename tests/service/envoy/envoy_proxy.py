"""A real Envoy in front of a real upstream, and the service that it asks, in a loop of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, TypeVar

import grpc

from headgate import RateLimiter
from headgate.http.answer import DEFAULT_HEADERS
from headgate.service.envoy.ratelimit_pb2 import RateLimitRequest, RateLimitResponse
from headgate.service.envoy.rules import DescriptorRule, DescriptorRules
from headgate.service.envoy.server import EnvoyServer, start_envoy_server
from headgate.service.envoy.servicer import SERVICE, RateLimitServicer
from headgate.testing.servers.process import ServerProcess, eventually, free_port

T = TypeVar("T")
TOKEN = "the-token-of-this-envoy"


class Loop:
    """An event loop in a thread, for all servers and limiters of a test session."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Service:
    """Our gRPC service on a port that it keeps, to be stopped and started again."""

    def __init__(
        self, loop: Loop, descriptors: DescriptorRules, *, open_to_all: bool = True, headers: Any = DEFAULT_HEADERS
    ) -> None:
        self._loop = loop
        self._limiter: RateLimiter | None = None
        self._descriptors = descriptors
        self._servicer = RateLimitServicer(descriptors, self._authorize, headers=headers)
        self._server: EnvoyServer | None = None
        self.token = None if open_to_all else TOKEN
        self.port = 0
        self.start()

    def _authorize(self, token: str | None, scope: str) -> RateLimiter | None:
        return self._limiter if scope == "decide" and self.token in (None, token) else None

    def use(self, make: Callable[[], RateLimiter]) -> RateLimiter:
        """Decide with a new limiter from now on."""

        async def made() -> RateLimiter:
            if self._limiter is not None:
                await self._limiter.close()
            self._limiter = make()
            return self._limiter

        return self._loop.run(made())

    @contextmanager
    def under(self, *rules: DescriptorRule) -> Iterator[None]:
        """Other rules, for a while."""
        self._servicer.use(DescriptorRules(rules))
        try:
            yield
        finally:
            self._servicer.use(self._descriptors)

    def available(self, rule: DescriptorRule, entity_id: str) -> dict[str, int]:
        assert self._limiter is not None
        return self._loop.run(self._limiter.available(entity_id, rule.id, rule.limits))

    def start(self) -> None:
        self._server = self._loop.run(start_envoy_server(self._servicer, f"127.0.0.1:{self.port}"))
        self.port = self._server.port

    def stop(self) -> None:
        if self._server is not None:
            self._loop.run(self._server.stop(0))
            self._server = None

    def close(self) -> None:
        self.stop()
        if self._limiter is not None:
            self._loop.run(self._limiter.close())


class Client:
    """What Envoy is to the service, written by hand."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._call = self.channel.unary_unary(
            f"/{SERVICE}/ShouldRateLimit",
            request_serializer=RateLimitRequest.SerializeToString,
            response_deserializer=RateLimitResponse.FromString,
        )

    def ask(self, *descriptors: Any, metadata: Any = (), **fields: Any) -> RateLimitResponse:
        request = RateLimitRequest(**{"domain": "edge", "descriptors": list(descriptors), **fields})
        answer: RateLimitResponse = self._call(request, metadata=metadata, timeout=10)
        return answer

    def ask_at_once(self, count: int, *descriptors: Any) -> Callable[[], list[RateLimitResponse]]:
        """Send so many; the result waits for their answers."""
        request = RateLimitRequest(domain="edge", descriptors=list(descriptors))
        sent = [self._call.future(request, timeout=30) for _ in range(count)]
        return lambda: [one.result() for one in sent]

    def close(self) -> None:
        self.channel.close()


def descriptor(entries: Mapping[str, str | bytes], **fields: Any) -> dict[str, Any]:
    encoded = [
        {"key": key, "value": value.encode() if isinstance(value, str) else value} for key, value in entries.items()
    ]
    return {"entries": encoded, **fields}


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def problem(self) -> Any:
        return json.loads(self.body)


class Upstream:
    """The API behind Envoy. It counts what reached it."""

    def __init__(self) -> None:
        self.served = 0
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                upstream.served += 1
                self.send_response(200)
                self.send_header("content-length", "5")
                self.send_header("x-tokens", "700")
                self.end_headers()
                self.wfile.write(b"hello")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Guide(NamedTuple):
    """What docs/envoy.md shows of an envoy.yaml."""

    config: Any
    own_limits: Any
    afterwards: Any


class EnvoyProxy(ServerProcess):
    """Envoy with the configuration of the guide, on free ports, three times. On `guide_port` it is as the guide says.
    The other two wait longer, for slow machines; on `port` everything passes while the service is away, on `deny_port`
    nothing does. What else the guide shows is on routes of its own: `/plan` and `/chat`."""

    def __init__(self, binary: str, guide: Guide, *, upstream_port: int, service_port: int) -> None:
        super().__init__()
        try:
            self.port, self.deny_port, self.guide_port = free_port(), free_port(), free_port()
            config = deepcopy(guide.config)
            _set_ports(config, upstream_port, service_port)
            listener = config["static_resources"]["listeners"][0]
            config["static_resources"]["listeners"] = [
                _listener(deepcopy(listener), guide, port, settings)
                for port, settings in (
                    (self.port, {"failure_mode_deny": False, "timeout": "5s"}),
                    (self.deny_port, {"failure_mode_deny": True, "timeout": "5s"}),
                    (self.guide_port, {}),
                )
            ]
            (self.folder / "envoy.json").write_text(json.dumps(config))
            options = ["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]
            self._launch([binary, "-c", str(self.folder / "envoy.json"), *options], {})
            eventually(lambda: self._listens() or not self.running, "Envoy listens")
            assert self.running, self.log
        except BaseException:
            self.close()
            raise

    def _listens(self) -> bool:
        for port in (self.port, self.deny_port, self.guide_port):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                return False
        return True

    def get(self, path: str = "/", headers: Mapping[str, str] | None = None, *, deny: bool = False) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.deny_port if deny else self.port, timeout=10)
        try:
            connection.request("GET", path, headers=dict(headers or {}))
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())
        finally:
            connection.close()

    def get_at_once(self, count: int, headers: Mapping[str, str]) -> Counter[int]:
        """How many of so many requests got which status, on `guide_port`. All connect before the first is sent."""
        fields = {"host": "api", "connection": "close", **headers}
        sent = "".join(f"{name}: {value}\r\n" for name, value in fields.items())

        async def get(connected: list[None], start: asyncio.Event) -> int:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.guide_port)
            connected.append(None)
            if len(connected) == count:
                start.set()
            await start.wait()
            writer.write(f"GET / HTTP/1.1\r\n{sent}\r\n".encode())
            answer = await reader.read()
            writer.close()
            return int(answer.split(b" ", 2)[1])

        async def get_all() -> Counter[int]:
            connected: list[None] = []
            start = asyncio.Event()
            return Counter(await asyncio.gather(*(get(connected, start) for _ in range(count))))

        return asyncio.run(get_all())


def _set_ports(config: Any, upstream_port: int, service_port: int) -> None:
    for cluster, port in zip(config["static_resources"]["clusters"], (upstream_port, service_port)):
        endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
        endpoint["address"]["socket_address"]["port_value"] = port


def _listener(listener: Any, guide: Guide, port: int, settings: Mapping[str, Any]) -> Any:
    listener["name"] = f"on-{port}"
    listener["address"]["socket_address"]["port_value"] = port
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"][0]["typed_config"].update(settings)
    manager["http_filters"].insert(0, PLAN_OF_CALLER)
    manager["route_config"]["virtual_hosts"][0]["routes"][:0] = [
        {"match": {"prefix": "/plan"}, "route": {"cluster": "api", "rate_limits": guide.own_limits}},
        {"match": {"prefix": "/chat"}, "route": {"cluster": "api"}, "typed_per_filter_config": guide.afterwards},
    ]
    return listener


PLAN_OF_CALLER = {
    "name": "envoy.filters.http.set_metadata",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
        "metadata": [{"metadata_namespace": "plans", "value": {"of_caller": {"requests_per_unit": 3, "unit": "HOUR"}}}],
    },
}
