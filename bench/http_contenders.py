"""The same application behind each limiter: called directly, and served over sockets with its limits in Redis."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .http_apps import APPS, NOTES, PATH
from .http_load import HttpConnection, get, load
from .http_scenes import CONNECTIONS
from .measure import Contender, Opener, Turn, coroutines

KEPT = 2_000  # hits in a turn of those who keep them all


def direct(loop: asyncio.AbstractEventLoop) -> list[Contender]:
    """No server and no socket between: what the limiter adds to a request is what differs."""
    return [
        Contender(name, _called(loop, make), KEPT if name in NOTES else 0, NOTES.get(name, ""))
        for name, make in APPS.items()
    ]


def _called(loop: asyncio.AbstractEventLoop, make: Callable[[str], Any]) -> Opener:
    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        app = make("memory://")
        status = 0

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]

        async def hit() -> bool:
            scope = {
                "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
                "path": PATH, "raw_path": PATH.encode(), "query_string": b"", "root_path": "",
                "headers": [(b"host", b"localhost"), (b"accept", b"*/*")],
                "client": ("192.0.2.7", 4711), "server": ("127.0.0.1", 80), "state": {},
            }  # fmt: skip
            await app(scope, receive, send)
            return status == 200

        yield coroutines(loop, hit)

    return opened


def served(loop: asyncio.AbstractEventLoop, redis_url: str) -> list[Contender]:
    return [
        Contender(name, _served(loop, name, redis_url), KEPT if name in NOTES else 0, NOTES.get(name, ""))
        for name in APPS
    ]


def _served(loop: asyncio.AbstractEventLoop, name: str, redis_url: str) -> Opener:
    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        with process([sys.executable, "-m", "bench.http_serve", name, redis_url]) as port:
            clients = [HttpConnection(port, get(PATH)) for _ in range(CONNECTIONS)]
            yield load(clients)
            for client in clients:
                client.socket.close()

    return opened


@contextmanager
def process(command: Sequence[str], address: str = "{}") -> Iterator[int]:
    """A server in a process of its own, told by its last argument to listen on a port that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([*command, address.format(port)], stdout=subprocess.DEVNULL)
    try:
        _await_answer(server, port)
        yield port
    finally:
        server.terminate()
        server.wait(10)


def _await_answer(server: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(400):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if server.poll() is not None:
                raise RuntimeError(f"the server has ended with {server.returncode}") from None
            time.sleep(0.05)
    raise RuntimeError("the server does not answer")
