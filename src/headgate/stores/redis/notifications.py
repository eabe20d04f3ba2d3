"""Notifications for the slot queue (queue.lua): a subscription to the channel of a listener.

A cluster has none: its nodes count only their own subscribers, and would consider the others dead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from redis import connection as redis_connection
from redis import exceptions

from ...core.errors import RateLimiterUnavailable
from ..notifications import NotificationConnection, ServerNotifications
from .driver import connection, pack_command
from .url import Address, RedisSettings


class _Channel:
    def __init__(self, connected: Any, listener: str) -> None:
        self._connected = connected
        connected.send_packed_command((pack_command(("SUBSCRIBE", f"headgate:{listener}")),), check_health=False)
        connected.read_response()
        self.fd = connected._sock.fileno()

    def received(self) -> Iterator[str]:
        while self._connected.can_read(timeout=0):
            what, _, lease_id = self._connected.read_response()
            if what == b"message":
                yield lease_id.decode()

    def close(self) -> None:
        self._connected.disconnect()


def open_notifications(
    settings: RedisSettings, primary: Callable[[], Address | None], timeout_seconds: float
) -> ServerNotifications:
    """`primary`: where the queues are; None while that is unknown."""

    def listen(listener: str) -> NotificationConnection | None:
        if settings.topology == "cluster":
            return None
        address = primary()
        if address is None:
            raise RateLimiterUnavailable("the primary is not known")
        timeouts = {"socket_connect_timeout": timeout_seconds, "socket_timeout": timeout_seconds}
        made = connection(redis_connection, settings, address, to_sentinel=False, **timeouts)
        try:
            made.connect()
            return _Channel(made, listener)
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            made.disconnect()
            raise RateLimiterUnavailable(f"Redis cannot be reached: {error}") from error
        except BaseException:
            made.disconnect()
            raise

    return ServerNotifications(listen, (exceptions.RedisError,), timeout_seconds)
