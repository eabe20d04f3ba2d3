"""Pages of the dashboard over a store with very many entities: how long the service needs for one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headgate import SyncRateLimiter
from headgate.core.names import StoredId
from headgate.core.records import Put
from headgate.limiter import keys
from headgate.service.app import App
from headgate.service.state import Service

from . import ours
from .growth import entity, fill, lasting_limit
from .measure import Contender, Turn, coroutines

OVERVIEW = "overview"
PAGES = {OVERVIEW: "/ui", "its moving part": "/ui/live", "entities": "/ui/entities"}
ENTITIES = 100_000
_AT_ONCE = 100


def filled(folder: Path, count: int = ENTITIES) -> str:
    """An SQLite file in which each entity has a record and a bucket; its URL."""
    url = ours.sqlite(folder)
    with SyncRateLimiter(url) as limiter:
        limiter.set_system_defaults([lasting_limit()])
        fill(limiter, count)
        value = {"name": None, "parent_id": None, "cascade": False, "metadata": {"plan": "pro"}}
        for start in range(0, count, _AT_ONCE):
            ids = [StoredId(entity(number)) for number in range(start, min(start + _AT_ONCE, count))]
            limiter.engine.store.write_records([Put(keys.entity_key("default", one), value) for one in ids], 0)
    return url


def pages(loop: asyncio.AbstractEventLoop, url: str) -> list[Contender]:
    """Where `headgate serve` counts what it decides, `headgate ui` has to look at buckets."""
    return [
        *(Contender(name, _page(loop, path, url, api=True)) for name, path in PAGES.items()),
        Contender(f"{OVERVIEW} of headgate ui", _page(loop, PAGES[OVERVIEW], url, api=False)),
    ]


def _page(loop: asyncio.AbstractEventLoop, path: str, url: str, *, api: bool) -> Any:
    @contextmanager
    def opened(_: Path) -> Iterator[Turn]:
        app = App(Service(url, max_requests=None), api=api)

        async def hit() -> bool:
            return await _status(app, path) == 200

        try:
            yield coroutines(loop, hit)
        finally:
            loop.run_until_complete(app.close())

    return opened


async def _status(app: App, path: str) -> int:
    """As a server would ask for it."""
    sent: list[Any] = []
    scope = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    status: int = sent[0]["status"]
    return status
