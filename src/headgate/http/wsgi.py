"""WSGI middleware: rules for any WSGI application."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any, TypeAlias

from ..limiter import SyncRateLimiter
from .answer import HttpRefusal
from .call import BadPath, HttpCall
from .engine import RuleEngine, SyncGate, bad_path
from .rule_set import RulesSpec

Environ: TypeAlias = "dict[str, Any]"
WsgiApp: TypeAlias = "Callable[[Environ, Callable[..., Any]], Iterable[bytes]]"


class WsgiCall(HttpCall):
    """`native` is the environ."""

    __slots__ = ()

    def __init__(self, environ: Environ) -> None:
        path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")
        super().__init__(environ["REQUEST_METHOD"], path or "/", environ)

    def headers(self, name: str) -> list[str]:
        # A server joins repeated headers by commas, and a joined value looks like any other.
        key = name.upper().replace("-", "_")
        value = self.native.get(key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}")
        return [] if value is None else value.split(",")

    @property
    def peer(self) -> str | None:
        return self.native.get("REMOTE_ADDR") or None

    @property
    def user(self) -> str | None:
        return self.native.get("REMOTE_USER") or None


class RateLimitWsgiMiddleware:
    """`app.wsgi_app = RateLimitWsgiMiddleware(app.wsgi_app, limiter, rules)`.

    It takes the settings of `RuleEngine`. The decision is in `environ["headgate"]`.
    """

    def __init__(self, app: WsgiApp, limiter: SyncRateLimiter, rules: RulesSpec, **settings: Any) -> None:
        self.app = app
        self.gate = SyncGate(RuleEngine(limiter, rules, **settings))

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            verdict = self.gate.check(WsgiCall(environ))
        except BadPath as error:
            verdict = bad_path(error)
        if isinstance(verdict, HttpRefusal):
            headers = [*verdict.headers, ("Content-Length", str(len(verdict.body)))]
            start_response(f"{verdict.status} {HTTPStatus(verdict.status).phrase}", headers)
            return [verdict.body]
        environ["headgate"] = verdict.decision

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start_response(status, [*headers, *verdict.headers], *rest)

        if not verdict.leases:
            return self.app(environ, start)
        try:
            body = self.app(environ, start)
        except BaseException:
            self.gate.end(verdict.leases)
            raise
        return EndingBody(body, self.gate.end, verdict.leases)


class EndingBody:
    """The body of a response. Its leases end when the server has sent all of it, or gives up.

    An application may do more work when the server closes the body; that work holds no slots.
    """

    def __init__(self, body: Iterable[bytes], end: Callable[[Iterable[Any]], None], leases: Iterable[Any]) -> None:
        self._body = body
        self._end = end
        self._leases = leases

    def __iter__(self) -> Iterator[bytes]:
        yield from self._body
        self._end_once()

    def close(self) -> None:
        try:
            if (close := getattr(self._body, "close", None)) is not None:
                close()
        finally:
            self._end_once()

    def _end_once(self) -> None:
        leases, self._leases = self._leases, ()
        self._end(leases)
