"""If a framework routes a request to a handler, the rule for that handler holds, however its path is spelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

import pytest
from django.core.handlers.wsgi import get_path_info
from django.urls import Resolver404, path, re_path
from django.urls.resolvers import RegexPattern, URLResolver
from fastapi import FastAPI
from flask import Flask
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.routing import Match, Route, Router
from werkzeug.exceptions import HTTPException

from headgate.http.asgi import AsgiCall
from headgate.http.call import BadPath, HttpCall
from headgate.http.engine import rules_for
from headgate.http.rule_set import RuleSet
from headgate.http.rules import Rule, Rules
from headgate.http.wsgi import WsgiCall

# Of each handler its path in Starlette and FastAPI, in Flask, in Django, and the rule for it.
PATHS = {
    "login": ("/login", "/login", "login", "/login"),
    "user": ("/users/{id}", "/users/<id>", "users/<str:id>", "/users/{id}"),
    "me": ("/users/me", "/users/me", "users/me", "/users/me"),
    "files": ("/files/{rest:path}", "/files/<path:rest>", "files/<path:rest>", "/files/**"),
    "ping": ("/files/ping", "/files/ping", "files/ping", "/files/ping"),
    "deep": ("/a/{x}/b/{y}", "/a/<x>/b/<y>", "a/<str:x>/b/<str:y>", "/a/{x}/b/{y}"),
}
METHODS = {"login": "POST", "ping": "GET"}
HANDLERS = ["me", "ping", "login", "user", "files", "deep"]  # in the order in which they are tried
BOOK = RuleSet(Rules([Rule(id, PATHS[id][3], method=METHODS.get(id), limits="1/day") for id in HANDLERS]))
Routed = tuple[HttpCall, "str | None"]


def asgi_scope(method: str, raw: str) -> dict[str, Any]:
    """As uvicorn makes it."""
    return {"type": "http", "method": method, "path": unquote(raw), "raw_path": raw.encode(), "headers": []}


def starlette(router: Router) -> Callable[[str, str], Routed]:
    def route(method: str, raw: str) -> Routed:
        scope = asgi_scope(method, raw)
        found = (one.name for one in router.routes if one.matches(scope)[0] == Match.FULL)  # type: ignore[attr-defined]
        name = next(found, None)
        return AsgiCall(scope), name

    return route


def of_starlette() -> Callable[[str, str], Routed]:
    async def handler(request: Any) -> Any: ...

    methods = {id: [METHODS[id]] if id in METHODS else ["GET", "POST", "PUT"] for id in HANDLERS}
    return starlette(Router([Route(PATHS[id][0], handler, name=id, methods=methods[id]) for id in HANDLERS]))


def of_fastapi() -> Callable[[str, str], Routed]:
    app = FastAPI(openapi_url=None)
    for id in HANDLERS:
        methods = [METHODS[id]] if id in METHODS else ["GET", "POST", "PUT"]
        app.add_api_route(PATHS[id][0], lambda: "hello", name=id, methods=methods)
    return starlette(app.router)


def wsgi_environ(method: str, raw: str) -> dict[str, Any]:
    """As gunicorn and waitress make it."""
    return {"REQUEST_METHOD": method, "PATH_INFO": unquote_to_bytes(raw).decode("latin-1"), "SERVER_NAME": "site"} | {
        "wsgi.url_scheme": "http",
        "SERVER_PORT": "80",
    }


def of_flask() -> Callable[[str, str], Routed]:
    app = Flask(__name__, static_folder=None)
    for id in HANDLERS:
        methods = [METHODS[id]] if id in METHODS else ["GET", "POST", "PUT"]
        app.add_url_rule(PATHS[id][1], id, lambda **_: "hello", methods=methods)

    def route(method: str, raw: str) -> Routed:
        environ = wsgi_environ(method, raw)
        try:
            name, _ = app.url_map.bind_to_environ(environ).match()
        except HTTPException:
            name = None
        return WsgiCall(environ), name

    return route


class _DjangoCall(WsgiCall):
    """DjangoCall wants a request, and that the settings of a project."""

    __slots__ = ()

    def __init__(self, environ: dict[str, Any]) -> None:
        HttpCall.__init__(self, environ["REQUEST_METHOD"], get_path_info(environ) or "/", environ)


def of_django(patterns: list[Any]) -> Callable[[str, str], Routed]:
    resolver = URLResolver(RegexPattern(r"^/"), patterns)

    def route(method: str, raw: str) -> Routed:
        environ = wsgi_environ(method, raw)
        try:
            name = resolver.resolve(get_path_info(environ)).url_name
        except Resolver404:
            name = None
        if name in METHODS and method not in (METHODS[name], "HEAD"):
            name = None  # as `require_http_methods` does
        return _DjangoCall(environ), None if name == "login" and method == "HEAD" else name

    return route


def django_patterns(slash: str = "") -> list[Any]:
    return [path(PATHS[id][2] + slash, lambda request: None, name=id) for id in HANDLERS]


def django_regexes() -> list[Any]:
    written = {"me": "users/me", "ping": "files/ping", "login": "login", "user": "users/([^/]+)", "files": "files/(.*)"}
    written["deep"] = "a/([^/]+)/b/([^/]+)"
    return [re_path(f"^{written[id]}$", lambda request: None, name=id) for id in HANDLERS]


FRAMEWORKS = {
    "starlette": of_starlette(),
    "fastapi": of_fastapi(),
    "flask": of_flask(),
    "django": of_django(django_patterns()),
    "django-slash": of_django(django_patterns("/")),
    "django-regex": of_django(django_regexes()),
}
WORDS = ["login", "users", "me", "files", "ping", "a", "b", "x", "LOGIN", "Login", "..", ".", "", "1", "login.", ";"]
CONTROLS = ["%0a", "%0A", "%0d", "%00", "%09", "%7f", "%1f", "%0b", "%0c", "%1c", "%c2%85", "%e2%80%a8"]
ODD = [*CONTROLS, "%2f", "%2F", "%5c", "%250a", "%252f", "%20", "%2e", "%3b", ";x=1", "%ff", "%c3%a9", "%ef%bf%bd"]
ODD += ["%3f", "%23", "%25", "/", "//", "\\", "+"]
PIECES = st.one_of(st.sampled_from(WORDS), st.sampled_from(ODD), st.text("az09./;%\\~", max_size=3))
SEGMENTS = st.lists(PIECES, min_size=1, max_size=3).map("".join)
RAW = st.lists(SEGMENTS, min_size=1, max_size=5).map(lambda segments: "/" + "/".join(segments))
KNOWN = ["/login", "/users/1", "/users/me", "/files/x/y", "/files/ping", "/a/1/b/2"]
BENT = st.builds(
    lambda raw, odd, at: raw[: min(at, len(raw))] + odd + raw[min(at, len(raw)) :],
    st.sampled_from(KNOWN), st.sampled_from(ODD), st.integers(1, 12),
)  # fmt: skip


@pytest.mark.parametrize("framework", FRAMEWORKS)
@settings(max_examples=400)
@given(raw=st.one_of(RAW, BENT, st.sampled_from(KNOWN)), method=st.sampled_from(["GET", "HEAD", "POST", "PUT"]))
@example(raw="/login%0a", method="POST")
@example(raw="/users/;x", method="GET")
@example(raw="/users/me;x", method="GET")
@example(raw="/files/ping;x", method="GET")
@example(raw="/files//ping", method="GET")
@example(raw="/a/;/b/;x", method="GET")
def test_handler_that_is_reached_is_under_its_rule(framework: str, raw: str, method: str) -> None:
    try:
        call, handler = FRAMEWORKS[framework](method, raw)
    except BadPath:
        return  # it is answered 400
    if handler is not None and handler not in {match.rule.id for match in rules_for(BOOK, call)}:
        # To rules a slash at the end means nothing, as docs/rules.md says: it is the rule of the path without it.
        assert call.sent_path == call.path + "/"
        assert (
            FRAMEWORKS[framework](method, raw.removesuffix("%2f").removesuffix("%2F").removesuffix("/"))[1] != handler
        )


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_known_paths_lead_to_their_handlers_in_every_framework(framework: str) -> None:
    """Else the property above would say nothing."""
    slash = "/" if framework == "django-slash" else ""
    for raw, name in zip(KNOWN, ["login", "user", "me", "files", "ping", "deep"]):
        call, handler = FRAMEWORKS[framework]("POST" if name == "login" else "GET", raw + slash)
        assert handler == name
        assert [match.rule.id for match in rules_for(BOOK, call)] == [name]
