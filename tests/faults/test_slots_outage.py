"""The store is killed in the middle of an acquire, a renewal, a release: all are told, and no slot is lost for good."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fault_helpers import PATIENCE_SECONDS, ROUNDING_SECONDS, eventually
from outages import Outage, dynamodb_outage, postgres_outage, redis_outage, sqlite_outage

from headgate import Limit, RateLimiterUnavailable, SyncRateLimiter
from headgate.limiter.acquire.breaker import FAILURES

SLOTS = 3
WISH = ("e", "api", {"slots": 1})


def limits(ttl: float) -> list[Limit]:
    return [Limit.concurrent("slots", SLOTS, ttl)]


@pytest.fixture(params=["sqlite", "redis", "redis that forgets", "postgres", "dynamodb"])
def outage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Outage]:
    with ExitStack() as stack:
        if request.param == "sqlite":
            yield stack.enter_context(sqlite_outage(tmp_path))
        elif request.param == "postgres":
            request.getfixturevalue("postgres_installed")
            yield stack.enter_context(postgres_outage())
        elif request.param == "dynamodb":
            request.getfixturevalue("aws_credentials")
            yield stack.enter_context(dynamodb_outage(request.getfixturevalue("ministack")))
        else:
            request.getfixturevalue("redis_installed")
            yield stack.enter_context(redis_outage(forgets=request.param != "redis"))


@pytest.fixture
def limiter(outage: Outage) -> Iterator[SyncRateLimiter]:
    """Each call for itself, so that many are under way at once."""
    with SyncRateLimiter(outage.url, store_timeout=outage.timeout, coalesce=False) as limiter:
        limiter.register_namespace(limiter.namespace)
        yield limiter


def free(limiter: SyncRateLimiter, ttl: float) -> int | None:
    """None while the store is away."""
    try:
        return limiter.available("e", "api", limits(ttl))["slots"]
    except RateLimiterUnavailable:
        return None


def comes_back(limiter: SyncRateLimiter, ttl: float) -> None:
    eventually(lambda: free(limiter, ttl) is not None, "the store to be back")


def events(caplog: pytest.LogCaptureFixture, *names: str) -> list[str]:
    found = [getattr(record, "event", "") for record in caplog.records]
    return [name for name in found if name in names]


def test_in_the_middle_of_acquires(outage: Outage, limiter: SyncRateLimiter, caplog: pytest.LogCaptureFixture) -> None:
    ttl = 2.0
    caplog.set_level(logging.WARNING, "headgate")
    assert free(limiter, ttl) == SLOTS

    def ask(policy: str = "block") -> Any:
        return limiter.try_acquire(*WISH, limits(ttl), on_unavailable=policy)  # type: ignore[arg-type]

    begun = threading.Barrier(2 * FAILURES + 1)

    def ask_together() -> Any:
        begun.wait(PATIENCE_SECONDS)
        return ask()

    with ThreadPoolExecutor(2 * FAILURES) as pool:
        outage.stall()
        asking = [pool.submit(ask_together) for _ in range(2 * FAILURES)]
        begun.wait(PATIENCE_SECONDS)
        time.sleep(0.1)  # as a rule all have been sent; one that has not, or has timed out, fails in the same way
        outage.down()
        errors = [one.exception(PATIENCE_SECONDS) for one in asking]
    assert {type(error) for error in errors} == {RateLimiterUnavailable}
    assert limiter.breaker_state != "closed"
    with pytest.raises(RateLimiterUnavailable):
        ask()
    allowed, local = ask("allow"), ask("local")
    assert allowed.degraded
    assert local.degraded
    assert [bool(ask("local")) for _ in range(SLOTS)] == [True] * (SLOTS - 1) + [False], "its share is all of them"
    assert events(caplog, "store.down", "store.up") == ["store.down"]
    outage.up()
    comes_back(limiter, ttl)
    assert str(limiter.breaker_state) == "closed"
    # Some may hold a slot that nobody knows of. Their time runs out.
    eventually(lambda: free(limiter, ttl) == SLOTS, "all slots to be free")
    assert not ask().degraded
    assert events(caplog, "store.down", "store.up") == ["store.down", "store.up"]


def test_in_the_middle_of_a_release(outage: Outage, limiter: SyncRateLimiter) -> None:
    ttl = 2.0
    kept = limiter.try_acquire(*WISH, limits(ttl)).lease
    assert kept is not None

    def end() -> None:
        time.sleep(0.2)
        outage.down()

    def use() -> bool:
        with limiter.acquire(*WISH, limits(ttl)):
            outage.stall()
            pool.submit(end)
        return True

    with ThreadPoolExecutor(2) as pool:
        assert pool.submit(use).result(PATIENCE_SECONDS), "whoever leaves is not told: his work is done"
    outage.up()
    comes_back(limiter, ttl)
    # The other slot is still held, unless it was too long, or the store has forgotten it.
    eventually(lambda: free(limiter, ttl) == SLOTS - 1 + kept.lost, "the slot to be free")
    if outage.forgets:
        eventually(lambda: kept.lost, "the other to be told")
    kept.commit()
    assert free(limiter, ttl) == SLOTS


def test_in_the_middle_of_a_renewal(outage: Outage, limiter: SyncRateLimiter, caplog: pytest.LogCaptureFixture) -> None:
    """It is back before the time is over: it is as if nothing was, unless it has forgotten all."""
    ttl = 20.0  # the server has until then to start again
    caplog.set_level(logging.WARNING, "headgate")
    told: list[Any] = []
    lease = limiter.try_acquire(*WISH, limits(ttl), on_lost=told.append).lease
    assert lease is not None
    with ThreadPoolExecutor(1) as pool:
        outage.stall()
        renewing = pool.submit(lease.renew)
        time.sleep(0.2)
        outage.down()
        assert isinstance(renewing.exception(PATIENCE_SECONDS), RateLimiterUnavailable)
    outage.up()
    comes_back(limiter, ttl)
    if not outage.forgets:
        assert lease.renew() is True
        assert free(limiter, ttl) == SLOTS - 1
        assert not told
        lease.commit()
        assert free(limiter, ttl) == SLOTS
        return
    others = [limiter.try_acquire(*WISH, limits(ttl)).lease for _ in range(SLOTS)]
    eventually(lambda: told, "the holder to be told")
    assert told == [lease]
    assert lease.lost
    assert events(caplog, "lease.lost") == ["lease.lost"]
    lease.commit()
    assert free(limiter, ttl) == 0, "those are others'"
    for other in others:
        assert other is not None
        other.commit()


def test_away_for_longer_than_the_ttl(outage: Outage, limiter: SyncRateLimiter) -> None:
    """The holder does not wait for the store to say that others may be at it by now."""
    ttl = 1.0
    told: list[Any] = []
    began = time.monotonic()
    lease = limiter.try_acquire(*WISH, limits(ttl), on_lost=told.append).lease
    assert lease is not None
    outage.down()
    eventually(lambda: told, "the holder to know")
    assert lease.lost
    assert time.monotonic() - began >= ttl - ROUNDING_SECONDS, "not as long as it surely has it"
    outage.up()
    comes_back(limiter, ttl)
    eventually(lambda: free(limiter, ttl) == SLOTS, "the slot to be free")
    assert told == [lease]
    lease.commit()
    assert free(limiter, ttl) == SLOTS
