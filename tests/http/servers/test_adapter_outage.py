"""While the store is away: 503, or pass, as was said. Never an error of ours, and all is well when it is back."""

from __future__ import annotations

import json

from sites import Site

from headgate.testing.servers.process import eventually
from headgate.testing.servers.redis import RedisServer


def test_outage_is_a_503_or_passes_by_its_rule_and_ends_with_the_store(
    site: Site, site_redis: RedisServer, user: str
) -> None:
    for path in ("/away", "/away-open"):
        eventually(lambda path=path: "ratelimit" in site.ask(path, user=user).headers, f"{path} works")
    site_redis.kill()
    try:
        for _ in range(10):
            refused = site.ask("/away", user=user)
            assert refused.status == 503
            assert refused.headers["content-type"] == "application/problem+json"
            assert "retry-after" in refused.headers
            problem = json.loads(refused.body)
            assert problem["status"] == 503
            assert str(site_redis.port) not in refused.body.decode()
            passed = site.ask("/away-open", user=user)
            assert passed.status == 200
            assert "ratelimit" not in passed.headers
        assert site.ask("/limited", user=user).status == 200
    finally:
        site_redis.start()
    eventually(lambda: site.ask("/away", user=user).status == 200, "/away works again")
