"""Real PostgreSQL servers, and PgBouncer before one."""

from headgate.testing.servers.process import NotInstalledError, ServerFailedError

from .bouncer import PgBouncer
from .server import PostgresServer, postgres_folder

__all__ = ["NotInstalledError", "PgBouncer", "PostgresServer", "ServerFailedError", "postgres_folder"]
