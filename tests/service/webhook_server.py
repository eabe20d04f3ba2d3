"""An HTTP endpoint for alerts, which fails or hangs when it is told to."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from headgate.testing.servers.process import eventually

SECRET = "the-secret-that-signs-alerts"
PAGE = Path(__file__).parents[2] / "docs" / "service.md"


class Posted(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def alert(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


class WebhookServer:
    """`statuses`: of its next answers; then `status`. While it `hangs`, it takes requests and does not answer."""

    def __init__(self) -> None:
        self.posted: list[Posted] = []
        self.statuses: list[int] = []
        self.status = 204
        self.answering = threading.Event()
        self.answering.set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.posted.append(Posted(self.path, {name.lower(): it for name, it in self.headers.items()}, body))
                server.answering.wait()
                status = server.statuses.pop(0) if server.statuses else server.status
                try:
                    self.send_response(status)
                    if status in (301, 307):
                        self.send_header("Location", "/elsewhere")
                    self.end_headers()
                except OSError:
                    pass  # the client has gone

            def log_message(self, *words: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def origin(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def ids(self) -> list[str]:
        return [posted.alert["id"] for posted in self.posted]

    def wait_for(self, count: int) -> list[Posted]:
        eventually(lambda: len(self.posted) >= count, f"{count} requests reach the webhook")
        return self.posted

    def close(self) -> None:
        self.answering.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def documented_check() -> Any:
    """The function that the page shows to check a signature."""
    (block,) = re.findall(r"^```python\n(import hmac.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    found: dict[str, Any] = {}
    exec(block.partition("print(")[0], found)
    return found["is_genuine"]
