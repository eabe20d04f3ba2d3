"""PgBouncer before a PostgreSQL server, in transaction mode: a connection to it is not one to the server."""

from __future__ import annotations

import time
from collections.abc import Mapping

import psycopg

from headgate.testing.servers.process import PATIENCE_SECONDS, ServerFailedError, ServerProcess, free_port, installed

from .server import USER, PostgresServer
from .user import as_server_user, hand_over


def pgbouncer_binary() -> str:
    return installed("pgbouncer", "apt-get install pgbouncer, or brew install pgbouncer")


class PgBouncer(ServerProcess):
    """It answers as soon as this returns. `options` are lines of pgbouncer.ini."""

    def __init__(self, server: PostgresServer, *, options: Mapping[str, str] | None = None) -> None:
        self._binary = pgbouncer_binary()
        super().__init__()
        try:
            self.port = free_port()
            hand_over(self.folder)
            self._server = server
            lines = {
                "listen_addr": "127.0.0.1",
                "listen_port": str(self.port),
                "unix_socket_dir": "",
                "auth_type": "any",
                "pool_mode": "transaction",
                "default_pool_size": "5",
                "max_client_conn": "200",
                **(options or {}),
            }
            target = f"host=127.0.0.1 port={server.port} dbname=postgres user={USER}"
            configuration = f"[databases]\npostgres = {target}\n[pgbouncer]\n"
            configuration += "".join(f"{name} = {value}\n" for name, value in lines.items())
            (self.folder / "pgbouncer.ini").write_text(configuration)
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return self._server.url_of(USER, self.port)

    def start(self) -> None:
        self._launch(as_server_user(self._binary, str(self.folder / "pgbouncer.ini")), {})
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._answers():
            if not self.running or time.monotonic() > deadline:
                self.kill()
                raise ServerFailedError(f"pgbouncer did not start, and wrote:\n{self.log[-2000:]}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as connection:
                connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True
