"""Leases that hold slots, where the store makes no difference. The rest is in the conformance suite."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from limiter_helpers import FailingStore, failing_store

from headgate import (
    LeaseExpired,
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SyncRateLimiter,
    ValidationError,
)
from headgate.core.records import Page
from headgate.testing import ManualClock

RPM = Limit.per_minute("rpm", 60)
SLOTS = Limit.concurrent("parallel", 2)
BOTH = [RPM, SLOTS]
AWAY = RateLimiterUnavailable("it is away")


@pytest.fixture
def store() -> FailingStore:
    return failing_store()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limiter(store: FailingStore, clock: ManualClock) -> Iterator[Any]:
    with SyncRateLimiter("failing://", clock=clock) as limiter:
        yield limiter


def test_never_more_than_there_are() -> None:
    """Threads of two limiters: what they count themselves is what the limit says."""
    url, lock, inside, most, refused = "memory://never-more", threading.Lock(), [0], [0], [0]

    def work(limiter: SyncRateLimiter) -> None:
        for _ in range(100):
            try:
                with limiter.acquire("e", "r", {"parallel": 1}, [SLOTS]):
                    with lock:
                        inside[0] += 1
                        most[0] = max(most[0], inside[0])
                    with lock:
                        inside[0] -= 1
            except RateLimitExceeded:
                refused[0] += 1

    with SyncRateLimiter(url) as one, SyncRateLimiter(url) as other:
        threads = [threading.Thread(target=work, args=(limiter,)) for limiter in (one, other) * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most[0] <= 2
        assert one.available("e", "r", [SLOTS]) == {"parallel": 2}


def test_a_lease_shows_what_became_of_it(limiter: Any) -> None:
    lease = limiter.try_acquire("e", "r", {"parallel": 1}, BOTH).lease
    assert len(lease.id) == 24
    assert repr(lease) == f"<SyncLease {lease.id} active consumed={{'parallel': 1}}>"
    limiter.reset("e", "r")
    lease.renew()
    assert repr(lease) == f"<SyncLease {lease.id} lost consumed={{'parallel': 1}}>"
    lease.commit()
    assert repr(lease) == f"<SyncLease {lease.id} committed consumed={{'parallel': 0}}>"
    assert lease.lost


def test_a_lease_of_tokens_has_nothing_to_lose(limiter: Any, clock: ManualClock) -> None:
    with limiter.acquire("e", "r", {"rpm": 1}, BOTH, on_lost=pytest.fail) as lease:
        clock.advance(3600)
        assert lease.renew()
        assert not lease.lost


@pytest.mark.parametrize("bad", ["print", 1, [print]])
def test_on_lost_that_cannot_be_called_is_refused(limiter: Any, bad: Any) -> None:
    for call in (limiter.acquire, limiter.try_acquire):
        with pytest.raises(ValidationError, match="on_lost"):
            call("e", "r", {"parallel": 1}, BOTH, on_lost=bad)


def test_a_body_that_ends_while_the_store_is_away(
    store: FailingStore, limiter: Any, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with limiter.acquire("e", "r", {"rpm": 1, "parallel": 2}, BOTH) as lease:
        store.error = AWAY
    assert f"the slots of lease {lease.id} run out by themselves" in caplog.text
    store.error = None
    clock.advance(59.999)
    assert not limiter.try_acquire("e", "r", {"parallel": 1}, BOTH)
    clock.advance(0.001)
    assert limiter.try_acquire("e", "r", {"parallel": 1}, BOTH)


def test_a_commit_that_failed_is_an_error_where_nobody_else_would_tell(store: FailingStore, limiter: Any) -> None:
    lease = limiter.try_acquire("e", "r", {"parallel": 1}, BOTH).lease
    store.error = AWAY
    with pytest.raises(RateLimiterUnavailable):
        lease.commit()
    store.error = None


def test_allowed_while_the_store_is_away_nothing_is_held(store: FailingStore, limiter: Any) -> None:
    store.error = AWAY
    for _ in range(5):
        with limiter.acquire("e", "r", {"parallel": 2}, BOTH, on_unavailable="allow") as lease:
            assert lease.degraded
            lease.consume(parallel=1)
            assert lease.renew()
            assert lease.consumed == {}


def test_renewing_while_the_store_is_away_says_so(store: FailingStore, limiter: Any) -> None:
    with limiter.acquire("e", "r", {"parallel": 1}, BOTH) as lease:
        store.error = AWAY
        with pytest.raises(RateLimiterUnavailable):
            lease.renew()
        assert not lease.lost, "it may still hold it"
        store.error = None
        assert lease.renew()


def test_a_function_that_few_may_run_at_once(clock: ManualClock) -> None:
    with SyncRateLimiter("memory://", clock=clock) as limiter:

        @limiter.limit("1 concurrent")
        def work(depth: int) -> str:
            return work(depth - 1) if depth else "done"

        assert [work(0), work(0)] == ["done", "done"]
        with pytest.raises(RateLimitExceeded):
            work(1)
        assert work(0) == "done"


def test_a_penalty_or_a_record_is_not_shown_as_a_limit(limiter: Any) -> None:
    decision = limiter.try_acquire("e", "r", {"rpm": 1}, BOTH, record_lease=True)
    assert [status.limit_name for status in decision.statuses] == ["rpm"]
    assert decision.lease.consumed == {"rpm": 1}
    assert [bucket.limit.name for bucket in limiter.get_buckets("e")] == ["rpm"]
    decision.lease.commit()


def test_task_cancelled_in_the_body_gives_back_slot_and_tokens() -> None:
    async def scenario() -> None:
        async with RateLimiter("memory://") as limiter:

            async def work() -> None:
                async with limiter.acquire("e", "r", {"rpm": 1, "parallel": 1}, BOTH):
                    await asyncio.sleep(3600)

            tasks = [asyncio.create_task(work()) for _ in range(2)]
            await asyncio.sleep(0.01)
            assert await limiter.available("e", "r", BOTH) == {"rpm": 58, "parallel": 0}
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            assert await limiter.available("e", "r", BOTH) == {"rpm": 60, "parallel": 2}

    asyncio.run(scenario())


def test_a_part_of_a_slot_cannot_be_given_back(limiter: Any) -> None:
    with limiter.acquire("e", "r", {"rpm": 1, "parallel": 1}, BOTH) as lease:
        with pytest.raises(ValidationError, match=r"whole number of slots, not 0\.5"):
            lease.release(parallel=0.5, rpm=1)
        assert lease.consumed == {"rpm": 1, "parallel": 1}


@pytest.mark.parametrize("losses", [1, 2])
def test_a_record_of_which_nobody_knows_whether_it_was_written(
    store: FailingStore, limiter: Any, clock: ManualClock, losses: int
) -> None:
    """The acquire fails and gives back. `reconcile`, should it find the record, must not do that again."""
    spend = [Limit.per_day("spend", 1000), SLOTS]
    limiter.adjust("e", "r", {"spend": 500}, spend)
    store.lost_answers = ["write_records"] * losses
    with pytest.raises(RateLimiterUnavailable):
        limiter.try_acquire("e", "r", {"spend": 100, "parallel": 1}, spend, record_lease=True, restore_on_expiry=True)
    clock.advance(60)
    limiter.reconcile()
    assert limiter.available("e", "r", spend)["spend"] <= 500
    assert limiter.available("e", "r", spend)["parallel"] == 2
    assert losses > 1 or limiter.available("e", "r", spend)["spend"] == 500


def test_the_living_are_found_on_whatever_page_they_are(
    store: FailingStore, limiter: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page may be empty, and not be the last."""
    spend = [Limit.per_day("spend", 1000)]
    limiter.adjust("e", "r", {"spend": 500}, spend)
    all_at_once = store.list_buckets

    def in_pages(namespace: str, entity_id: Any, resource: Any, cursor: str | None, now_ms: int) -> Any:
        return Page([], "more") if cursor is None else all_at_once(namespace, entity_id, resource, None, now_ms)

    monkeypatch.setattr(store, "list_buckets", in_pages)
    how: Any = {"record_lease": True, "restore_on_expiry": True}
    alive, _dead = (limiter.try_acquire("e", "r", {"spend": 100}, spend, **how).lease for _ in range(2))
    assert limiter.reconcile().leases == 0
    clock.advance(59)
    assert alive.renew()
    clock.advance(1)
    found = limiter.reconcile()
    assert (found.leases, found.restored) == (1, 1)
    assert limiter.available("e", "r", spend) == {"spend": 400}
    alive.commit()
    assert limiter.available("e", "r", spend) == {"spend": 400}


@pytest.mark.parametrize("consume", [{"rpm": 10}, {"rpm": 10, "parallel": 1}])
def test_lease_is_given_back_once_although_a_fork_leaves_its_body_too(tmp_path: Path, consume: dict[str, int]) -> None:
    with SyncRateLimiter(f"sqlite:///{tmp_path}/fork.db") as limiter:
        limiter.adjust("e", "r", {"rpm": 40}, BOTH)
        child = -1
        with pytest.raises(KeyError):  # noqa: SIM117
            with limiter.acquire("e", "r", consume, BOTH) as lease:
                child = os.fork()
                if child == 0:
                    expired = False
                    try:
                        lease.adjust(rpm=-5)
                    except LeaseExpired as error:
                        expired = "fork" in str(error)
                    try:
                        lease.__exit__(KeyError, KeyError(), None)
                    finally:
                        os._exit(0 if expired else 1)
                _, status = os.waitpid(child, 0)
                assert status == 0
                assert limiter.available("e", "r", BOTH)["rpm"] == 10
                raise KeyError
        assert limiter.available("e", "r", BOTH) == {"rpm": 20, "parallel": 2}
