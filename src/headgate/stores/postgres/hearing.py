"""A thread that hears of slots that come free, for stores of both kinds.

It needs a session of its own, directly with the server. There is one only while somebody waits. Behind PgBouncer in
transaction mode there is none, unless the URL says where (`listen=`), and who waits has to ask now and then.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable

from ...core.errors import HeadgateError, RateLimiterUnavailable
from .connect import connect, say
from .driver import DriverError, Line
from .ears import AGAIN_SECONDS, LINGER_SECONDS, Ear, Ears, Place
from .url import Settings


class Hearing:
    def __init__(self, settings: Settings, timeout_seconds: float) -> None:
        self._settings = settings
        self._timeout_seconds = timeout_seconds
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._ears = Ears(self._settings.schema, self._wake)
        self._mutex = threading.RLock()
        self._session: _Session | None = None

    def hear(self, places: Iterable[Place], heard: Callable[[], None]) -> Ear:
        if self._pid != os.getpid():  # the parent's thread is not here
            self._begin()
        return self._ears.add(places, heard)

    def _wake(self) -> None:
        conninfo = self._settings.listen
        if conninfo is None:
            return
        with self._mutex:
            if self._closed or (self._session is not None and self._session.useless):
                return
            if self._session is None or not self._session.wake():
                self._session = _Session(conninfo, self._ears, self._timeout_seconds)
                self._session.start()

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            session, self._session = self._session, None
        if session is not None and self._pid == os.getpid():
            session.end()


class _Session(threading.Thread):
    def __init__(self, conninfo: str, ears: Ears, timeout_seconds: float) -> None:
        super().__init__(name="headgate-hearing", daemon=True)
        self._conninfo = conninfo
        self._ears = ears
        self._timeout_seconds = timeout_seconds
        self._bell, self._rope = socket.socketpair()  # the thread waits for it and for the server at once
        self._bell.setblocking(False)
        self._mutex = threading.RLock()
        self._over = self._ending = False
        self.useless = False  # there is somebody between us and the server

    def wake(self) -> bool:
        """Something has changed. False: it is over, and hears no more."""
        with self._mutex:
            if not self._over:
                self._rope.send(b"!")
            return not self._over

    def end(self) -> None:
        with self._mutex:
            self._ending = True
            if not self._over:
                self._rope.send(b".")
        self.join(self._timeout_seconds)

    def run(self) -> None:
        try:
            while not self._ending and self._listens():
                self._bell_rings(AGAIN_SECONDS)  # the session was lost
        finally:
            with self._mutex:
                self._over = True
                self._ears.deaf()
            self._bell.close()
            self._rope.close()

    def _listens(self) -> bool:
        """Until the session is lost; False if there is no use in another."""
        try:
            line = connect(self._conninfo, self._deadline(), int(self._timeout_seconds * 1000))
        except RateLimiterUnavailable:
            return len(self._ears) > 0
        except HeadgateError:  # the server does not want us
            return False
        self.useless = not line.direct
        try:
            return line.direct and self._hear(line)
        except (DriverError, HeadgateError):
            return len(self._ears) > 0
        finally:
            self._ears.deaf()
            line.close()

    def _hear(self, line: Line) -> bool:
        say(line, self._ears.listen, self._deadline())
        alone_since = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(line.fd, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            while not self._ending:
                for errand in self._ears.errands():
                    if not isinstance(say(line, errand, self._deadline()), list):
                        return True
                self._ears.tell(line.notices())
                if len(self._ears):
                    alone_since = time.monotonic()
                elif time.monotonic() - alone_since > LINGER_SECONDS:
                    with self._mutex:
                        self._over = not len(self._ears)
                    if self._over:
                        return False
                selector.select(LINGER_SECONDS)
                self._bell_rings(0)
        return False

    def _bell_rings(self, seconds: float) -> None:
        self._bell.settimeout(seconds)
        try:
            self._bell.recv(4096)
        except (BlockingIOError, TimeoutError):
            pass

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_seconds
