"""The part of the proxy that speaks HTTP: one thread for each connection."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any, NamedTuple

from headgate.testing.servers.process import PATIENCE_SECONDS

# These are about a connection, not about what is said on it.
_NOT_PASSED_ON = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


class Request(NamedTuple):
    operation: str  # such as UpdateItem
    body: dict[str, Any]


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def data(self) -> dict[str, Any]:
        return decoded(self.body)


class NoReply(Exception):
    """The client gets none: the connection ends, or if `silent` it stays open until the client ends it."""

    def __init__(self, *, silent: bool = False) -> None:
        self.silent = silent


# Takes what arrived and what passes it on to the engine.
Handle = Callable[[Request, Callable[[], Reply]], Reply]


def decoded(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except ValueError:  # not everything on its way to an engine is JSON
        data = None
    return data if isinstance(data, dict) else {}


class Listener(TCPServer):
    """Listens from the start. `engine` is a port of 127.0.0.1."""

    allow_reuse_address = True
    allow_reuse_port = False
    request_queue_size = 128

    def __init__(self, port: int, engine: int, handle: Handle, connected: Callable[[], None]) -> None:
        self.engine = engine
        self.handle = handle
        self._connected = connected
        self.failures: list[BaseException] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()  # to clients and to the engine
        self._threads: list[threading.Thread] = []
        super().__init__(("127.0.0.1", port), _Connection)
        self._loop = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._loop.start()

    def end(self) -> None:
        """Refuse connections from now on, and cut those that are open."""
        self.shutdown()
        self._loop.join()
        self.server_close()
        with self._lock:
            for one in self._open:
                _cut(one)
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.opened(request)
        self._connected()
        thread = threading.Thread(target=self._serve, args=(request, client_address), daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def opened(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)

    def closing(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:  # the client has gone, which is its right
            pass
        except Exception as error:
            self.failures.append(error)
        finally:
            self.closing(request)
            self.shutdown_request(request)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Listener

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
        try:
            reply = self.server.handle(Request(operation, decoded(body)), lambda: self._passed_on(body))
        except NoReply as no:
            self.close_connection = True
            if no.silent:
                self.connection.recv(1)
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _passed_on(self, body: bytes) -> Reply:
        # A connection each: one that is kept may turn out dead, and then nobody knows whether the engine did it.
        engine = HTTPConnection("127.0.0.1", self.server.engine)
        try:
            engine.connect()
        except OSError as error:
            raise NoReply from error
        line = engine.sock
        self.server.opened(line)
        try:
            engine.request(self.command, self.path, body, _passed(self.headers))
            response = engine.getresponse()
            return Reply(response.status, _passed(response.headers), response.read())
        except (HTTPException, OSError) as error:
            raise NoReply from error
        finally:
            self.server.closing(line)
            engine.close()


def _passed(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _NOT_PASSED_ON}


def _cut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # it was already
        pass
