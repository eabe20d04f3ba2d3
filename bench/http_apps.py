"""One FastAPI application, bare and behind each limiter, set up as their documentation says."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI, Request

from .http_scenes import BARE, FASTAPI_LIMITER, OURS, SLOWAPI, SLOWAPI_ASGI

MANY = 1_000_000_000  # an hour
PATH = "/items/7"


def bare(url: str) -> FastAPI:
    app = FastAPI()

    @app.get("/items/{item}")
    async def read(item: int) -> dict[str, int]:
        return {"item": item}

    return app


def headgate(url: str) -> FastAPI:
    from headgate import RateLimiter
    from headgate.http.asgi import RateLimitMiddleware
    from headgate.http.rules import Rule

    app = bare(url)
    rules = [Rule("items", "/items/{item}", limits=f"{MANY}/hour")]
    app.add_middleware(RateLimitMiddleware, limiter=RateLimiter(url), rules=rules)
    return app


def slowapi_decorator(url: str) -> FastAPI:
    from slowapi import Limiter
    from slowapi.util import get_remote_address

    app = FastAPI()
    app.state.limiter = limiter = Limiter(key_func=get_remote_address, storage_uri=url)

    @app.get("/items/{item}")
    @limiter.limit(f"{MANY}/hour")
    async def read(request: Request, item: int) -> dict[str, int]:
        return {"item": item}

    return app


def slowapi_middleware(url: str) -> FastAPI:
    from slowapi import Limiter
    from slowapi.middleware import SlowAPIASGIMiddleware
    from slowapi.util import get_remote_address

    app = bare(url)
    app.state.limiter = Limiter(key_func=get_remote_address, default_limits=[f"{MANY}/hour"], storage_uri=url)
    app.add_middleware(SlowAPIASGIMiddleware)
    return app


def fastapi_limiter(url: str) -> FastAPI:
    from fastapi_limiter.depends import RateLimiter
    from pyrate_limiter import Duration, InMemoryBucket, Limiter, Rate, RedisBucket
    from redis.asyncio import Redis

    rates = [Rate(MANY, Duration.HOUR)]
    # In Redis the bucket can be made only where a loop runs; the dependency is there from the start.
    check = RateLimiter(limiter=Limiter(InMemoryBucket(rates)))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if url.startswith("redis"):
            check.limiter = Limiter(await RedisBucket.init(rates, Redis.from_url(url), f"bench-{os.getpid()}"))
        yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/items/{item}", dependencies=[Depends(check)])
    async def read(item: int) -> dict[str, int]:
        return {"item": item}

    return app


APPS: dict[str, Callable[[str], FastAPI]] = {
    OURS: headgate,
    BARE: bare,
    SLOWAPI: slowapi_decorator,
    SLOWAPI_ASGI: slowapi_middleware,
    FASTAPI_LIMITER: fastapi_limiter,
}
NOTES = {FASTAPI_LIMITER: "one bucket for all callers, every hit kept"}
