"""A thread that receives a server's notifications for waiters in a slot queue, for stores of both kinds.

It has one connection of its own, open only while there are waiters, however many. The server knows it by its listener
name, sends it the lease ids of the waiters that should ask again, and notices when the connection ends.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from secrets import token_hex
from typing import Protocol, TypeAlias

from ..core.errors import HeadgateError, RateLimiterUnavailable
from .contract import Subscription

LINGER_SECONDS = 10.0  # a connection stays open after the last waiter: the next will come soon
RECONNECT_SECONDS = 1.0
MOST_EARLY = 1024


class NotificationConnection(Protocol):
    """An error of any method means that the connection is lost."""

    fd: int

    def received(self) -> Iterable[str]:
        """The lease ids that have come in. It does not wait for more."""

    def close(self) -> None: ...


# Listen under a name, or return None if that is never possible. RateLimiterUnavailable: not now.
Listen: TypeAlias = "Callable[[str], NotificationConnection | None]"


class _Waiter:
    def __init__(self, notifications: ServerNotifications, lease_id: str, notify: Callable[[], None]) -> None:
        self._notifications = notifications
        self.lease_id = lease_id
        self.notify = notify

    @property
    def active(self) -> bool:
        return self._notifications.listener != "" or self._notifications.connecting

    def close(self) -> None:
        self._notifications.unsubscribe(self)


class ServerNotifications:
    def __init__(self, listen: Listen, lost: tuple[type[Exception], ...], timeout_seconds: float) -> None:
        """`lost`: what a driver raises when a connection is gone."""
        self._listen = listen
        self._lost = (*lost, OSError, HeadgateError)
        self._timeout_seconds = timeout_seconds
        self._closed = False
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._mutex = threading.RLock()
        self.waiters: dict[str, _Waiter] = {}
        self._early: dict[str, None] = {}  # lease ids notified before their waiter subscribed, the oldest first
        self._thread: _Receiver | None = None

    @property
    def connecting(self) -> bool:
        thread = self._thread
        return thread is not None and thread.connecting and self._pid == os.getpid()

    @property
    def listener(self) -> str:
        """The name that the server knows it by; empty if it does not listen."""
        thread = self._thread
        return thread.listener if thread is not None and self._pid == os.getpid() else ""

    def subscribe(self, lease_id: str, notify: Callable[[], None]) -> Subscription:
        if self._pid != os.getpid():  # the parent's thread is not here
            self._start()
        with self._mutex:
            waiter = self.waiters[lease_id] = _Waiter(self, lease_id, notify)
            unsupported = self._thread is not None and self._thread.unsupported
            if not (self._closed or unsupported) and (self._thread is None or not self._thread.running()):
                self._thread = _Receiver(self, self._listen, self._lost, self._timeout_seconds)
                self._thread.start()
            early = lease_id in self._early
            self._early.pop(lease_id, None)
        if early:
            notify()
        return waiter

    def unsubscribe(self, waiter: _Waiter) -> None:
        with self._mutex:
            self.waiters.pop(waiter.lease_id, None)

    def notify(self, lease_ids: Iterable[str]) -> None:
        for lease_id in lease_ids:
            with self._mutex:
                waiter = self.waiters.get(lease_id)
                if waiter is None:  # its answer is on the way, or it has left
                    self._early[lease_id] = None
                    if len(self._early) > MOST_EARLY:
                        del self._early[next(iter(self._early))]
            if waiter is not None:
                waiter.notify()

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            thread.end()


class LoopNotifications:
    """The same for coroutines: it notifies waiters in their event loop."""

    def __init__(self, notifications: ServerNotifications) -> None:
        self._notifications = notifications

    @property
    def listener(self) -> str:
        return self._notifications.listener

    def subscribe(self, lease_id: str, notify: Callable[[], None]) -> Subscription:
        loop = asyncio.get_running_loop()

        def pass_on() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(notify)

        return self._notifications.subscribe(lease_id, pass_on)


class _Receiver(threading.Thread):
    def __init__(
        self,
        notifications: ServerNotifications,
        listen: Listen,
        lost: tuple[type[Exception], ...],
        timeout_seconds: float,
    ) -> None:
        super().__init__(name="headgate-notifications", daemon=True)
        self._notifications = notifications
        self._listen = listen
        self._lost = lost
        self._timeout_seconds = timeout_seconds
        self._bell, self._wake_socket = socket.socketpair()  # the thread waits for it and for the server at once
        self._mutex = threading.RLock()
        self._over = self._ending = False
        self.listener = ""
        self.connecting = True  # for the first time
        self.unsupported = False  # the server cannot send us anything

    def running(self) -> bool:
        """False: it has ended, and receives nothing more."""
        with self._mutex:
            return not self._over

    def end(self) -> None:
        with self._mutex:
            self._ending = True
            if not self._over:
                self._wake_socket.send(b".")
        self.join(self._timeout_seconds)

    def run(self) -> None:
        try:
            while not self._ending and self._connect():
                self._bell.settimeout(RECONNECT_SECONDS)  # the connection was lost
                with suppress(TimeoutError):
                    self._bell.recv(1)
        finally:
            with self._mutex:
                self._over = True
            self._bell.close()
            self._wake_socket.close()

    def _connect(self) -> bool:
        """Receive until the connection is lost. Returns whether to connect again."""
        try:
            name = token_hex(8)
            connection = self._listen(name)
        except RateLimiterUnavailable:
            self._changed("")
            return len(self._notifications.waiters) > 0
        except self._lost:  # the server rejects us
            connection = None
        if connection is None:
            self.unsupported = True
            self._changed("")
            return False
        try:
            self._changed(name)
            return self._receive(connection)
        except self._lost:
            return len(self._notifications.waiters) > 0
        finally:
            self._changed("")
            with suppress(*self._lost):
                connection.close()

    def _changed(self, listener: str) -> None:
        """All waiters ask again: earlier notifications were missed, and the server has to know the new listener."""
        self.listener, self.connecting = listener, False
        self._notifications.notify(list(self._notifications.waiters))

    def _receive(self, connection: NotificationConnection) -> bool:
        alone_since = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fd, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            while not self._ending:
                self._notifications.notify(connection.received())
                if self._notifications.waiters:
                    alone_since = time.monotonic()
                elif time.monotonic() - alone_since > LINGER_SECONDS:
                    with self._mutex:
                        self._over = not self._notifications.waiters
                    if self._over:
                        return False
                selector.select(LINGER_SECONDS)
        return False
