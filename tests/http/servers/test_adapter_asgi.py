"""What only ASGI has: websockets and lifespans. The middleware leaves both alone."""

from __future__ import annotations

import socket

from sites import TIMEOUT_SECONDS, Site
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Event, Request, TextMessage


class WebSocket:
    def __init__(self, site: Site, path: str, user: str) -> None:
        self._protocol = WSConnection(ConnectionType.CLIENT)
        self._socket = socket.create_connection(("127.0.0.1", site.port), TIMEOUT_SECONDS)
        self.send(Request(host="127.0.0.1", target=path, extra_headers=[(b"x-user", user.encode())]))

    def __enter__(self) -> WebSocket:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def send(self, event: Event) -> None:
        self._socket.sendall(self._protocol.send(event))

    def receive(self) -> Event:
        for _ in range(10):
            for event in self._protocol.events():
                return event
            self._protocol.receive_data(self._socket.recv(65536))
        raise AssertionError("nothing came")


def test_websockets_pass_and_do_not_count(asgi_site: Site, user: str) -> None:
    for _ in range(5):
        with WebSocket(asgi_site, "/limited", user) as websocket:
            assert isinstance(websocket.receive(), AcceptConnection)
            for text in ("one", "two"):
                websocket.send(TextMessage(data=text))
                echo = websocket.receive()
                assert isinstance(echo, TextMessage)
                assert echo.data == text
            websocket.send(CloseConnection(code=1000))
    asgi_site.use_up(user)


def test_a_lifespan_begins_and_ends() -> None:
    with Site("starlette", "memory://") as site:
        assert (site.folder / "lifespan").read_text() == "started"
        site.stop()
        assert (site.folder / "lifespan").read_text() == "ended"
