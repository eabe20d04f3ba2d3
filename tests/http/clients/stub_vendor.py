"""A vendor of chat completions on a free port. What it is to do with a request, the request says: `{"stub": {...}}`.

`status`, `headers` of the answer; `actual`: the tokens it says were used, None to say nothing; `hold`: the name of an
event it waits for, before it answers, or in a stream after the first chunk; `gzip`: the answer is encoded so; `drop`:
it hangs up without an answer; `cut`: it does so after the first chunk.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WAIT_SECONDS = 30  # for what takes no time unless it is broken


class Events(dict[str, threading.Event]):
    def __missing__(self, name: str) -> threading.Event:
        return self.setdefault(name, threading.Event())  # in one step: a defaultdict may make two


class StubVendor(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.served: list[dict[str, Any]] = []
        self.go = Events()
        self.begun = Events()
        self.tokens = 0
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    @property
    def chat(self) -> str:
        return f"{self.url}/chat/completions"

    def hold(self, name: str) -> None:
        self.begun[name].set()
        assert self.go[name].wait(WAIT_SECONDS)

    def __enter__(self) -> StubVendor:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        for event in self.go.values():
            event.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients hang up as they like


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: StubVendor

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.served.append({"body": body, "headers": dict(self.headers.items()), "path": self.path})
        stub = body.get("stub", {})
        if stub.get("drop"):
            self.close_connection = True
            return
        stream = body.get("stream")
        if stub.get("hold") and not stream:
            self.server.hold(stub["hold"])
        status, actual = stub.get("status", 200), stub.get("actual", 10)
        if status == 200:
            self.server.tokens += actual or 0
        if stream and status == 200:
            self._send(status, "text/event-stream", stub, _events(stub, actual))
        else:
            text = json.dumps(_completion(stub, actual) if status == 200 else {"error": {"message": "no"}}).encode()
            self._send(status, "application/json", stub, iter([text]))

    def _send(self, status: int, kind: str, stub: dict[str, Any], chunks: Iterator[bytes]) -> None:
        if stub.get("gzip"):
            chunks = iter([gzip.compress(b"".join(chunks))])
        self.send_response(status)
        headers = {"content-type": kind, "transfer-encoding": "chunked", **stub.get("headers", {})}
        if stub.get("gzip"):
            headers["content-encoding"] = "gzip"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        for number, chunk in enumerate(chunks):
            if number == 1 and stub.get("hold"):
                self.server.hold(stub["hold"])
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            if stub.get("cut"):
                self.close_connection = True
                return
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *arguments: Any) -> None:
        pass


def _completion(stub: dict[str, Any], actual: int | None) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}
    answer = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    if actual is None:
        return answer
    if stub.get("anthropic"):
        return {**answer, "usage": {"input_tokens": actual - 1, "output_tokens": 1}}
    return {**answer, "usage": {"prompt_tokens": actual - 1, "completion_tokens": 1, "total_tokens": actual}}


def _events(stub: dict[str, Any], actual: int | None) -> Iterator[bytes]:
    if stub.get("anthropic"):
        yield _event({"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 1}}})
        if actual is not None:
            yield _event({"type": "message_delta", "usage": {"output_tokens": actual - 7}})
        yield _event({"type": "message_stop"})
        return
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "usage": None}
    for word in ("hel", "lo"):
        choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
        yield _event({**chunk, "choices": [choice]})
    if actual is not None:
        usage = {"prompt_tokens": actual - 1, "completion_tokens": 1, "total_tokens": actual}
        yield _event({**chunk, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"
