"""A relay between clients and a server: it cuts connections, holds back what is sent, and loses replies."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress


class Relay:
    """On a port of its own, for as long as `with` lasts."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._flows = threading.Event()
        self._flows.set()
        self._replies = True
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Relay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.flow()
        self.cut()

    def cut(self) -> None:
        """Every connection, in the middle of whatever it carries."""
        for end in list(self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Nothing goes through, in either direction."""
        self._flows.clear()

    def drop_replies(self) -> None:
        """The server does what it is sent, and nobody hears of it."""
        self._replies = False

    def flow(self) -> None:
        self._replies = True
        self._flows.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._upstream)) as server:
            ends = {client, server}
            self._open |= ends
            try:
                while self._pass_on(client, server):
                    pass
            finally:
                self._open -= ends

    def _pass_on(self, client: socket.socket, server: socket.socket) -> bool:
        for end in select.select([client, server], [], [])[0]:
            data = end.recv(1 << 16)
            self._flows.wait()
            if not data:
                return False
            if end is client:
                server.sendall(data)
            elif self._replies:
                client.sendall(data)
        return True
