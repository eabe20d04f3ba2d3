"""psycopg for both transports: libpq's connections without their own waiting, and what their results mean.

psycopg's pools and cursors are not used. A pool connects in the background, so that a call could not say why the server
is unavailable; it belongs to one event loop, and does not survive a fork. A cursor has no deadline, and it converts
values, which numbers and keys do not need.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING

from ...core.errors import RateLimiterUnavailable, StoreRefused, ValidationError
from ..server import Lost
from .exchange import ErrorResponse, Reply, Row, Statement

try:
    from psycopg import Error, OperationalError, conninfo, pq
except ImportError as error:
    raise ValidationError("a PostgreSQL store needs psycopg: pip install 'headgate[postgres]'") from error

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

DriverError = Error

_FAREWELLS = ("57P", "08")  # the server says it, and hangs up
_UNUSABLE = (
    "authentication failed",
    "does not exist",
    "no pg_hba.conf entry",
    "no such database",
    "no such user",
    "no password supplied",
    "is not permitted to log in",
    "permission denied for database",
    "server does not support SSL",
    "invalid ",
)


def check_conninfo(url: str) -> str | None:
    """Why libpq cannot parse it; None if it can."""
    try:
        conninfo.conninfo_to_dict(url)
    except Error as error:
        return str(error).strip()
    return None


def host_names(url: str) -> list[str]:
    """Hosts that need a lookup: neither addresses nor sockets, and without `hostaddr`."""
    found = conninfo.conninfo_to_dict(url)
    hosts = str(found.get("host") or "").split(",")
    if found.get("hostaddr"):
        return []
    return [host for host in hosts if host and not host.startswith(("/", "@")) and not _is_address(host)]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def with_addresses(url: str, found: Mapping[str, Sequence[str]]) -> str:
    """The same conninfo with the addresses of each host."""
    given = conninfo.conninfo_to_dict(url)
    hosts = str(given["host"]).split(",")
    ports = str(given.get("port") or "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    if len(ports) != len(hosts) or any(host.startswith(("/", "@")) for host in hosts):
        return url  # libpq reports the mistake, or sockets are among them
    places = [(host, address, port) for host, port in zip(hosts, ports) for address in found.get(host, [host])]
    names, addresses, chosen = (",".join(part) for part in zip(*places))
    return conninfo.make_conninfo("", **{**given, "host": names, "hostaddr": addresses, "port": chosen or None})


class PostgresConnection:
    """A connection. No method blocks: the caller waits for the socket."""

    def __init__(self, url: str) -> None:
        self.libpq: PGconn = pq.PGconn.connect_start(url.encode())
        self.fd = -1
        self.prepared: set[bytes] = set()
        self.direct = False  # its session is not shared, as it is behind PgBouncer
        self.results: list[PGresult] = []

    def connects(self) -> str | None:
        """What to wait for, "read" or "write"; None when it is connected. Raises if it cannot be."""
        status = self.libpq.status
        if status != pq.ConnStatus.BAD:
            step = self.libpq.connect_poll() if self.fd >= 0 else pq.PollingStatus.WRITING
            if step == pq.PollingStatus.OK:
                self.libpq.nonblocking = 1
                return None
            if step != pq.PollingStatus.FAILED:
                self.fd = self.libpq.socket
                return "read" if step == pq.PollingStatus.READING else "write"
        why = self.why
        self.close()
        if any(words in why for words in _UNUSABLE):
            raise StoreRefused(f"PostgreSQL rejected the connection: {why}; correct the URL, or the server")
        raise RateLimiterUnavailable(f"PostgreSQL cannot be reached: {why}")

    def greetings(self, timeout_ms: int) -> Iterator[None]:
        """The first statements. At each step, receive the whole reply."""
        self.say(b"SELECT pg_backend_pid()")
        yield
        reply = self.reply()
        if not isinstance(reply, list):
            raise RateLimiterUnavailable(f"PostgreSQL cannot be reached: {reply}")
        self.direct = number_in(reply) == self.libpq.backend_pid
        if self.direct:  # a call that gives up leaves nothing waiting in the server
            self.say(b"SET statement_timeout = %d" % timeout_ms)
            yield

    @property
    def why(self) -> str:
        return " ".join(self.libpq.get_error_message().split())

    def say(self, sql: bytes) -> None:
        self.results = []
        self.libpq.send_query(sql)

    def prepare(self, statement: Statement) -> None:
        self.results = []
        self.libpq.send_prepare(statement.name, statement.sql)

    def send(self, statement: Statement, parameters: Sequence[bytes | None], *, prepared: bool) -> None:
        self.results = []
        if prepared:
            self.libpq.send_query_prepared(statement.name, parameters)
        elif statement.script:
            self.say(statement.sql)
        else:
            self.libpq.send_query_params(statement.sql, parameters)

    def flushed(self) -> bool:
        return self.libpq.flush() == 0

    def received(self) -> bool:
        """Whether the whole reply has been read. Call it when the socket is readable."""
        self.libpq.consume_input()
        while not self.libpq.is_busy():
            result = self.libpq.get_result()
            if result is None:
                return True
            self.results.append(result)
        return False

    def enter_pipeline(self) -> None:
        """From now on several calls may be in progress."""
        self.results = []
        self.libpq.enter_pipeline_mode()

    def exit_pipeline(self) -> None:
        self.libpq.exit_pipeline_mode()

    def send_next(self, statement: Statement, parameters: Sequence[bytes | None]) -> None:
        """One more call, in a transaction of its own."""
        if statement.name not in self.prepared:
            self.libpq.send_prepare(statement.name, statement.sql)
        self.libpq.send_query_prepared(statement.name, parameters)
        self.libpq.pipeline_sync()

    def received_next(self) -> bool:
        """Whether the whole reply to the oldest call in the pipeline has been read."""
        while not self.libpq.is_busy():
            result = self.libpq.get_result()
            if result is None:
                if self.libpq.status == pq.ConnStatus.BAD:
                    raise OperationalError(self.why)
            elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                return True
            else:
                self.results.append(result)
        return False

    def reply(self) -> Reply:
        """The reply, once all of it is received."""
        results, self.results = self.results, []
        if not results:
            return Lost("closed the connection", sent=True)
        result = results[0 if results[-1].status == pq.ExecStatus.PIPELINE_ABORTED else -1]
        if result.status == pq.ExecStatus.TUPLES_OK:
            columns = range(result.nfields)
            return [tuple(result.get_value(row, column) for column in columns) for row in range(result.ntuples)]
        if result.status == pq.ExecStatus.COMMAND_OK:
            return []
        return self._error(result)

    def _error(self, result: PGresult) -> Reply:
        code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
        if not code or code.startswith(_FAREWELLS) or self.libpq.status == pq.ConnStatus.BAD:
            return Lost(f"closed the connection: {text or self.why}", sent=True)
        return ErrorResponse(code, text)

    @property
    def usable(self) -> bool:
        return self.libpq.status == pq.ConnStatus.OK and self.libpq.transaction_status == pq.TransactionStatus.IDLE

    def notices(self) -> list[str]:
        """The notifications since the last call."""
        self.libpq.consume_input()
        found = []
        while (notice := self.libpq.notifies()) is not None:
            found.append(notice.extra.decode())
        return found

    def close(self) -> None:
        self.libpq.finish()


def number_in(rows: list[Row]) -> int:
    ((value,),) = rows
    assert value is not None
    return int(value)


if hasattr(select, "poll"):

    def wait_for(fd: int, seconds: float, *, write: bool = False) -> bool:
        """Whether the socket becomes readable, or writable, within so many seconds."""
        poll = select.poll()
        poll.register(fd, select.POLLOUT if write else select.POLLIN)
        return bool(poll.poll(seconds * 1000))

else:

    def wait_for(fd: int, seconds: float, *, write: bool = False) -> bool:
        found = select.select([] if write else [fd], [fd] if write else [], [], seconds)
        return bool(found[0] or found[1])


def connect(conninfo: str, deadline: float, timeout_ms: int) -> PostgresConnection:
    """Connect, and wait for it. `timeout_ms`: how long a statement may take in the server."""
    connection = PostgresConnection(conninfo)
    try:
        while (what := connection.connects()) is not None:
            _wait(connection, deadline, write=what == "write")
        for _ in connection.greetings(timeout_ms):
            _receive_all(connection, deadline)
    except DriverError as error:
        connection.close()
        raise RateLimiterUnavailable(f"PostgreSQL cannot be reached: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def say(connection: PostgresConnection, sql: bytes, deadline: float) -> Reply:
    connection.say(sql)
    _receive_all(connection, deadline)
    return connection.reply()


def _receive_all(connection: PostgresConnection, deadline: float) -> None:
    while True:
        _wait(connection, deadline)
        if connection.received():
            return


def _wait(connection: PostgresConnection, deadline: float, *, write: bool = False) -> None:
    if not wait_for(connection.fd, max(0.0, deadline - time.monotonic()), write=write):
        raise RateLimiterUnavailable("PostgreSQL cannot be reached in time")
