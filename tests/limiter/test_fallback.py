"""`on_unavailable="local"`: while the store is away, each limiter enforces its share of every limit."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limiter_helpers import FailingStore, eventually, failing_store, soon

from headgate import (
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SyncRateLimiter,
    ValidationError,
)
from headgate.limiter.acquire.fallback import share
from headgate.testing import ManualClock

RPM = Limit.per_minute("rpm", 60)
SLOTS = Limit.concurrent("parallel", 4)
BOTH = [RPM, SLOTS]
AWAY = RateLimiterUnavailable("it is away")

limits = st.one_of(
    st.builds(
        Limit.from_stored,
        st.just("x"),
        st.integers(1, 10**15),
        st.integers(1, 10**15),
        st.integers(1, 366 * 86_400_000),
    ),
    st.builds(Limit.concurrent, st.just("x"), st.integers(1, 10**6), st.integers(1, 86_400)),
)


@given(limits, st.integers(1, 1000))
def test_all_shares_together_are_no_more_than_the_limit(limit: Limit, instances: int) -> None:
    part = share(limit, instances)
    assert (part.name, part.is_concurrent) == (limit.name, limit.is_concurrent)
    least_milli = min(limit.capacity_milli, 1000)  # a token, or a slot: otherwise nothing would ever pass
    assert part.capacity_milli * instances <= limit.capacity_milli or part.capacity_milli == least_milli
    assert part.capacity_milli >= least_milli
    if limit.is_concurrent:
        assert part.capacity_milli % 1000 == 0
        assert part.period_ms == limit.period_ms, "a holder is believed dead after the same time"
    elif limit.period_ms * instances <= 366 * 86_400_000:
        assert part.refill_milli * limit.period_ms * instances == limit.refill_milli * part.period_ms
    if instances == 1:
        assert part == limit


@pytest.fixture
def store() -> FailingStore:
    return failing_store()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limiter(store: FailingStore, clock: ManualClock) -> Any:
    limiter = SyncRateLimiter("failing://", clock=clock, on_unavailable="local")
    yield limiter
    limiter.close()


def refused(limiter: Any, **consume: int) -> list[str]:
    decision = limiter.try_acquire("e", "r", consume, BOTH)
    assert not decision
    assert decision.degraded
    return [status.limit_name for status in decision.statuses if status.exceeded]


def test_a_share_and_no_more(store: FailingStore, limiter: Any, clock: ManualClock) -> None:
    assert not limiter.try_acquire("e", "r", {"rpm": 1}, BOTH).degraded
    limiter.engine.fallback.instances = 3
    store.error = AWAY
    passed = [limiter.try_acquire("e", "r", {"rpm": 1}, BOTH) for _ in range(20)]
    assert all(passed)
    assert all(decision.degraded for decision in passed)
    assert all(decision.lease.degraded for decision in passed)
    assert refused(limiter, rpm=1) == ["rpm"]
    assert limiter.try_acquire("f", "r", {"rpm": 20}, BOTH), "each entity has its own"
    clock.advance(2.999)
    assert refused(limiter, rpm=1) == ["rpm"]
    clock.advance(0.001)
    assert limiter.try_acquire("e", "r", {"rpm": 1}, BOTH), "it refills at a third of the rate"
    with pytest.raises(RateLimitExceeded, match="never"), limiter.acquire("e", "r", {"rpm": 21}, BOTH):
        pytest.fail("the body ran")


def test_a_share_that_changes_keeps_what_was_used(store: FailingStore, limiter: Any) -> None:
    """While limiters come and go, each count of them is another limit on the same buckets."""
    limiter.try_acquire("e", "r", {"rpm": 1}, BOTH)
    store.error = AWAY
    admitted = 0
    for _ in range(100):
        for limiter.engine.fallback.instances in (1, 3, 2):
            admitted += bool(limiter.try_acquire("e", "r", {"rpm": 1}, BOTH))
    assert admitted == 60


def test_local_slots_are_a_share_and_come_back(store: FailingStore, limiter: Any, clock: ManualClock) -> None:
    limiter.engine.fallback.instances = 2
    store.error = AWAY
    lost: list[Any] = []
    with limiter.acquire("e", "r", {"parallel": 1, "rpm": 1}, BOTH) as lease:
        held = limiter.try_acquire("e", "r", {"parallel": 1}, BOTH, on_lost=lost.append).lease
        assert lease.degraded
        assert refused(limiter, parallel=1) == ["parallel"]
        clock.advance(59)
        assert lease.renew()
        clock.advance(1)
        assert not held.renew()
        assert lost == [held]
        assert limiter.try_acquire("e", "r", {"parallel": 1}, BOTH)
    assert limiter.try_acquire("e", "r", {"parallel": 1}, BOTH), "given back"
    assert refused(limiter, parallel=1) == ["parallel"]


def test_what_was_taken_here_is_given_back_here(store: FailingStore, limiter: Any) -> None:
    limiter.try_acquire("e", "r", {"rpm": 1}, BOTH)
    store.error = AWAY
    with limiter.acquire("e", "r", {"rpm": 10}, BOTH) as lease:
        lease.consume(rpm=20)
        with pytest.raises(RateLimitExceeded):
            lease.consume(rpm=31)
        lease.release(rpm=5)
        lease.adjust(rpm=5)
        store.error = None  # back again: what the lease does is no matter of the store's
        lease.consume(rpm=1)
    with pytest.raises(ValueError), limiter.acquire("e", "r", {"rpm": 9}, BOTH) as lease:
        assert not lease.degraded
        raise ValueError
    assert limiter.available("e", "r", BOTH) == {"rpm": 59, "parallel": 4}
    store.error = AWAY
    assert limiter.try_acquire("e", "r", {"rpm": 29}, BOTH)
    assert refused(limiter, rpm=1) == ["rpm"]


def test_local_share_can_be_waited_for_up_to_max_wait(store: FailingStore, limiter: Any) -> None:
    quick = [Limit.custom("x", 10, 1000, 1)]
    store.error = AWAY
    assert limiter.try_acquire("e", "r", {"x": 10}, quick)
    with limiter.acquire("e", "r", {"x": 5}, quick, max_wait=1) as lease:
        assert lease.degraded
    assert not limiter.try_acquire("e", "r", {"x": 10}, quick, max_wait=0.001)


def test_limits_as_they_were_last_known(store: FailingStore, limiter: Any, clock: ManualClock) -> None:
    limiter.set_system_defaults([RPM])
    limiter.create_entity("org")
    limiter.set_limits("org", [Limit.per_minute("rpm", 5)])
    limiter.create_entity("ann", parent_id="org", cascade=True)
    assert limiter.try_acquire("ann", "r", {"rpm": 1})
    store.error = AWAY
    clock.advance(3600)  # long after the cache has expired
    assert limiter.try_acquire("ann", "r", {"rpm": 5})
    decision = limiter.try_acquire("ann", "r", {"rpm": 1})
    assert [(status.entity_id, status.exceeded) for status in decision.statuses] == [("ann", False), ("org", True)]
    with pytest.raises(RateLimiterUnavailable):
        limiter.try_acquire("bob", "r", {"rpm": 1})
    assert limiter.try_acquire("bob", "r", {"rpm": 1}, BOTH).degraded, "the call itself says what its limits are"
    with pytest.raises(ValidationError):
        limiter.try_acquire("ann", "r", {"rps": 1})


def test_the_policy_of_a_call_and_of_the_system(store: FailingStore, clock: ManualClock) -> None:
    with SyncRateLimiter("failing://", clock=clock) as limiter:
        limiter.set_system_defaults([RPM], on_unavailable="local")
        assert limiter.get_system_on_unavailable() == "local"
        assert limiter.try_acquire("e", "r", {"rpm": 1})
        store.error = AWAY
        assert limiter.try_acquire("e", "r", {"rpm": 60}).degraded
        assert not limiter.try_acquire("e", "r", {"rpm": 60})
        assert limiter.try_acquire("e", "r", {"rpm": 60}, on_unavailable="allow")
        with pytest.raises(RateLimiterUnavailable):
            limiter.try_acquire("e", "r", {"rpm": 60}, on_unavailable="block")
        clock.advance(3600)
        assert not limiter.try_acquire("e", "r", {"rpm": 61}), "known though the cache has expired"


def test_local_shares_of_several_dimensions_are_all_or_nothing(store: FailingStore, limiter: Any) -> None:
    wish = {"a#r": {"rpm": 1, "parallel": 4}, "b#r": {"rpm": 50}}
    limits = dict.fromkeys(wish, BOTH)
    limiter.available("a", "r", BOTH)
    store.error = AWAY
    with limiter.acquire_many(wish, limits=limits) as leases:
        assert all(lease.degraded for lease in leases.values())
        with pytest.raises(RateLimitExceeded), limiter.acquire_many(wish, limits=limits):
            pytest.fail("the body ran")
    with limiter.acquire_many({"a#r": {"parallel": 4}, "b#r": {"rpm": 10}}, limits=limits):
        pass
    with limiter.acquire_many(wish, limits=limits, on_unavailable="allow") as leases:
        assert {dimension: lease.consumed for dimension, lease in leases.items()} == {"a#r": {}, "b#r": {}}
    with pytest.raises(RateLimiterUnavailable), limiter.acquire_many(wish, limits=limits, on_unavailable="block"):
        pytest.fail("the body ran")


def test_a_recorded_lease_goes_without_its_record(store: FailingStore, limiter: Any) -> None:
    limiter.available("e", "r", BOTH)
    store.error = AWAY
    how: Any = {"record_lease": True, "restore_on_expiry": True}
    with pytest.raises(ValueError), limiter.acquire("e", "r", {"rpm": 60}, BOTH, **how):
        raise ValueError
    assert limiter.try_acquire("e", "r", {"rpm": 60}, BOTH).degraded


# How many share it


def test_limiters_count_each_other() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    limiters = [SyncRateLimiter(url, on_unavailable="local") for _ in range(3)]
    other = SyncRateLimiter(url, namespace="other", on_unavailable="local")
    plain = SyncRateLimiter(url)
    for limiter in (*limiters, other, plain):
        assert limiter.try_acquire("e", "r", {"rpm": 1}, BOTH)
        assert limiter.known_instances == 1 or eventually(lambda limiter=limiter: limiter.known_instances > 1)
    assert eventually(lambda: limiters[-1].known_instances == 3)
    assert (other.known_instances, plain.known_instances) == (1, 1)
    for limiter in limiters:
        limiter.engine.renewal.chores._count_at = 0.001  # it is done every ten seconds
        limiter.engine.count_instances()
        limiter.engine.renewal.wake(0.0)
    assert eventually(lambda: [limiter.known_instances for limiter in limiters] == [3, 3, 3])
    for limiter in (*limiters, other, plain):
        limiter.close()


def test_the_dead_are_counted_no_more(store: FailingStore, clock: ManualClock) -> None:
    dead, alive = (SyncRateLimiter("failing://", clock=clock, on_unavailable="local") for _ in range(2))
    for limiter in (dead, alive):
        limiter.try_acquire("e", "r", {"rpm": 1}, BOTH)
    assert eventually(lambda: alive.known_instances == 2)
    dead.close()
    clock.advance(31)
    alive.engine.renewal.chores._count_at = 0.001
    alive.engine.renewal.wake(0.0)
    assert eventually(lambda: alive.known_instances == 1)
    alive.close()


def test_coroutines_enforce_their_local_share(store: FailingStore) -> None:
    async def scenario() -> None:
        async with (
            RateLimiter("failing://", on_unavailable="local") as one,
            RateLimiter("failing://", on_unavailable="local") as other,
        ):
            for limiter in (one, other):
                assert await limiter.try_acquire("e", "r", {"rpm": 1}, BOTH)
                await asyncio.sleep(0.05)
            assert await soon(lambda: other.known_instances == 2)
            store.error = AWAY
            async with other.acquire("e", "r", {"rpm": 29, "parallel": 2}, BOTH) as lease:
                assert lease.degraded
                await lease.consume(rpm=1)
                decision = await other.try_acquire("e", "r", {"rpm": 1, "parallel": 1}, BOTH)
                assert decision.degraded
                assert [status.exceeded for status in decision.statuses] == [True, True]
            assert not await other.try_acquire("e", "r", {"rpm": 1}, BOTH)
            assert await other.try_acquire("e", "r", {"parallel": 2}, BOTH)

    asyncio.run(scenario())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on Windows")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_process_is_one_more(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/headgate.db"
    limiter = SyncRateLimiter(url, on_unavailable="local")
    limiter.try_acquire("e", "r", {"rpm": 1}, BOTH)
    assert eventually(lambda: limiter.engine.store.list_records("default/instance#", None, 10, 0))
    ours, theirs = os.pipe()
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            try:
                limiter.try_acquire("e", "r", {"rpm": 1}, BOTH)
                os.write(theirs, b"x" if eventually(lambda: limiter.known_instances > 1) else b"-")
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    assert os.read(ours, 10) == b"xx"
    with SyncRateLimiter(url, on_unavailable="local") as other:
        other.try_acquire("e", "r", {"rpm": 1}, BOTH)
        assert eventually(lambda: other.known_instances == 4)
    limiter.close()
    os.close(ours)
    os.close(theirs)
