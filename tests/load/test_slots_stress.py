"""Four processes of ten workers share ten slots and 50 a second, and are killed at random: never eleven at once.

A slot that a dead worker held is nobody's until its time is over, and then somebody's once: at the end all ten are
there.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from slots_helpers import PROCESSES, WORKERS, Crowd, Findings, read
from slots_worker import CONSUME, ENTITY, LIMITS, LONG_ENOUGH, RESOURCE, SLOTS, Journal, task

from headgate import RateLimiter, SyncRateLimiter

STRESS = os.environ.get("HEADGATE_STRESS") == "1"
SECONDS = 9.0 if STRESS else 1.0
LEAST_KILLS = 3
TTL_SECONDS = SLOTS.period_ms / 1000
Record = Callable[[str, object], None]


@pytest.fixture(params=["sqlite", "redis", "postgres", "dynamodb", *(["redis cluster"] if STRESS else [])])
def store(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def url(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if store == "sqlite":
        return f"sqlite:///{tmp_path / 'slots.db'}"
    if store == "dynamodb":
        request.getfixturevalue("aws_credentials")
        url: str = request.getfixturevalue("ministack").url(f"slots-{uuid4().hex}")
        with SyncRateLimiter(url, store_timeout=LONG_ENOUGH) as limiter:
            limiter.setup()
        return url
    server = {"redis": "redis_server", "postgres": "postgres_server", "redis cluster": "redis_cluster"}[store]
    return str(request.getfixturevalue(server).url)


@pytest.mark.timeout(180)
def test_never_more_than_there_are_slots(store: str, url: str, tmp_path: Path, record_property: Record) -> None:
    chance = random.Random(1)
    namespace = uuid4().hex[:12]
    with Crowd(url, namespace, tmp_path, chance) as crowd:
        crowd.wait_until_busy()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or crowd.killed < LEAST_KILLS:
            time.sleep(chance.uniform(0.2, 1.2))
            crowd.kill_one()
        crowd.stop()
        findings = crowd.findings()
    record_property("load", findings.row(store, crowd.killed))
    findings.check()
    assert findings.most_at_once() >= 0.7 * SLOTS.capacity, "they were hardly in use: this proves nothing"
    time.sleep(TTL_SECONDS)
    check_none_is_lost(url, namespace, died=findings.count("killed") + crowd.killed * WORKERS)


def check_none_is_lost(url: str, namespace: str, died: int) -> None:
    """All free, to be had, and cleared away once. `died`: at most so many held a slot when they did."""
    with SyncRateLimiter(url, namespace=namespace, store_timeout=LONG_ENOUGH) as limiter:
        assert limiter.available(ENTITY, RESOURCE, LIMITS)["slots"] == SLOTS.capacity
        found = limiter.reconcile()
        assert found.leases <= min(died, SLOTS.capacity)
        assert found.restored == 0
        assert limiter.reconcile().leases == 0
        leases = [
            decision.lease
            for _ in range(11)
            if (decision := limiter.try_acquire(ENTITY, RESOURCE, {"slots": 1}, LIMITS))
        ]
        assert len(leases) == SLOTS.capacity
        for lease in leases:
            assert lease is not None
            lease.commit()
        assert limiter.available(ENTITY, RESOURCE, LIMITS)["slots"] == SLOTS.capacity


def test_never_more_than_there_are_slots_in_memory(tmp_path: Path, record_property: Record) -> None:
    """In one process, where nobody is killed, and everybody is cancelled sooner or later."""
    findings, cancelled = asyncio.run(cancel_at_random(tmp_path / "tasks.jsonl", random.Random(1)))
    record_property("load", findings.row("memory", cancelled))
    findings.check(tokens_came_back=True)
    assert cancelled > LEAST_KILLS
    assert findings.most_at_once() >= 0.7 * SLOTS.capacity


async def cancel_at_random(path: Path, chance: random.Random) -> tuple[Findings, int]:
    journal = Journal(path)
    cancelled = 0
    async with RateLimiter("memory://") as limiter:

        def start(worker: int) -> asyncio.Task[None]:
            return asyncio.create_task(task(limiter, journal, worker, chance))

        running = [start(worker) for worker in range(PROCESSES * WORKERS)]
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or cancelled <= LEAST_KILLS:
            await asyncio.sleep(chance.uniform(0, 0.02))
            victim = chance.randrange(len(running))
            if not running[victim].done():
                running[victim].cancel()
                await asyncio.wait([running[victim]])
                cancelled += 1
            for worker, one in enumerate(running):
                if one.done():
                    assert one.cancelled() or one.exception() is None
                    running[worker] = start(worker)
        await asyncio.gather(*running)
        assert (await limiter.available(ENTITY, RESOURCE, LIMITS))["slots"] == SLOTS.capacity
        assert (await limiter.reconcile()).leases == 0
        async with limiter.acquire(ENTITY, RESOURCE, {**CONSUME, "slots": SLOTS.capacity}, LIMITS, max_wait=1):
            assert not await limiter.try_acquire(ENTITY, RESOURCE, {"slots": 1}, LIMITS)
    journal.close()
    return read({path: None}), cancelled
