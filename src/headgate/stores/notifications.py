"""A thread that learns from the server who is next in a queue for slots, for stores of both kinds.

It has one connection of its own, open only while there are waiters, whatever their number. The server knows it by the
name of its listener. It sends the lease ids of the waiters that should ask again, and notices when the connection ends.
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
from .contract import Ear

LINGER_SECONDS = 10.0  # a connection stays open after the last waiter: the next will come soon
AGAIN_SECONDS = 1.0  # after one was lost
MOST_EARLY = 1024


class Listening(Protocol):
    """A connection that listens. An error of any method means that it is lost."""

    fd: int

    def news(self) -> Iterable[str]:
        """Lease ids that have come in. It does not wait for more."""

    def close(self) -> None: ...


# Listen under a name, or None if that is never possible. RateLimiterUnavailable: not now.
Listen: TypeAlias = "Callable[[str], Listening | None]"


class _Ear:
    def __init__(self, hearing: Hearing, lease_id: str, heard: Callable[[], None]) -> None:
        self._hearing = hearing
        self.lease_id = lease_id
        self.heard = heard

    @property
    def hears(self) -> bool:
        return self._hearing.listener != "" or self._hearing.connecting

    def close(self) -> None:
        self._hearing.forget(self)


class Hearing:
    def __init__(self, listen: Listen, lost: tuple[type[Exception], ...], timeout_seconds: float) -> None:
        """`lost`: what a driver raises when a connection is gone."""
        self._listen = listen
        self._lost = (*lost, OSError, HeadgateError)
        self._timeout_seconds = timeout_seconds
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._mutex = threading.RLock()
        self.ears: dict[str, _Ear] = {}
        self._early: dict[str, None] = {}  # lease ids that were told before their ear was there, the oldest first
        self._session: _Session | None = None

    @property
    def connecting(self) -> bool:
        session = self._session
        return session is not None and session.connecting and self._pid == os.getpid()

    @property
    def listener(self) -> str:
        """The name that the server knows it by; nothing if it does not listen."""
        session = self._session
        return session.listener if session is not None and self._pid == os.getpid() else ""

    def hear(self, lease_id: str, heard: Callable[[], None]) -> Ear:
        if self._pid != os.getpid():  # the parent's thread is not here
            self._begin()
        with self._mutex:
            ear = self.ears[lease_id] = _Ear(self, lease_id, heard)
            useless = self._session is not None and self._session.useless
            if not (self._closed or useless) and (self._session is None or not self._session.wake()):
                self._session = _Session(self, self._listen, self._lost, self._timeout_seconds)
                self._session.start()
            early = lease_id in self._early
            self._early.pop(lease_id, None)
        if early:
            heard()
        return ear

    def forget(self, ear: _Ear) -> None:
        with self._mutex:
            self.ears.pop(ear.lease_id, None)

    def tell(self, lease_ids: Iterable[str]) -> None:
        for lease_id in lease_ids:
            with self._mutex:
                ear = self.ears.get(lease_id)
                if ear is None:  # its answer is on the way, or it is no longer there
                    self._early[lease_id] = None
                    if len(self._early) > MOST_EARLY:
                        del self._early[next(iter(self._early))]
            if ear is not None:
                ear.heard()

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            session, self._session = self._session, None
        if session is not None and self._pid == os.getpid():
            session.end()


class LoopHearing:
    """The same for coroutines: calls waiters in their event loop."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing

    @property
    def listener(self) -> str:
        return self._hearing.listener

    def hear(self, lease_id: str, heard: Callable[[], None]) -> Ear:
        loop = asyncio.get_running_loop()

        def pass_on() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(heard)

        return self._hearing.hear(lease_id, pass_on)


class _Session(threading.Thread):
    def __init__(
        self, hearing: Hearing, listen: Listen, lost: tuple[type[Exception], ...], timeout_seconds: float
    ) -> None:
        super().__init__(name="headgate-hearing", daemon=True)
        self._hearing = hearing
        self._listen = listen
        self._lost = lost
        self._timeout_seconds = timeout_seconds
        self._bell, self._wake_socket = socket.socketpair()  # the thread waits for it and for the server at once
        self._mutex = threading.RLock()
        self._over = self._ending = False
        self.listener = ""
        self.connecting = True  # for the first time
        self.useless = False  # the server cannot send us anything

    def wake(self) -> bool:
        """False: it is over, and hears no more."""
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
            while not self._ending and self._listens():
                self._bell.settimeout(AGAIN_SECONDS)  # the connection was lost
                with suppress(TimeoutError):
                    self._bell.recv(1)
        finally:
            with self._mutex:
                self._over = True
            self._bell.close()
            self._wake_socket.close()

    def _listens(self) -> bool:
        """Until the connection is lost; False if there is no use in another."""
        try:
            name = token_hex(8)
            listening = self._listen(name)
        except RateLimiterUnavailable:
            self._changed("")
            return len(self._hearing.ears) > 0
        except self._lost:  # the server does not want us
            listening = None
        if listening is None:
            self.useless = True
            self._changed("")
            return False
        try:
            self._changed(name)
            return self._hear(listening)
        except self._lost:
            return len(self._hearing.ears) > 0
        finally:
            self._changed("")
            with suppress(*self._lost):
                listening.close()

    def _changed(self, listener: str) -> None:
        """All ask again: what came free before was not heard of, and the server has to know by whom to tell them."""
        self.listener, self.connecting = listener, False
        self._hearing.tell(list(self._hearing.ears))

    def _hear(self, listening: Listening) -> bool:
        alone_since = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(listening.fd, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            while not self._ending:
                self._hearing.tell(listening.news())
                if self._hearing.ears:
                    alone_since = time.monotonic()
                elif time.monotonic() - alone_since > LINGER_SECONDS:
                    with self._mutex:
                        self._over = not self._hearing.ears
                    if self._over:
                        return False
                selector.select(LINGER_SECONDS)
        return False
