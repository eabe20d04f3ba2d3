"""When the store is away: block, or allow and say so. The store here is a real one that is told to fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from headgate import Limit, RateLimiter, RateLimiterUnavailable, SyncRateLimiter, ValidationError, register_store
from headgate.core.decide import Answer, Request
from headgate.stores.memory.store import MemoryStore
from headgate.testing import ManualClock

RPM = Limit.per_minute("rpm", 60)


class MoodyStore(MemoryStore):
    in_process = False
    away = False

    def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        self._check()
        return super().settle(batch, now_ms)

    def get_records(self, keys: Sequence[str], now_ms: int | None) -> Any:
        self._check()
        return super().get_records(keys, now_ms)

    def _check(self) -> None:
        if self.away:
            raise RateLimiterUnavailable("the store is away")


@pytest.fixture
def store() -> MoodyStore:
    store = MoodyStore()
    register_store("moody", lambda url, timeout: store)
    return store


def test_block_is_the_default(store: MoodyStore) -> None:
    limiter = SyncRateLimiter("moody://")
    store.away = True
    with pytest.raises(RateLimiterUnavailable), limiter.acquire("e", "r", {"rpm": 1}, [RPM]):
        pytest.fail("the body ran")
    store.away = False
    assert limiter.available("e", "r", [RPM]) == {"rpm": 60}


@pytest.mark.parametrize("warm", [False, True])
def test_allow_passes_and_says_so(store: MoodyStore, warm: bool) -> None:
    limiter = SyncRateLimiter("moody://", on_unavailable="allow")
    if warm:
        assert limiter.try_acquire("e", "r", {"rpm": 1}, [RPM])
    store.away = True
    decision = limiter.try_acquire("e", "r", {"rpm": 1}, [RPM])
    assert decision.allowed
    assert decision.degraded
    assert decision.statuses == []
    with limiter.acquire("e", "r", {"rpm": 1}, [RPM]) as lease:
        assert lease.degraded
        lease.consume(rpm=5)
        lease.adjust(rpm=5)
        lease.release(rpm=5)
        assert lease.consumed == {}
    store.away = False
    assert not limiter.try_acquire("e", "r", {"rpm": 1}, [RPM]).degraded


def test_the_call_overrides_the_stored_policy_and_that_the_limiters(store: MoodyStore) -> None:
    limiter = SyncRateLimiter("moody://")
    limiter.set_system_defaults([RPM], on_unavailable="allow")
    assert not limiter.try_acquire("e", "r", {"rpm": 1}).degraded
    store.away = True
    assert limiter.try_acquire("e", "r", {"rpm": 1}).degraded
    with pytest.raises(RateLimiterUnavailable):
        limiter.try_acquire("e", "r", {"rpm": 1}, on_unavailable="block")


def test_the_stored_policy_outlives_the_cache(store: MoodyStore) -> None:
    clock = ManualClock()
    limiter = SyncRateLimiter("moody://", clock=clock, config_cache_ttl=5)
    limiter.set_system_defaults([RPM], on_unavailable="allow")
    assert limiter.try_acquire("e", "r", {"rpm": 1})
    store.away = True
    clock.advance(3600)
    assert limiter.try_acquire("e", "r", {"rpm": 1}).degraded


def test_a_cancelled_wait_stays_cancelled(store: MoodyStore) -> None:
    async def scenario() -> None:
        async with RateLimiter("moody://") as limiter:
            await limiter.adjust("e", "r", {"rpm": 60}, [RPM])
            waiting = asyncio.create_task(limiter.try_acquire("e", "r", {"rpm": 1}, [RPM], max_wait=60))
            await asyncio.sleep(0.05)
            store.away = True
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()

    asyncio.run(scenario())


def test_closed_while_the_body_ran(store: MoodyStore) -> None:
    limiter = SyncRateLimiter("moody://")
    with pytest.raises(ValueError, match="mine"), limiter.acquire("e", "r", {"rpm": 1}, [RPM]):
        limiter.close()
        raise ValueError("mine")


def test_deleted_while_the_body_ran(caplog: pytest.LogCaptureFixture) -> None:
    limiter = SyncRateLimiter("memory://")
    with limiter.acquire("e", "r", {"rpm": 1}, [RPM], record_lease=True):
        limiter.delete_namespace("default")
    assert "run out by themselves" in caplog.text
    limiter.recover_namespace("default")
    with pytest.raises(ValueError, match="mine"), limiter.acquire("e", "r", {"rpm": 1}, [RPM], record_lease=True):
        limiter.delete_namespace("default")
        raise ValueError("mine")
    assert "could not be rolled back" in caplog.text


def test_bad_input_is_an_error_even_then(store: MoodyStore) -> None:
    limiter = SyncRateLimiter("moody://", on_unavailable="allow")
    store.away = True
    with pytest.raises(ValidationError):
        limiter.try_acquire("a b", "r", {"rpm": 1}, [RPM])


def test_the_bodys_error_is_not_hidden_by_a_failed_rollback(
    store: MoodyStore, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = SyncRateLimiter("moody://")
    caplog.set_level(logging.WARNING, "headgate")
    with pytest.raises(ValueError, match="mine"), limiter.acquire("e", "r", {"rpm": 1}, [RPM]):
        store.away = True
        raise ValueError("mine")
    assert "could not be rolled back" in caplog.text


def test_coroutines_follow_the_outage_policy_of_each_call(store: MoodyStore) -> None:
    async def scenario() -> None:
        async with RateLimiter("moody://") as limiter:
            store.away = True
            results = await asyncio.gather(
                *(limiter.try_acquire("e", "r", {"rpm": 1}, [RPM], on_unavailable="allow") for _ in range(3)),
                limiter.try_acquire("e", "r", {"rpm": 1}, [RPM]),
                return_exceptions=True,
            )
            assert [getattr(result, "degraded", type(result)) for result in results] == [
                True, True, True, RateLimiterUnavailable,
            ]  # fmt: skip

    asyncio.run(scenario())


def test_an_adjustment_that_failed_is_not_counted(store: MoodyStore) -> None:
    limiter = SyncRateLimiter("moody://")
    with limiter.acquire("e", "r", {"rpm": 1}, [RPM]) as lease:
        store.away = True
        with pytest.raises(RateLimiterUnavailable):
            lease.adjust(rpm=5)
        assert lease.consumed == {"rpm": 1}
        store.away = False


class ForgetfulStore(MemoryStore):
    """Does it, and loses the answer."""

    in_process = False
    loses = False

    def settle(self, batch: Sequence[Request], now_ms: int | None) -> list[Answer]:
        answers = super().settle(batch, now_ms)
        if self.loses:
            raise RateLimiterUnavailable("the answer was lost")
        return answers


@pytest.mark.parametrize("landed", [True, False])
def test_what_may_have_been_given_back_is_not_given_back_again(landed: bool) -> None:
    store = ForgetfulStore() if landed else MoodyStore()
    register_store("forgetful", lambda url, timeout: store)
    limiter = SyncRateLimiter("forgetful://")
    with pytest.raises(ValueError), limiter.acquire("e", "r", {"rpm": 50}, [RPM]) as lease:
        store.loses = store.away = True
        for change in (lambda: lease.release(rpm=30), lambda: lease.adjust(rpm=-5), lambda: lease.adjust(rpm=7)):
            with pytest.raises(RateLimiterUnavailable):
                change()
        assert lease.consumed == {"rpm": 15}
        store.loses = store.away = False
        raise ValueError
    assert limiter.available("e", "r", [RPM]) == {"rpm": 60 - 7 if landed else 60 - 35}
