"""A WSGI application of no framework, behind the WSGI middleware."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import site_parts as parts

from headgate import SyncRateLimiter
from headgate.http.wsgi import RateLimitWsgiMiddleware

PLAIN = ("/hello", "/limited", "/both", "/exempt", "/away", "/away-open", "/batch", "/unset", "/aside")


class After:
    """An answer whose end takes long."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __iter__(self) -> Iterator[bytes]:
        yield b"hello"

    def close(self) -> None:
        parts.wait(self._key)


def answer(path: str, key: str) -> Iterable[bytes] | None:
    if path in PLAIN or path.startswith("/users/"):
        return [b"hello"]
    if path == "/slow":
        return [parts.wait(key).encode()]
    if path == "/boom":
        raise RuntimeError("boom")
    if path == "/after":
        return After(key)
    return {"/stream": lambda: parts.stream(key), "/endless": parts.endless, "/broken": parts.broken}.get(
        path, lambda: None
    )()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    body = answer(environ["PATH_INFO"], parts.key_of(environ.get("QUERY_STRING", "")))
    start_response("200 OK" if body else "404 Not Found", [("Content-Type", "text/plain")])
    return [] if body is None or environ["REQUEST_METHOD"] == "HEAD" else body


away = SyncRateLimiter(parts.AWAY_URL)
app = RateLimitWsgiMiddleware(application, SyncRateLimiter("memory://"), parts.RULES, **parts.SETTINGS)
app = RateLimitWsgiMiddleware(app, away, parts.AWAY)
app = RateLimitWsgiMiddleware(app, away, parts.AWAY_OPEN, on_unavailable="allow")
