from __future__ import annotations

from collections.abc import Iterator

import pytest
from sites import ASGI, COMMANDS, Site, Sites, new_user

from headgate.testing.servers.redis import RedisServer


@pytest.fixture(scope="session")
def site_redis(redis_installed: None) -> Iterator[RedisServer]:
    """The store of the routes `/away...`. Whoever kills it starts it again."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def sites(site_redis: RedisServer) -> Iterator[Sites]:
    sites = Sites(lambda: site_redis.url)
    yield sites
    sites.close()


@pytest.fixture(params=COMMANDS)
def site(request: pytest.FixtureRequest, sites: Sites) -> Site:
    """Every application in turn."""
    return sites[request.param]


@pytest.fixture(params=ASGI)
def asgi_site(request: pytest.FixtureRequest, sites: Sites) -> Site:
    return sites[request.param]


@pytest.fixture
def user() -> str:
    return new_user()
