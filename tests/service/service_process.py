"""`headgate serve` as a process, and what it is asked."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx

from headgate.service.tokens import SCOPES, hashed
from headgate.testing.servers.process import ServerProcess, eventually

T = TypeVar("T")
TOKENS = {scope: f"the-token-of-those-who-{scope}" for scope in SCOPES} | {"other": "the-token-of-another-namespace"}
SECRETS = (*TOKENS.values(), "Traceback", "/src/headgate/", "memory://")

RULES = """\
rules:
  - id: login
    path: /login
    method: POST
    limits: 2/hour
  - id: jobs
    path: /jobs
    limits: "parallel=1 concurrent"
  - id: search
    path: /search
    per: address
    limits: 10/week
  - id: all
    path: /**
    limits: 1000/hour
plans:
  pro:
    login: 5/hour
    search: 20/week
"""


def tokens_file() -> str:
    entries = [
        {"name": name, "sha256": hashed(token), "scopes": [name if name in SCOPES else "admin"]}
        | ({"namespace": "elsewhere"} if name == "other" else {})
        for name, token in TOKENS.items()
    ]
    return json.dumps({"tokens": entries})  # which is YAML too


class ServeProcess(ServerProcess):
    """A service on a free port of this machine."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        super().__init__()
        self._arguments = arguments
        self._environment = environment
        self.url = ""
        self.grpc: str | None = None

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def start(self) -> ServeProcess:
        command = [sys.executable, "-m", "headgate.cli", "serve", "--bind", "127.0.0.1:0", "--json", *self._arguments]
        before = len(self.log)
        self._launch(command, self._environment)
        eventually(lambda: "}" in self.log[before:] or not self.running, "the service listens")
        said = self.log[before:]
        assert '"http"' in said, said
        where = json.loads(said[: said.index("}") + 1])
        self.url, self.grpc = where["http"], where["grpc"]
        return self

    def end(self) -> int:
        """SIGTERM; the exit code."""
        process = self._process
        assert process is not None
        self.stop()
        return int(process.returncode)

    def client(self, token: str | None = None) -> httpx.Client:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)


def workers_of(process: ServeProcess) -> set[int]:
    """The ids of its worker processes."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process.pid and b"spawn_main" in (path / "cmdline").read_bytes():
                found.add(int(path.name))
    return found


def clients_by_worker(process: ServeProcess, token: str | None = None) -> dict[int, httpx.Client]:
    """A client for each worker, with one connection, which that worker has accepted."""
    found: dict[int, httpx.Client] = {}
    pids = workers_of(process)
    while found.keys() != pids:
        client = process.client(token)
        stream = client.get("/healthz").extensions["network_stream"]
        pid = _owner(pids, client.base_url.port or 0, stream.get_extra_info("client_addr")[1])
        if pid in found:
            client.close()
        else:
            found[pid] = client
    return found


def _owner(pids: set[int], port: int, client_port: int) -> int:
    """The worker with the other end of a connection."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = (f":{port:04X}", f":{client_port:04X}")
    (inode,) = (row[9] for row in rows if row[1].endswith(ends[0]) and row[2].endswith(ends[1]))
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(path) == f"socket:[{inode}]":
                    return pid
    raise AssertionError(f"no worker has the connection from port {client_port}")


def inside(app: Any, work: Callable[[httpx.AsyncClient], Coroutine[Any, Any, T]]) -> T:
    """The application without a process of its own, for settings that need one."""

    async def run() -> T:
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            try:
                return await work(client)
            finally:
                await app.close()

    return asyncio.run(run())


class Api:
    """A client that checks what all answers have in common."""

    def __init__(self, client: httpx.Client) -> None:
        self.http = client

    def __call__(self, method: str, path: str, body: Any = None, *, status: int = 200, **query: Any) -> Any:
        answer = self.http.request(method, path, json=body, params=query or None)
        check_answer(answer)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    def post(self, path: str, body: Any, *, status: int = 200) -> Any:
        return self("POST", path, body, status=status)

    def get(self, path: str, *, status: int = 200, **query: Any) -> Any:
        return self("GET", path, status=status, **query)

    def available(self, entity_id: str, resource: str = "r") -> dict[str, int]:
        found: dict[str, int] = self.get("/v1/available", entity_id=entity_id, resource=resource)["available"]
        return found


def check_answer(answer: httpx.Response) -> None:
    assert not any(secret in answer.text for secret in SECRETS), answer.text
    assert answer.headers.get("x-content-type-options") == "nosniff"
    assert not any(name.startswith("access-control-") for name in answer.headers)
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["status"] == answer.status_code
        assert problem["title"]
        assert problem["detail"]
