"""FastAPI with dependencies and decorators; annotations are texts here, as in most modules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated

import site_parts as parts
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, WebSocket, WebSocketDisconnect
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import BaseModel
from starlette.background import BackgroundTask

from headgate import RateLimiter
from headgate.http.asgi import RateLimitMiddleware
from headgate.http.engine import Passed
from headgate.http.fastapi import FastAPILimits, RateLimit

limiter = RateLimiter("memory://")
away = RateLimiter(parts.AWAY_URL)
limits = FastAPILimits(limiter, identity=parts.IDENTITY, exempt=parts.is_vip)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    parts.note("started")
    async with limiter, away:
        yield
    parts.note("ended")


app = FastAPI(lifespan=lifespan)
app.add_middleware(
    RateLimitMiddleware,
    limiter=limiter,
    rules=[rule for rule in parts.RULES if rule.id in ("exempt", "users")],
    **parts.SETTINGS,
)
router = APIRouter(dependencies=[Depends(RateLimit(limits, "3/day", id="limited"))])


@app.get("/hello")
@app.get("/exempt")
@app.get("/users/{id}")
async def hello() -> str:
    return "hello"


@router.api_route("/limited", methods=["GET", "HEAD", "POST"])
async def limited() -> str:
    return "hello"


@router.websocket("/limited")
async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    try:
        while True:
            await websocket.send_text(await websocket.receive_text())
    except WebSocketDisconnect:
        pass


@app.get("/both")
@limits.limit("50/day")
@limits.limit("2/day; 100/hour")
async def both() -> str:
    return "hello"


@app.get("/batch")
@limits.limit("10/day", cost=parts.batch_size, id="batch")
async def batch() -> str:
    return "hello"


@app.get("/unset", dependencies=[Depends(RateLimit(limits))])
async def unset() -> str:
    return "hello"


@app.get("/aside")
@limits.limit("3/day")
@limits.limit(shadow=True)
async def aside() -> str:
    return "hello"


@app.get("/slow", response_class=PlainTextResponse)
@limits.limit("1 concurrent")
def slow(key: str) -> str:
    return parts.wait(key)


@app.get("/stream")
@limits.limit("1 concurrent")
async def stream(key: str) -> StreamingResponse:
    return StreamingResponse(parts.stream_async(key))


@app.get("/endless", response_class=StreamingResponse)
@limits.limit("1 concurrent")
def endless() -> Iterator[bytes]:
    yield from parts.endless()


@app.get("/broken")
async def broken(passed: Annotated[Passed, Depends(RateLimit(limits, "1 concurrent"))]) -> StreamingResponse:
    assert passed.decision
    return StreamingResponse(parts.broken_async())


@app.get("/boom")
@limits.limit("1 concurrent")
async def boom() -> None:
    raise RuntimeError("boom")


@app.get("/after")
@limits.limit("1 concurrent")
async def after(key: str, tasks: BackgroundTasks) -> str:
    tasks.add_task(parts.wait_async, key)
    return "hello"


@app.get("/after-own", dependencies=[Depends(RateLimit(limits, "1 concurrent"))])
async def after_own(key: str) -> PlainTextResponse:
    return PlainTextResponse("hello", background=BackgroundTask(parts.wait_async, key))


class Order(BaseModel):
    size: int


@app.post("/orders")
@limits.limit("3/day")
async def orders(order: Order) -> int:
    return order.size


@app.get("/away", dependencies=[Depends(RateLimit(away, "1000/day"))])
@app.get("/away-open", dependencies=[Depends(RateLimit(away, "1000/day", on_unavailable="allow"))])
async def hello_again() -> str:
    return "hello"


app.include_router(router)
