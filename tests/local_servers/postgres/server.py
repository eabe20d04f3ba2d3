"""One PostgreSQL server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from headgate.testing.servers.process import (
    PATIENCE_SECONDS,
    NotInstalledError,
    ServerFailedError,
    ServerProcess,
    free_port,
)

from .user import as_server_user, hand_over

USER = "headgate"
_ATTEMPTS = 10


def postgres_folder() -> Path:
    """Where initdb and postgres are: what HEADGATE_POSTGRES names, the path, or the newest of Debian's; else
    NotInstalledError."""
    named = os.environ.get("HEADGATE_POSTGRES")
    found = shutil.which("initdb")
    folders = [Path(named)] if named else [Path(found).resolve().parent] if found else []
    if not named:
        versions = sorted(Path("/usr/lib/postgresql").glob("[0-9]*"), key=lambda path: int(path.name), reverse=True)
        folders += [version / "bin" for version in versions]
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    if named:
        raise NotInstalledError(f"HEADGATE_POSTGRES names {named!r}, and there is no initdb: correct or unset it")
    raise NotInstalledError("postgresql is not installed: apt-get install postgresql, or brew install postgresql")


_NOT_GONE = "pre-existing shared memory block"  # a process of the killed one is still about to end


class PostgresServer(ServerProcess):
    """A PostgreSQL server that answers as soon as this returns, on a free port of 127.0.0.1.

    `options` are lines of postgresql.conf, such as `{"max_connections": "20"}`. It survives `kill()` with all that was
    committed; not the machine's crash, unless `fsync` is on.
    """

    def __init__(self, *, options: Mapping[str, str] | None = None, fsync: bool = False) -> None:
        self._programs = postgres_folder()
        super().__init__()
        try:
            self._options = {"fsync": "on" if fsync else "off", **(options or {})}
            hand_over(self.folder)
            self._initdb()
            self._start_on_free_port()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return self.url_of(USER)

    def url_of(self, role: str, port: int | None = None) -> str:
        return f"postgresql://{role}@127.0.0.1:{port or self.port}/postgres"

    def connect(self, **settings: Any) -> psycopg.Connection[Any]:
        """A connection for whoever administers the server."""
        return psycopg.connect(self.url, autocommit=True, **settings)

    def execute(self, query: str, *parameters: Any) -> list[Any]:
        """The rows that one statement returns, if it returns any."""
        with self.connect() as connection:
            cursor = connection.execute(query.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        """Start a server that was stopped or killed: on the same port, with all that was committed."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        written = len(self.log)
        command = (str(self._programs / "postgres"), "-D", str(self.folder / "data"))
        self._launch(as_server_user(*command), {})
        while not self._answers():
            if not self.running and _NOT_GONE in self.log[written:] and time.monotonic() < deadline:
                written = len(self.log)
                self._launch(as_server_user(*command), {})
            elif not self.running or time.monotonic() > deadline:
                self.kill()
                raise ServerFailedError(f"postgres did not start, and wrote:\n{self.log[written:][-2000:]}")
            time.sleep(0.01)

    def kill(self) -> None:
        """End it at once, as a crash would: the server, and all processes it has started (SIGKILL)."""
        pids = self._children()
        super().kill()
        for pid in pids:
            _signal(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End it in an orderly way, whoever is connected (SIGINT)."""
        self._end(signal.SIGINT)

    def pause(self) -> None:
        """From now on nothing is answered (SIGSTOP)."""
        super().pause()
        for pid in self._children():
            _signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self._children():
            _signal(pid, signal.SIGCONT)
        super().resume()

    def _children(self) -> list[int]:
        """Each connection is a process of its own, and the leader of its group."""
        if not self.running:
            return []
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        pairs = (line.split() for line in listed.splitlines())
        return [int(pid) for pid, parent in pairs if int(parent) == self.pid]

    def _answers(self) -> bool:
        try:
            self.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    def _initdb(self) -> None:
        command = [str(self._programs / "initdb"), "-D", str(self.folder / "data"), "-U", USER, "-A", "trust"]
        command += ["-E", "UTF8", "--locale", "C", "--no-sync"]
        done = subprocess.run(as_server_user(*command), capture_output=True, text=True, cwd=self.folder)
        if done.returncode:
            raise ServerFailedError(f"initdb failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")

    def _start_on_free_port(self) -> None:
        for attempt in range(_ATTEMPTS):
            self.port = free_port()
            lines = {
                "listen_addresses": "'127.0.0.1'",
                "port": str(self.port),
                "unix_socket_directories": "''",
                "shared_buffers": "32MB",
                "lc_messages": "'C'",
                **self._options,
            }
            configuration = "".join(f"{name} = {value}\n" for name, value in lines.items())
            (self.folder / "data" / "postgresql.auto.conf").write_text(configuration)
            try:
                self.start()
                return
            except ServerFailedError as error:
                # Somebody may take the port between the look and the server.
                if attempt == _ATTEMPTS - 1 or "Address already in use" not in str(error):
                    raise


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
