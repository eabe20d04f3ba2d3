"""Starlette behind the ASGI middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import site_parts as parts
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from headgate import RateLimiter
from headgate.http.asgi import RateLimitMiddleware

limiter = RateLimiter("memory://")
away = RateLimiter(parts.AWAY_URL)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    parts.note("started")
    async with limiter, away:
        yield
    parts.note("ended")


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


async def slow(request: Request) -> Response:
    return PlainTextResponse(await parts.wait_async(request.query_params["key"]))


async def stream(request: Request) -> Response:
    return StreamingResponse(parts.stream_async(request.query_params["key"]))


async def endless(request: Request) -> Response:
    return StreamingResponse(parts.endless_async())


async def broken(request: Request) -> Response:
    return StreamingResponse(parts.broken_async())


async def boom(request: Request) -> Response:
    raise RuntimeError("boom")


async def after(request: Request) -> Response:
    return PlainTextResponse("hello", background=BackgroundTask(parts.wait_async, request.query_params["key"]))


async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    try:
        while True:
            await websocket.send_text(await websocket.receive_text())
    except WebSocketDisconnect:
        pass


PLAIN = ("/hello", "/both", "/exempt", "/users/{id}", "/away", "/away-open", "/batch", "/unset", "/aside")
app = Starlette(
    routes=[
        *(Route(path, hello) for path in PLAIN),
        Route("/limited", hello, methods=["GET", "POST"]),
        Route("/slow", slow),
        Route("/stream", stream),
        Route("/endless", endless),
        Route("/broken", broken),
        Route("/boom", boom),
        Route("/after", after),
        WebSocketRoute("/limited", echo),
    ],
    middleware=[
        Middleware(RateLimitMiddleware, limiter=limiter, rules=parts.RULES, **parts.SETTINGS),
        Middleware(RateLimitMiddleware, limiter=away, rules=parts.AWAY),
        Middleware(RateLimitMiddleware, limiter=away, rules=parts.AWAY_OPEN, on_unavailable="allow"),
    ],
    lifespan=lifespan,
)
