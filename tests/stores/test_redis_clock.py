"""The server's clock is the clock. It may be stepped back and forth: nobody gains by it, and waits stay sane."""

from __future__ import annotations

import time
from typing import Any

import pytest
from redis_helpers import both_kinds, opened, take_all

from headgate import Limit
from headgate.testing.servers.redis import RedisServer

TEN_AN_HOUR = Limit.per_hour("n", 10)
TOKEN_SECONDS = 360


def server_ms(server: RedisServer) -> int:
    seconds, microseconds = server.command("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


@both_kinds
@pytest.mark.parametrize("limits", [[TEN_AN_HOUR], [TEN_AN_HOUR, Limit.per_day("m", 1000)]], ids=["one", "two"])
def test_back_and_forth_nothing_is_minted(kind: str, limits: list[Limit], stepped_redis_server: RedisServer) -> None:
    server = stepped_redis_server
    with opened(kind, server.url) as limiter:
        begun = latest = server_ms(server)
        admitted = 0

        def take(most: int) -> int:
            """One after the other, up to so many."""
            wish = {limit.name: 1 for limit in limits}
            return next((taken for taken in range(most) if not limiter.try_acquire("e", "r", wish, limits)), most)

        for step in (0, -1800, 1800, -2700, 2700, -600, 600):
            server.step_clock(step)
            admitted += take(1)  # and the rest stays
        for step in (0, -1800, 1800, -2700, 2700, 1500, -1500, 1500, -3000, 3000, -60, 60):
            server.step_clock(step)
            admitted += take(1000)
            latest = max(latest, server_ms(server))
            assert admitted <= 10 + (latest - begun) / (1000 * TOKEN_SECONDS)
            assert 0 < limiter.time_until_available("e", "r", {"n": 1}, limits) <= TOKEN_SECONDS
        assert admitted >= 10 + 1500 // TOKEN_SECONDS, "time that went by counts"
        server.step_clock(3600)
        assert limiter.available("e", "r", [TEN_AN_HOUR]) == {"n": 10}


@both_kinds
def test_a_reservation_keeps_its_place(kind: str, stepped_redis_server: RedisServer) -> None:
    """Whoever asks after a step back comes after those who asked before it."""
    with opened(kind, stepped_redis_server.url) as limiter:
        begun = time.monotonic()
        assert take_all(limiter, "e", TEN_AN_HOUR) == 10
        limiter.adjust("e", "r", {"n": 5}, [TEN_AN_HOUR])
        for step in (-2400, 2400):
            stepped_redis_server.step_clock(step)
            wait = limiter.time_until_available("e", "r", {"n": 1}, [TEN_AN_HOUR])
            assert 6 * TOKEN_SECONDS - (time.monotonic() - begun) - 1 <= wait <= 6 * TOKEN_SECONDS
            assert not limiter.try_acquire("e", "r", {"n": 1}, [TEN_AN_HOUR], max_wait=10)


@both_kinds
def test_what_expired_at_a_wrong_time_does_not_come_back_full(kind: str, stepped_redis_server: RedisServer) -> None:
    server = stepped_redis_server
    limit = Limit.custom("n", 10, 10, 20)
    with opened(kind, server.url) as limiter:
        begun = time.monotonic()
        assert limiter.try_acquire("e", "r", {"n": 10}, [limit])
        rows: list[Any] = server.command("KEYS", "*")
        server.step_clock(60)  # it would be full long since, and is not used
        assert server.command("EXISTS", *rows) == len(rows)
        server.step_clock(-60)
        assert take_all(limiter, "e", limit) <= (time.monotonic() - begun) / 2
