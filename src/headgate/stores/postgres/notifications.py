"""Notifications for the slot queue (functions/queue.sql): a session that listens on a channel of its own.

It holds a lock as long as it lives, so that others see whether it does. It needs a direct connection: behind PgBouncer
in transaction mode there is none, unless the URL names one (`listen=`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from ...core.errors import RateLimiterUnavailable
from ..notifications import NotificationConnection, ServerNotifications
from .driver import DriverError, PostgresConnection, connect, say
from .exchange import in_schema
from .url import PostgresSettings


class _Channel:
    def __init__(self, connection: PostgresConnection) -> None:
        self._connection = connection
        self.fd = connection.fd

    def received(self) -> Iterable[str]:
        return self._connection.notices()

    def close(self) -> None:
        self._connection.close()


def open_notifications(settings: PostgresSettings, timeout_seconds: float) -> ServerNotifications:
    locks = in_schema("headgate.listener", settings.schema)

    def listen(listener: str) -> NotificationConnection | None:
        if settings.listen is None:
            return None
        deadline = time.monotonic() + timeout_seconds
        connection = connect(settings.listen, deadline, int(timeout_seconds * 1000))
        try:
            if not connection.direct:
                connection.close()
                return None
            for statement in (
                f"SELECT pg_advisory_lock_shared(hashtext('{locks}'), hashtext('{listener}'))",
                f'LISTEN "{listener}"',
            ):
                if not isinstance(reply := say(connection, statement.encode(), deadline), list):
                    raise RateLimiterUnavailable(f"PostgreSQL rejected {statement!r}: {reply}")
        except BaseException:
            connection.close()
            raise
        return _Channel(connection)

    return ServerNotifications(listen, (DriverError,), timeout_seconds)
