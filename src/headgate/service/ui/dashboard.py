"""The dashboard as a part of the service: access to its pages, and a page for every error."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from types import ModuleType
from typing import Any
from urllib.parse import quote

from starlette.routing import Route

from ...core.errors import (
    CorruptState,
    EntityExists,
    EntityNotFound,
    HeadgateError,
    NamespaceNotFound,
    RateLimiterUnavailable,
    ValidationError,
    VersionConflict,
)
from ...http.answer import HeaderList
from ...limiter import RateLimiter
from ..bounds import MAX_BODY_BYTES
from ..problems import ProblemError
from ..reading import Gone, Headers, Receive, Scope, Send, is_secure, read_body, read_headers, read_parameter
from ..state import Service
from ..tokens import Token
from . import views
from .pages import ROOT, Answer, Fields, PageRoute, Redirect, Shown, Visit, check_form, link
from .render import Renderer, Static
from .session import (
    COOKIE,
    THEME_COOKIE,
    THEMES,
    Logins,
    LoginSession,
    SessionFiles,
    Sessions,
    check_origin,
    read_cookies,
)
from .words import DONE, words_of

log = logging.getLogger("headgate")

PAGES: list[PageRoute] = [
    one
    for module in vars(views).values()
    if isinstance(module, ModuleType)
    for one in vars(module).values()
    if isinstance(one, PageRoute)
]
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
# Not "no-referrer": browsers would no longer send the origin of a form.
_SAFE: HeaderList = [
    ("Content-Security-Policy", _POLICY),
    ("Referrer-Policy", "same-origin"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
]
_HTML: HeaderList = [*_SAFE, ("Content-Type", "text/html; charset=utf-8"), ("Cache-Control", "no-store")]
_FOR_EVER = ("Cache-Control", "public, max-age=31536000, immutable")
_STATUSES: dict[type[HeadgateError], int] = {
    EntityNotFound: 404,
    NamespaceNotFound: 404,
    EntityExists: 409,
    VersionConflict: 409,
    ValidationError: 422,
    RateLimiterUnavailable: 503,
    CorruptState: 503,
}


class Dashboard:
    """`decides`: whether this process makes decisions, or only reads a store that others use."""

    def __init__(self, service: Service, *, decides: bool = True) -> None:
        self.service = service
        self.read_only = service.read_only
        self.decides = decides
        shared = None if service.shared is None else service.shared.path
        stored = None if shared is None else SessionFiles(shared)
        self.sessions = Sessions(self._known, secret=service.secret, stored=stored)
        self.logins = Logins(None if shared is None else RateLimiter(f"sqlite:///{quote(str(shared))}/logins.db"))
        # Without tokens there is no login, but forms still need the csrf value.
        self.anybody = LoginSession("", self.sessions.csrf(""), service.anybody, float("inf"))
        self._static = Static()
        self._render = Renderer(self._static)
        self._looks: dict[str, RateLimiter] = {}

    def routes(self) -> list[Route]:
        by_path: dict[str, dict[str, PageRoute]] = {}
        for one in PAGES:
            by_path.setdefault(one.path, {})[one.method] = one
        pages = [Route(path, _Endpoint(partial(self._answer, methods))) for path, methods in by_path.items()]
        root = Route("/", _Endpoint(self._root))
        static = Route(f"{ROOT}/static/{{name}}", _Endpoint(self._file))
        nowhere = Route(f"{ROOT}/{{rest:path}}", _Endpoint(partial(self._answer, {})))
        return [root, static, *pages, nowhere]

    def looks(self, namespace: str) -> RateLimiter:
        """The limiter for the pages: without a cache, and with ids as they are stored."""
        if namespace not in self._looks:
            self._looks[namespace] = RateLimiter(self.service.url, namespace=namespace, config_cache_ttl=0)
        return self._looks[namespace]

    async def close(self) -> None:
        await self.logins.close()
        for limiter in self._looks.values():
            await limiter.close()

    async def _root(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _send(send, 307, [*_SAFE, ("Location", ROOT)], b"")

    async def _file(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, kind = self._static.files.get(scope["path_params"]["name"], (b"", ""))
        headers = [*_SAFE, ("Content-Type", kind), _FOR_EVER] if kind else list(_SAFE)
        await _send(send, 200 if kind else 404, headers, body)

    async def _answer(self, methods: Mapping[str, PageRoute], scope: Scope, receive: Receive, send: Send) -> None:
        visit = Visit(self, read_headers(scope["headers"]), is_secure(scope), self.service.clients.address(scope))
        try:
            answer = await self._handled(methods, visit, scope, receive)
        except Gone:
            return
        except Exception as error:
            answer = _failed(error)
        if isinstance(answer, Redirect):
            await _send(send, 303, [*_HTML, ("Location", answer.location), *answer.headers], b"")
        else:
            body = self._render(answer.template, {**_common(visit), **answer.context})
            await _send(send, answer.status, [*_HTML, *answer.headers], body)

    async def _handled(self, methods: Mapping[str, PageRoute], visit: Visit, scope: Scope, receive: Receive) -> Answer:
        # First: under a wrong host name, not even an error page with a form may be shown.
        self.service.check_host(visit.headers)
        visit.session = self._session(visit.headers)
        visit.query = Fields.read(scope["query_string"])
        visit.parts = {name: read_parameter(value) for name, value in scope["path_params"].items()}
        page = _chosen(methods, scope["method"])
        if page.scope is not None:
            if visit.session is None:
                return Redirect(link("login", next=_asked_for(scope)))
            self._check_allowed(page, visit.token)
            await self.service.count(visit.token)
            visit.room = self.service.room(visit.token.namespace)
            visit.looks = self.looks(visit.token.namespace)
        if page.method == "POST":
            check_origin(visit.headers)
            check_form(visit.headers)
            visit.form = Fields.read(await read_body(receive, visit.headers, MAX_BODY_BYTES))
            if page.scope is not None and visit.session is not None:
                visit.session.check_csrf(visit.form.get("csrf"))
        return await page.handler(visit)

    def _session(self, headers: Headers) -> LoginSession | None:
        if self.service.tokens is None:
            return self.anybody
        return self.sessions.get(read_cookies(headers).get(COOKIE))

    def _known(self, sha256: str) -> Token | None:
        tokens = self.service.tokens
        return None if tokens is None else tokens.known(sha256)

    def _check_allowed(self, page: PageRoute, token: Token) -> None:
        if page.scope is not None and not token.allows(page.scope):
            raise ProblemError(403, f"your token, {token.name}, lacks the scope {page.scope}")
        if page.changes and self.read_only:
            raise ProblemError(403, "this dashboard is read-only")


class _Endpoint:
    """An ASGI application. Starlette would wrap a plain function."""

    def __init__(self, answer: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope, receive, send)


def _chosen(methods: Mapping[str, PageRoute], method: str) -> PageRoute:
    if not methods:
        raise ProblemError(404, "this page does not exist")
    try:
        return methods["GET" if method == "HEAD" else method]
    except KeyError:
        raise ProblemError(405, f"{method[:20]} is not allowed here", [("Allow", ", ".join(methods))]) from None


def _asked_for(scope: Scope) -> str | None:
    """Where to go after the login. A form that was sent is lost."""
    query = scope["query_string"].decode("latin-1")
    path: str = scope["path"] + (f"?{query}" if query else "")
    return path if scope["method"] == "GET" and path != ROOT else None


def _common(visit: Visit) -> dict[str, Any]:
    theme = read_cookies(visit.headers).get(THEME_COOKIE, THEMES[0])
    return {
        "visit": visit,
        "theme": theme if theme in THEMES else THEMES[0],
        "done": DONE.get(visit.query.get("done"), ""),
        "csrf": visit.session.csrf if visit.session else "",
    }


def _failed(error: Exception) -> Shown:
    """The page for an error."""
    headers: HeaderList = []
    if isinstance(error, ProblemError):
        status, words = error.refusal.status, str(error) or json.loads(error.refusal.body)["detail"]
        headers = [header for header in error.refusal.headers if header[0] in ("Allow", "Retry-After")]
    elif isinstance(error, HeadgateError):
        status = next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 500)
        words = words_of(error)
    else:
        status, words = 500, "the page could not be shown; the log of the service says why"
    if status == 500:
        log.error("a page failed", exc_info=error)
    title = HTTPStatus(status).phrase
    return Shown("error.html", {"title": title, "status": status, "words": words}, status, headers)


async def _send(send: Send, status: int, headers: HeaderList, body: bytes) -> None:
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
