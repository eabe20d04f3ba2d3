"""One Redis server."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError
from redis.retry import Retry

from ..process import PATIENCE_SECONDS, NotInstalledError, ServerFailedError, ServerProcess, free_port
from .certificate import make_certificate
from .clock import SteppedClock

_ATTEMPTS = 10


def redis_server_binary() -> str:
    """Where redis-server is, or valkey-server, or what HEADGATE_REDIS_SERVER names; else NotInstalledError."""
    named = os.environ.get("HEADGATE_REDIS_SERVER")
    for name in [named] if named else ["redis-server", "valkey-server"]:
        path = shutil.which(name)
        if path is not None:
            return path
    if named:
        raise NotInstalledError(f"HEADGATE_REDIS_SERVER names {named!r}, and that is no program: correct or unset it")
    raise NotInstalledError("redis-server is not installed: apt-get install redis-server, or brew install redis")


class RedisServer(ServerProcess):
    """A Redis server that answers as soon as this returns, on a free port of 127.0.0.1 and on a unix socket.

    `options` are lines of redis.conf, such as `{"maxmemory": "1mb"}`. What it holds is lost with the process, unless
    `persistent`: then every write is on the disk before it is answered. `tls` opens a second port, for `tls_url`.
    `faketime` makes `step_clock` work.
    """

    def __init__(
        self,
        *,
        options: Mapping[str, str] | None = None,
        tls: bool = False,
        faketime: bool = False,
        persistent: bool = False,
        folder: Path | str | None = None,
    ) -> None:
        self._binary = redis_server_binary()
        super().__init__(folder)
        try:
            self._options = dict(options or {})
            self._persistent = persistent
            self._clock = SteppedClock(self.folder / "clock") if faketime else None
            self._tls = tls
            if tls:
                make_certificate(self.folder)
            self._start_on_free_ports()
        except BaseException:
            self.close()
            raise

    @property
    def socket(self) -> Path:
        return self.folder / "redis.sock"

    @property
    def url(self) -> str:
        return f"redis://{self._login}127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        return f"redis+unix://{self._login}{self.socket}?db=0"

    @property
    def tls_url(self) -> str:
        if not self._tls:
            raise ValueError("this server has no certificate: start it with tls=True")
        return f"rediss://{self._login}localhost:{self.tls_port}/0?ssl_ca_certs={self.folder}/ca.crt"

    @property
    def _login(self) -> str:
        password = self._options.get("requirepass")
        return f":{password}@" if password else ""

    def client(self, **settings: Any) -> Redis:
        """A client for whoever administers the server: on the unix socket, answers as text, no retries."""
        standard = {
            "unix_socket_path": str(self.socket),
            "password": self._options.get("requirepass"),
            "decode_responses": True,
            "protocol": 2,
            "socket_timeout": PATIENCE_SECONDS,
            "retry": Retry(NoBackoff(), 0),
        }
        return Redis(**{**standard, **settings})

    def command(self, *words: str | int) -> Any:
        """The answer to one command."""
        with self.client() as client:
            return client.execute_command(*words)

    def info(self, section: str) -> dict[str, Any]:
        found: dict[str, Any] = self.command("INFO", section)
        return found

    def start(self) -> None:
        """Start a server that was stopped or killed: on the same port, in the same folder, with what was kept there.

        Returns when it answers, be it that it is still loading its data.
        """
        written = len(self.log)
        self._launch(self._command(), self._clock.environment if self._clock else {})
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._answers():
            if not self.running or time.monotonic() > deadline:
                self.kill()
                raise ServerFailedError(f"{self._binary} did not start, and wrote:\n{self.log[written:][-2000:]}")
            time.sleep(0.005)

    def step_clock(self, seconds: float) -> None:
        """Move the server's time of day, backwards if negative; its timers go on as before."""
        if self._clock is None:
            raise ValueError("this server runs on the real clock: start it with faketime=True")
        self._clock.step(seconds)

    def _answers(self) -> bool:
        # The socket is opened last and belongs to this server alone. On the port, another's might answer.
        try:
            self.command("PING")
        except BusyLoadingError:
            return True
        except (RedisError, OSError):
            return False
        return True

    def _start_on_free_ports(self) -> None:
        for attempt in range(_ATTEMPTS):
            self.port, self.tls_port = free_port(), free_port()
            (self.folder / "redis.conf").write_text(self._configuration())
            try:
                self.start()
                return
            except ServerFailedError as error:
                # Somebody may take a port between the look and the server.
                if attempt == _ATTEMPTS - 1 or "Address already in use" not in str(error):
                    raise

    def _command(self) -> list[str]:
        return [self._binary, str(self.folder / "redis.conf")]

    def _configuration(self) -> str:
        lines = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "unixsocket": f'"{self.socket}"',
            "dir": f'"{self.folder}"',
            "save": '""',
            "appendonly": "yes" if self._persistent else "no",
            "appendfsync": "always",
            # A replica is served at once, not after five seconds in which others might ask too, and counts in a
            # cluster once its master has told it anything, be it a ping.
            "repl-diskless-sync-delay": "0",
            "repl-ping-replica-period": "1",
        }
        if self._tls:
            lines["tls-port"] = str(self.tls_port)
            lines["tls-cert-file"] = f'"{self.folder}/server.crt"'
            lines["tls-key-file"] = f'"{self.folder}/server.key"'
            lines["tls-ca-cert-file"] = f'"{self.folder}/ca.crt"'
            lines["tls-auth-clients"] = "no"
        return "".join(f"{name} {value}\n" for name, value in {**lines, **self._options}.items())
