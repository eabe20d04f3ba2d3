"""The service as an ASGI application."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import quote

import msgspec
from starlette.routing import Route, Router

from ..http.answer import HeaderList, HttpRefusal
from . import alerts, decisions, entities, history, limits, metrics, namespaces, usage
from .openapi import document
from .openapi_page import PAGE_HEADERS, page
from .operations import JSON, Operation, operation
from .problems import ProblemError, refusal_of
from .reading import (
    Gone,
    Receive,
    Scope,
    Send,
    answer_at_once,
    body_at_once,
    check_json,
    not_found,
    read_body,
    read_headers,
    read_json,
    read_parameter,
    read_query,
)
from .schema import Health
from .state import Service
from .ui.dashboard import Dashboard

RawHeaders: TypeAlias = "list[tuple[bytes, bytes]]"


@operation("GET", "/healthz", None, tag="health")
async def alive(service: Service) -> Health:
    """Check that the service runs."""
    return Health("alive")


@operation("GET", "/readyz", None, tag="health", problems=(503,))
async def ready(service: Service) -> Health:
    """Check that the store answers, and that the service is not shutting down."""
    if not await service.ready():
        raise ProblemError(
            503,
            "the service is not ready to decide",
            [("Retry-After", "1")],
        )
    return Health("ready")


OPERATIONS = [
    *(
        one
        for module in (decisions, usage, history, alerts, entities, limits, namespaces)
        for one in vars(module).values()
        if isinstance(one, Operation)
    ),
    alive,
    ready,
    metrics.get_metrics,
]
_NOSNIFF = (b"x-content-type-options", b"nosniff")


def _raw(headers: HeaderList) -> RawHeaders:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]


@cache
def _answer_headers(media: str) -> RawHeaders:
    return _raw([("Content-Type", media), ("Cache-Control", "no-store")])


@cache
def _head(status: int, media: str) -> bytes:
    """As the server would write it."""
    lines = [b"%b: %b\r\n" % header for header in (*_answer_headers(media), _NOSNIFF)]
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode() + b"".join(lines)


def create_app(url: str, **settings: Any) -> ServiceApp:
    """The service over a store, for any ASGI server. It takes the settings of `Service`.

    Without `tokens`, every client that can connect may do everything: listen on a loopback address only.
    """
    return ServiceApp(Service(url, **settings))


class ServiceApp:
    """`api`: whether the API is served, and not only the dashboard."""

    def __init__(self, service: Service, *, api: bool = True) -> None:
        self.service = service
        self.dashboard = Dashboard(service, decides=api) if service.dashboard else None
        by_path: dict[str, dict[str, Operation]] = {}
        for one in OPERATIONS:
            by_path.setdefault(one.path, {})[one.method] = one
        self.endpoints = [ApiEndpoint(service, path, operations) for path, operations in by_path.items()]
        self.pages = _pages()
        served: list[ApiEndpoint | Fixed] = [one for one in self.endpoints if api or one.is_public]
        served += self.pages if api else []
        # Most requests go to a path without parameters, which needs no search through the routes.
        self._exact: dict[str, ApiEndpoint | Fixed] = {one.path: one for one in served if "{" not in one.path}
        people = self.dashboard.routes() if self.dashboard else []
        self._router = Router(
            [*(Route(one.path, one) for one in served), *people],
            redirect_slashes=False,
            default=_nowhere,
            lifespan=self._lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            # The path as it was sent: an escaped character can be part of an id, but never leads to another route.
            path = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1")
            exact = self._exact.get(path)
            if exact is not None:
                await exact(scope, receive, send)
                return
            scope = {**scope, "path": path, "root_path": ""}
        await self._router(scope, receive, send)  # type: ignore[arg-type]

    @asynccontextmanager
    async def _lifespan(self, router: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.close()

    async def close(self) -> None:
        if self.dashboard is not None:
            await self.dashboard.close()
        await self.service.close()


class ApiEndpoint:
    """All operations at one path."""

    def __init__(self, service: Service, path: str, operations: Mapping[str, Operation]) -> None:
        self.path = path
        self.operations = dict(operations)
        self._service = service
        self._decoders = {
            method: msgspec.json.Decoder(one.body) for method, one in operations.items() if one.body is not None
        }
        self._encoder = msgspec.json.Encoder()

    @property
    def is_public(self) -> bool:
        return all(operation.scope is None for operation in self.operations.values())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            operation = _chosen(self.operations, scope["method"])
            answer = await self._handled(operation, scope, receive)
        except Gone:
            return
        except Exception as error:
            await _refuse(send, refusal_of(error))
            return
        if answer is None:
            await _send(send, operation.status, [], b"")
            return
        body = answer if isinstance(answer, bytes) else self._encoder.encode(answer)
        if not answer_at_once(scope, _head(operation.status, operation.media), body):
            await _send(send, operation.status, _answer_headers(operation.media), body)

    async def _handled(self, operation: Operation, scope: Scope, receive: Receive) -> Any:
        headers = read_headers(scope["headers"])
        self._service.check_host(headers)
        if operation.scope is None:
            return await operation.handler(self._service)
        asked = self._service.admit(operation.scope, headers, scope, receive)
        await self._service.count(asked.token)
        given = scope.get("path_params")  # none at a path without parameters
        arguments: dict[str, Any] = {name: read_parameter(value) for name, value in given.items()} if given else {}
        if operation.query is not None or scope["query_string"]:
            arguments["query"] = read_query(scope["query_string"], operation.query)
        if operation.body is not None:
            check_json(headers)
            body = body_at_once(scope, operation.max_bytes)
            if body is None:
                body = await read_body(receive, headers, operation.max_bytes)
            arguments["body"] = read_json(body, self._decoders[operation.method])
        answer = await operation.handler(asked, **arguments)
        if operation.changes:
            self._service.changed()
        return answer


class Fixed:
    """A page that is the same for every client."""

    def __init__(self, path: str, body: bytes, headers: RawHeaders) -> None:
        self.path = path
        self._body = body
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            _chosen({"GET": None}, scope["method"])
        except ProblemError as refused:
            await _refuse(send, refused.refusal)
        else:
            await _send(send, 200, self._headers, self._body)


@cache
def _pages() -> list[Fixed]:
    described = document(OPERATIONS)
    return [
        Fixed("/openapi.json", json.dumps(described).encode(), _answer_headers(JSON)),
        Fixed("/docs", page(described), _raw(PAGE_HEADERS)),
    ]


def _chosen(operations: Mapping[str, Any], method: str) -> Any:
    try:
        return operations["GET" if method == "HEAD" else method]
    except KeyError:
        allowed = [*operations, *(["HEAD"] if "GET" in operations else [])]
        raise ProblemError(405, f"{method[:20]} is not allowed here", [("Allow", ", ".join(allowed))]) from None


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})
        return
    await _refuse(send, not_found().refusal)


async def _refuse(send: Send, refusal: HttpRefusal) -> None:
    await _send(send, refusal.status, _raw(refusal.headers), refusal.body)


async def _send(send: Send, status: int, headers: RawHeaders, body: bytes) -> None:
    length = [] if status == 204 else [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, _NOSNIFF, *length]})
    await send({"type": "http.response.body", "body": body})
