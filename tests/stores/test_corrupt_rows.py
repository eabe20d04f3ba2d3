"""A row that is damaged concerns the requests on it, and nobody else: on every store, damaged in every way."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damage import Bench, dynamodb_bench, new_name, postgres_bench, redis_bench, sqlite_bench
from postgres_helpers import emptied

from headgate import Ask, CorruptState, Limit, RateLimiter, SyncRateLimiter
from headgate.testing.clock import ManualClock

RPM = Limit.per_minute("rpm", 10)
STORES = ["sqlite", "redis", "postgres", "dynamodb"]
BUSY = {"store_timeout": 20.0}
PARTS = 4
STRESS = os.environ.get("HEADGATE_STRESS") == "1"


@pytest.fixture(params=STORES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    if request.param == "sqlite":
        return sqlite_bench(f"{tmp_path}/headgate.db")
    if request.param == "redis":
        return redis_bench(request.getfixturevalue("redis_server"))
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        emptied(server)
        return postgres_bench(server)
    request.getfixturevalue("aws_credentials")
    engine = request.getfixturevalue("ministack")
    table = f"t{uuid.uuid4().hex}"
    with SyncRateLimiter(engine.url(table), **BUSY) as limiter:
        limiter.setup()
    return dynamodb_bench(engine.url(table), engine.client(), table)


def used(limiter: SyncRateLimiter) -> None:
    """Three entities, of which one is going to be damaged."""
    for entity_id, times in (("ann", 2), ("bob", 3), ("cid", 4)):
        for _ in range(times):
            assert limiter.try_acquire(entity_id, "chat", {"rpm": 1}, [RPM])


def asks() -> list[Ask]:
    return [Ask(entity_id, "chat", {"rpm": 1}, [RPM]) for entity_id in ("ann", "bob", "cid", "ann", "cid")]


def shown(decisions: list[Any]) -> list[Any]:
    return [(one.allowed, [status.available for status in one.statuses], one.retry_after_ms) for one in decisions]


def each_damage(bench: Bench, check: Callable[[str, ManualClock], None], part: int = 0) -> None:
    """In a namespace of its own, and all that went wrong together: a store is asked thousands of things here. One that
    is slow to ask is damaged in each way for one of the tests (`part`), and for all of them in a soak."""
    wrong = {}
    step = PARTS if bench.url.startswith("dynamodb") and not STRESS else 1
    for what, damage in list(bench.damages.items())[part % step :: step]:
        clock, namespace = ManualClock(), new_name()
        with SyncRateLimiter(bench.url, clock=clock, namespace=namespace, **BUSY) as limiter:
            used(limiter)
        damage(namespace, "bob#chat")
        try:
            check(namespace, clock)
        except BaseException as error:
            wrong[what] = f"{type(error).__name__}: {error}"
    assert not wrong, "\n".join(f"{what}: {error}" for what, error in wrong.items())


def listed(limiter: SyncRateLimiter) -> tuple[list[Any], list[CorruptState]]:
    """All pages: the buckets, and what could not be read."""
    buckets, corrupt, cursor = [], [], None
    while True:
        page = limiter.list_buckets("chat", cursor=cursor)
        buckets += page
        corrupt += page.corrupt
        cursor = page.cursor
        if cursor is None:
            return buckets, corrupt


def expected(bench: Bench) -> list[Any]:
    """What those get whose twins share a batch with nobody damaged."""
    clock = ManualClock()
    with SyncRateLimiter(bench.url, clock=clock, namespace=new_name(), **BUSY) as twin:
        used(twin)
        return shown([one for at, one in enumerate(twin.try_acquire_each(asks())) if at != 1])


def test_healthy_requests_of_a_batch_are_answered_as_without_damage(bench: Bench) -> None:
    as_without = expected(bench)

    def check(namespace: str, clock: ManualClock) -> None:
        with SyncRateLimiter(bench.url, clock=clock, namespace=namespace, on_unavailable="allow", **BUSY) as limiter:
            decisions = limiter.try_acquire_each(asks())
            assert isinstance(decisions[1].error, CorruptState)
            assert not decisions[1]
            assert shown([one for at, one in enumerate(decisions) if at != 1]) == as_without
            assert limiter.available("ann", "chat", [RPM]) == {"rpm": 6}, "exactly once"
            assert limiter.available("cid", "chat", [RPM]) == {"rpm": 4}, "exactly once"

    each_damage(bench, check, part=0)


def test_damaged_one_raises_and_is_no_outage(bench: Bench) -> None:
    def check(namespace: str, clock: ManualClock) -> None:
        with SyncRateLimiter(bench.url, clock=clock, namespace=namespace, on_unavailable="allow", **BUSY) as limiter:
            for _ in range(7):
                with pytest.raises(CorruptState, match=r"'bob' on 'chat' is corrupt.*reset\('bob', 'chat'\)") as caught:
                    limiter.try_acquire("bob", "chat", {"rpm": 1}, [RPM])
            assert (caught.value.entity_id, caught.value.resource) == ("bob", "chat")
            with pytest.raises(CorruptState):
                limiter.adjust("bob", "chat", {"rpm": 1}, [RPM])
            with pytest.raises(CorruptState):
                limiter.adjust("bob", "chat", {"rpm": -1}, [RPM])
            with pytest.raises(CorruptState):
                limiter.available("bob", "chat", [RPM])
            assert limiter.breaker_state == "closed"
            assert limiter.try_acquire("ann", "chat", {"rpm": 1}, [RPM])

    each_damage(bench, check, part=1)


def test_tasks_that_share_a_call_are_answered_as_without_damage(bench: Bench) -> None:
    async def check(namespace: str, clock: ManualClock) -> None:
        async with RateLimiter(bench.url, clock=clock, namespace=namespace, on_unavailable="allow", **BUSY) as limiter:
            asked = [limiter.try_acquire(ask.entity_id, "chat", {"rpm": 1}, [RPM]) for ask in asks() * 2]
            results = await asyncio.gather(*asked, return_exceptions=True)
            for at, result in enumerate(results):
                assert isinstance(result, CorruptState) if at % 5 == 1 else result, (at, result)
            assert await limiter.available("ann", "chat", [RPM]) == {"rpm": 4}
            assert await limiter.available("cid", "chat", [RPM]) == {"rpm": 2}
            assert limiter.breaker_state == "closed"

    each_damage(bench, lambda namespace, clock: asyncio.run(check(namespace, clock)), part=2)


def test_list_names_the_damaged_and_goes_on_and_reset_mends(bench: Bench) -> None:
    def check(namespace: str, clock: ManualClock) -> None:
        with SyncRateLimiter(bench.url, clock=clock, namespace=namespace, **BUSY) as limiter:
            buckets, corrupt = listed(limiter)
            assert {one.entity_id for one in buckets} == {"ann", "cid"}
            assert {(error.entity_id, error.resource) for error in corrupt} == {("bob", "chat")}
            assert [error.entity_id for error in limiter.get_buckets("bob").corrupt] == ["bob"]
            limiter.reconcile()
            limiter.get_usage_summary("bob")
            limiter.reset("bob", "chat")
            assert not listed(limiter)[1]
            assert limiter.available("bob", "chat", [RPM]) == {"rpm": 10}, "it starts full"
            assert limiter.try_acquire("bob", "chat", {"rpm": 1}, [RPM])
            assert limiter.available("bob", "chat", [RPM]) == {"rpm": 9}

    each_damage(bench, check, part=3)


def test_damage_of_an_ancestor_takes_nothing_from_its_child(bench: Bench) -> None:
    namespace, clock = new_name(), ManualClock()
    with SyncRateLimiter(bench.url, clock=clock, namespace=namespace, limits=[RPM], **BUSY) as limiter:
        limiter.create_entity("bob")
        limiter.create_entity("child", parent_id="bob", cascade=True)
        assert limiter.try_acquire("child", "chat", {"rpm": 1})
    bench.damages[next(iter(bench.damages))](namespace, "bob#chat")
    with SyncRateLimiter(bench.url, clock=clock, namespace=namespace, limits=[RPM], **BUSY) as limiter:
        for _ in range(3):
            with pytest.raises(CorruptState, match="'bob' on 'chat'"):
                limiter.try_acquire("child", "chat", {"rpm": 1})
        limiter.reset("bob", "chat")
        assert limiter.available("child", "chat") == {"rpm": 9}


PARALLEL = Limit.concurrent("parallel", 5, ttl=60)


def test_damaged_slots_concern_their_own_requests_and_reset_mends(bench: Bench) -> None:
    def asked(entity_id: str) -> Ask:
        return Ask(entity_id, "chat", {"parallel": 1}, [PARALLEL])

    wrong = {}
    for what, damage in bench.slot_damages.items():
        namespace, clock = new_name(), ManualClock()
        settings: dict[str, Any] = {"clock": clock, "namespace": namespace, "on_unavailable": "allow", **BUSY}
        with SyncRateLimiter(bench.url, **settings) as limiter:
            for entity_id in ("ann", "bob", "cid"):
                assert limiter.try_acquire(entity_id, "chat", {"parallel": 1}, [PARALLEL]).lease
            damage(namespace, "bob#chat")
            clock.advance(1)
            try:
                with SyncRateLimiter(bench.url, **settings) as other:
                    decisions = other.try_acquire_each([asked("ann"), asked("bob"), asked("cid")])
                    assert [bool(one) for one in decisions] == [True, False, True]
                    assert isinstance(decisions[1].error, CorruptState)
                    with pytest.raises(CorruptState):
                        other.try_acquire("bob", "chat", {"parallel": 1}, [PARALLEL])
                    assert other.breaker_state == "closed"
                    assert [error.entity_id for error in other.find_corrupt()] == ["bob"]
                    other.reconcile()
                    other.reset("bob", "chat")
                    assert other.find_corrupt() == []
                    assert other.available("bob", "chat", [PARALLEL]) == {"parallel": 5}
                    assert other.available("ann", "chat", [PARALLEL]) == {"parallel": 3}
            except BaseException as error:
                wrong[what] = f"{type(error).__name__}: {error}"
    assert not wrong, "\n".join(f"{what}: {error}" for what, error in wrong.items())
