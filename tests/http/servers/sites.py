"""The applications under test, each behind its real server, and a client that sends exactly what it is told to."""

from __future__ import annotations

import http.client
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from headgate.testing.servers.process import ServerFailedError, ServerProcess, eventually, free_port

HERE = Path(__file__).parent
TIMEOUT_SECONDS = 30.0
_users = itertools.count()

UVICORN = ["-m", "uvicorn", "--host=127.0.0.1", "--port={port}", "--no-proxy-headers", "--timeout-graceful-shutdown=1"]
UVICORN += ["--ws=wsproto", "--no-access-log"]
GUNICORN = ["-m", "gunicorn", "--bind=127.0.0.1:{port}", "--worker-class=gthread", "--threads=8"]
GUNICORN += ["--graceful-timeout=1"]
WAITRESS = ["-m", "waitress", "--listen=127.0.0.1:{port}", "--threads=8", "--no-clear-untrusted-proxy-headers"]

COMMANDS: dict[str, list[str]] = {
    "starlette": [*UVICORN, "starlette_site:app"],
    "fastapi": [*UVICORN, "fastapi_site:app"],
    "wsgi": [*WAITRESS, "wsgi_site:app"],
    "flask": [*GUNICORN, "flask_site:app"],
    "django": [*WAITRESS, "--call", "django_site:wsgi"],
    "django-asgi": [*UVICORN, "--factory", "django_site:asgi"],
}
ASGI = ["starlette", "fastapi"]


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


def new_user() -> str:
    return f"user-{next(_users)}"


class Site(ServerProcess):
    """An application that answers as soon as this returns. `away_url`: the store of its routes `/away...`."""

    def __init__(self, name: str, away_url: str) -> None:
        super().__init__()
        self.name = name
        self.port = free_port()
        command = [sys.executable, *(word.format(port=self.port) for word in COMMANDS[name])]
        python_path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        home = str(self.folder)  # where a server may leave what it likes
        environment = {"PYTHONPATH": python_path, "HOME": home, "HEADGATE_SITE_AWAY_URL": away_url}
        try:
            self._launch(command, environment)
            eventually(self._answers, f"{name} answers")
        except BaseException as error:
            log = self.log
            self.close()
            raise ServerFailedError(f"{name} did not start, and wrote:\n{log[-4000:]}") from error

    def _answers(self) -> bool:
        if not self.running:
            raise ServerFailedError(f"{self.name} has ended")
        try:
            return self.ask("/hello").status == 200
        except OSError:
            return False

    def connect(self, source: str = "127.0.0.1") -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, TIMEOUT_SECONDS, source_address=(source, 0))

    @contextmanager
    def open(
        self,
        path: str,
        *,
        user: str | None = None,
        method: str = "GET",
        source: str = "127.0.0.1",
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """An answer of which the body is still to come."""
        connection = self.connect(source)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            sent = {"Host": f"127.0.0.1:{self.port}", **({"X-User": user} if user else {}), **(headers or {})}
            if method == "POST":
                sent["Content-Length"] = "0"
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders()
            with connection.getresponse() as response:
                yield response
        finally:
            connection.close()

    def ask(self, path: str, **how: Any) -> Reply:
        with self.open(path, **how) as response:
            body = response.read()
            return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, body)

    def has_waiting(self, key: str) -> bool:
        return (self.folder / f"{key}.waits").exists()

    def let_go(self, key: str) -> None:
        (self.folder / f"{key}.let-go").touch()

    def use_up(self, user: str) -> None:
        for _ in range(3):
            assert self.ask("/limited", user=user).status == 200

    def eventually_passes(self, path: str, user: str) -> None:
        eventually(lambda: self.ask(path, user=user).status < 429, f"{path} of {self.name} passes for {user}")


class Sites:
    """Each is started when the first test asks for it."""

    def __init__(self, away_url: Callable[[], str]) -> None:
        self._away_url = away_url
        self._sites: dict[str, Site] = {}

    def __getitem__(self, name: str) -> Site:
        if name not in self._sites:
            self._sites[name] = Site(name, self._away_url())
        return self._sites[name]

    def close(self) -> None:
        for site in self._sites.values():
            site.stop()
            site.close()
