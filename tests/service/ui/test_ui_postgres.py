"""Every page of the dashboard, over PostgreSQL."""

from __future__ import annotations

import httpx
import pytest
from service_process import inside

from headgate import Limit, SyncRateLimiter
from headgate.service.app import create_app
from local_servers.postgres import PostgresServer

PAGES = {
    "/ui": "Overview",
    "/ui/entities": "acme",
    "/ui/entities/acme": "9/minute",
    "/ui/buckets": "acme",
    "/ui/limits": "Limits",
    "/ui/audit": "acme",
    "/ui/namespaces": "dashboard",
}


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    with SyncRateLimiter(postgres_server.url, namespace="dashboard", store_timeout=10.0) as limiter:
        limiter.create_entity("acme", name="Acme")
        limiter.set_limits("acme", [Limit.per_minute("rpm", 9)])
        limiter.try_acquire("acme", "api", {"rpm": 2})
    return postgres_server.url


def test_every_page_works_on_postgresql(url: str) -> None:
    async def look(client: httpx.AsyncClient) -> dict[str, bool]:
        return {page: shown in (await client.get(page)).text for page, shown in PAGES.items()}

    assert inside(create_app(url, namespace="dashboard"), look) == dict.fromkeys(PAGES, True)
