"""What the engines have in common: they are processes that answer over HTTP."""

from __future__ import annotations

import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from headgate.testing.servers.process import PATIENCE_SECONDS, ServerFailedError, ServerProcess, free_port

from .endpoint import Endpoint

_ATTEMPTS = 10


class Engine(Endpoint, ServerProcess):
    """An engine that answers as soon as this returns, on a free port of 127.0.0.1. Its tables are lost with it."""

    name: str
    _path = "/"  # where it answers without being asked for anything

    def __init__(self, *, folder: Path | str | None = None) -> None:
        self.find()
        super().__init__(folder)
        try:
            self._start_on_a_free_port()
        except BaseException:
            self.close()
            raise

    @classmethod
    def find(cls) -> Path:
        """Where its program is, or NotInstalledError."""
        raise NotImplementedError

    def start(self) -> None:
        """Start one that was stopped or killed: on the same port, and empty. Returns when it answers."""
        if not self.running and self._answers():
            raise ServerFailedError(f"port {self.port} is already in use: another's engine answers there")
        written = len(self.log)
        self._launch(self._command(), self._environment())
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._answers():
            if not self.running or time.monotonic() > deadline:
                self.kill()
                raise ServerFailedError(f"{self.name} did not start, and wrote:\n{self.log[written:][-2000:]}")
            time.sleep(0.005)

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        return {}

    def _answers(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=1)
        try:
            connection.request("GET", self._path)
            connection.getresponse().read()
        except (HTTPException, OSError):
            return False
        finally:
            connection.close()
        return True

    def _start_on_a_free_port(self) -> None:
        for attempt in range(_ATTEMPTS):
            self.port = free_port()
            try:
                self.start()
                return
            except ServerFailedError as error:
                # Somebody may take the port between the look and the engine.
                if attempt == _ATTEMPTS - 1 or "already in use" not in str(error):
                    raise
