"""A relay before a server that holds back whole replies, so that a test decides which call is answered, and when."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import hiredis
from fault_helpers import PATIENCE_SECONDS


def redis_reply(data: bytes) -> int:
    """How long the first reply is; 0 if it is not complete."""
    reader = hiredis.Reader()
    for length in range(1, len(data) + 1):
        reader.feed(data[length - 1 : length])
        if reader.gets() is not False:
            return length
    return 0


def postgres_reply(data: bytes) -> int:
    """To the message that says that the server is ready for the next query."""
    at = 0
    while at + 5 <= len(data):
        end = at + 1 + int.from_bytes(data[at + 1 : at + 5], "big")
        if data[at : at + 1] == b"Z" and end <= len(data):
            return end
        at = end
    return 0


def http_reply(data: bytes) -> int:
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return 0
    (length,) = [int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length:")]
    return len(head) + 4 + length if len(body) >= length else 0


class ReplyRelay:
    """On a port of its own, for as long as `with` lasts. The server gets everything at once."""

    def __init__(self, port: int, length: Callable[[bytes], int]) -> None:
        self._upstream = port
        self._length = length
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._changed = threading.Condition()
        self._refuses = False
        self._held_back: set[socket.socket] = set()
        self._held: deque[tuple[socket.socket, bytes]] = deque()
        self._open: set[socket.socket] = set()

    def __enter__(self) -> ReplyRelay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def hold(self) -> None:
        """From now on replies stay here, but for those on new connections."""
        with self._changed:
            self._held_back = set(self._open)

    async def held(self, count: int) -> None:
        """Wait until the server has answered so many calls whose replies are here."""

        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(lambda: len(self._held) >= count, PATIENCE_SECONDS)

        assert await asyncio.to_thread(wait), f"{len(self._held)} replies instead of {count}"

    def release(self, count: int = 1, part: float = 1.0) -> None:
        """The oldest replies, or the first part of the bytes of each."""
        with self._changed:
            for _ in range(min(count, len(self._held))):
                client, reply = self._held.popleft()
                with suppress(OSError):
                    client.sendall(reply[: int(len(reply) * part)])

    def flow(self) -> None:
        with self._changed:
            self._refuses = False
            self._held_back.clear()
            self.release(len(self._held))

    def cut(self, *, refuse: bool = False) -> None:
        """Every connection, and what is held back is lost. With `refuse` new ones end at once, until `flow`."""
        with self._changed:
            self._refuses = refuse
            self._held_back.clear()
            self._held.clear()
            for end in self._open:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

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
            with self._changed:
                if self._refuses:
                    return
                self._open |= ends
            received = bytearray()
            try:
                while self._pass_on(client, server, received):
                    pass
            finally:
                with self._changed:
                    self._open -= ends

    def _pass_on(self, client: socket.socket, server: socket.socket, received: bytearray) -> bool:
        for end in select.select([client, server], [], [])[0]:
            data = end.recv(1 << 16)
            if not data:
                return False
            if end is client:
                server.sendall(data)
                continue
            with self._changed:
                if client not in self._held_back:
                    client.sendall(received + data)
                    received.clear()
                    continue
                received += data
                while length := self._length(bytes(received)):
                    self._held.append((client, bytes(received[:length])))
                    del received[:length]
                self._changed.notify_all()
        return True
