"""`headgate serve`: decisions in a second over HTTP, one by one and in batches, and over gRPC as Envoy asks.

Beside each the same server answering a constant: what a client could get at most.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headgate.service.envoy.ratelimit_pb2 import RateLimitDescriptor, RateLimitRequest
from headgate.service.envoy.servicer import SERVICE as GRPC_SERVICE

from .http_contenders import process
from .http_load import Connection, GrpcConnection, HttpConnection, load, post
from .http_scenes import (
    BATCH,
    BATCHED,
    CONSTANT_GRPC,
    CONSTANT_HTTP,
    GRPC,
    LOADS,
    ONE_WORKER,
    SINGLE,
    TWO_WORKERS,
    WORKERS_CONNECTIONS,
)
from .http_scenes import SERVICE_CONNECTIONS as CONNECTIONS
from .measure import Contender, Opener, Turn

LIMIT = "1000000000/hour"
RULES = f"descriptors: [{{id: bench, domain: bench, match: {{key: '*'}}, limits: {LIMIT}}}]"
_ALLOWED = b"\x08\x01"  # overall_code: OK

Command = Callable[[Path], Sequence[str]]


def service() -> list[Contender]:
    return [
        Contender(CONSTANT_HTTP, _over_http(_constant("http"))),
        Contender(SINGLE, _over_http(_serve("--grpc", "off", "--bind"))),
        Contender(BATCHED, _over_http(_serve("--grpc", "off", "--bind"), BATCH)),
        Contender(CONSTANT_GRPC, _over_grpc(_constant("grpc"))),
        Contender(GRPC, _over_grpc(_serve("--bind", "127.0.0.1:0", "--grpc")), note="Envoy's protocol"),
    ]


def workers(redis_url: str) -> list[Contender]:
    """The load comes from two processes of their own."""
    return [
        Contender(name, _from_processes(_serve("--grpc", "off", "--workers", str(count), "--bind", url=redis_url)))
        for name, count in ((ONE_WORKER, 1), (TWO_WORKERS, 2))
    ]


def ask(number: int) -> dict[str, object]:
    return {"entity_id": f"user-{number}", "resource": "bench", "consume": {"hour": 1}, "limits": [f"hour={LIMIT}"]}


def _constant(kind: str) -> Command:
    return lambda folder: [sys.executable, "-m", "bench.service_constant", kind]


def _serve(*flags: str, url: str = "memory://") -> Command:
    def command(folder: Path) -> Sequence[str]:
        rules = folder / "rules.yaml"
        rules.write_text(RULES)
        given = ["--url", url, "--max-requests", "off", "--rules", str(rules)]
        return [sys.executable, "-m", "headgate.cli", "serve", *given, *flags]

    return command


def _loaded(command: Command, connect: Callable[[int], Connection], batch: int = 1) -> Opener:
    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        with process(command(folder), "127.0.0.1:{}") as port:
            clients = [connect(port) for _ in range(CONNECTIONS)]
            turn = load(clients)

            def decisions(hits: int) -> float:
                requests = -(-hits // batch)
                return turn(requests) * hits / (requests * batch)

            yield decisions
            for client in clients:
                client.socket.close()

    return opened


def acquire(batch: int = 1) -> bytes:
    path, body = "/v1/acquire", json.dumps(ask(7))
    if batch > 1:
        path, body = "/v1/acquire/batch", json.dumps({"asks": [ask(number) for number in range(batch)]})
    return post(path, body.encode())


def _over_http(command: Command, batch: int = 1) -> Opener:
    return _loaded(command, lambda port: HttpConnection(port, acquire(batch)), batch)


def _over_grpc(command: Command) -> Opener:
    entry = RateLimitDescriptor.Entry(key="key", value=b"7")
    question = RateLimitRequest(domain="bench", descriptors=[RateLimitDescriptor(entries=[entry])]).SerializeToString()
    path = f"/{GRPC_SERVICE}/ShouldRateLimit"
    return _loaded(command, lambda port: GrpcConnection(port, path, question, _ALLOWED))


def _from_processes(command: Command) -> Opener:
    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        with process(command(folder), "127.0.0.1:{}") as port:
            loads = [
                subprocess.Popen(
                    [sys.executable, "-m", "bench.service_load", str(port), str(WORKERS_CONNECTIONS)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for _ in range(LOADS)
            ]

            def turn(hits: int) -> float:
                each = -(-hits // LOADS)
                start = time.perf_counter()
                for one in loads:
                    assert one.stdin is not None
                    print(each, file=one.stdin, flush=True)
                for one in loads:
                    assert one.stdout is not None
                    if not one.stdout.readline():
                        raise RuntimeError("a load has ended")
                return (time.perf_counter() - start) * hits / (each * LOADS)

            try:
                yield turn
            finally:
                for one in loads:
                    one.communicate()

    return opened
