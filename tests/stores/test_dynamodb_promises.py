"""Ten things that stores on DynamoDB are known to get wrong, each by the public API; and secrets stay secret."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from itertools import count
from typing import Any

import pytest
from dynamodb_limiters import TEN, Scene, Table, both_kinds, limiter_of, new_entity, patiently, scene_on, take, told

from headgate import Limit, RateLimiter, RateLimitExceeded
from headgate.aws.aggregator import follow
from headgate.stores.dynamodb import keys
from headgate.testing import ManualClock
from headgate.testing.conformance.hashed_ids import SECRET, SETTINGS, USER, Stored, Tour
from headgate.testing.servers.process import eventually
from local_servers.dynamodb import Engine

MINUTE = Limit.per_minute("n", 60)


@pytest.fixture(scope="module")
def table(ministack: Engine, aws_credentials: str) -> Iterator[Table]:
    with closing(Table(ministack)) as table:
        yield table


@pytest.fixture
def scene(table: Table) -> Iterator[Scene]:
    with scene_on(table) as scene:
        yield scene


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def admitted(limiter: Any, entity: str) -> int:
    """How often it passes until it does not."""
    return sum(1 for _ in iter(lambda: bool(take(limiter, entity, 1, MINUTE)), False))


@both_kinds
class TestOneLimiter:
    def test_1_a_burst_after_a_rest_is_one_burst(self, kind: str, scene: Scene, clock: ManualClock) -> None:
        """Nothing is taken before the time that has passed is settled."""
        entity = new_entity()
        with limiter_of(kind, scene.url, clock=clock) as limiter:
            assert admitted(limiter, entity) == 60
            clock.advance(200)
            assert admitted(limiter, entity) == 60
            clock.advance(10.5)
            assert admitted(limiter, entity) == 10

    def test_1_limiters_that_believe_a_bucket_is_full_share_one_burst(
        self, kind: str, scene: Scene, clock: ManualClock
    ) -> None:
        """Each has last seen a bucket that must be full by now."""
        entity = new_entity()
        with limiter_of(kind, scene.url, clock=clock) as one, limiter_of(kind, scene.url, clock=clock) as other:
            assert take(one, entity, 1, MINUTE)
            assert take(other, entity, 1, MINUTE)
            clock.advance(200)
            assert take(one, entity, 45, MINUTE)
            assert not take(other, entity, 16, MINUTE)
            clock.advance(200)
            assert admitted(other, entity) + admitted(one, entity) == 60

    def test_2_a_slow_limit_beside_a_fast_one_refills(self, kind: str, scene: Scene, clock: ManualClock) -> None:
        entity, both = new_entity(), [Limit.per_second("fast", 10), Limit.per_day("slow", 24)]
        with limiter_of(kind, scene.url, clock=clock) as limiter:
            assert limiter.try_acquire(entity, "r", {"slow": 24}, both)
            for _ in range(35):  # using the fast one must not take from the slow one what it has earned
                clock.advance(100)
                assert limiter.try_acquire(entity, "r", {"fast": 10}, both)
            clock.advance(99.999)
            assert not limiter.try_acquire(entity, "r", {"slow": 1}, both)
            clock.advance(0.001)
            assert limiter.try_acquire(entity, "r", {"slow": 1}, both)
            assert limiter.available(entity, "r", both) == {"fast": 10, "slow": 0}

    def test_3_hammered_it_gives_no_more(self, kind: str, scene: Scene, clock: ManualClock) -> None:
        """Ten times a millisecond: what a millisecond earns is a part of a thousandth, and must not be rounded up."""
        entity, limit, passed = new_entity(), Limit.custom("n", 5, 491, 7), 0
        with limiter_of(kind, scene.url, clock=clock) as limiter:
            for _ in range(100):
                clock.advance(0.001)
                decisions = limiter.together([("try_acquire", (entity, "r", {"n": 1}, [limit]))] * 10)
                passed += sum(map(bool, decisions))
        assert passed == 5 + 99 * 491 // 7000

    def test_6_two_leases_cannot_both_have_the_last(self, kind: str, scene: Scene) -> None:
        entity = new_entity()
        with (
            limiter_of(kind, scene.url) as one,
            limiter_of(kind, scene.url) as other,
            one.acquire(entity, "r", {"n": 4}, [TEN]) as mine,
            other.acquire(entity, "r", {"n": 5}, [TEN]) as yours,
        ):
            mine.consume(n=1)
            with pytest.raises(RateLimitExceeded):
                yours.consume(n=1)
        assert scene.left(entity) == 0

    def test_8_after_a_timeout_it_is_not_sent_again(self, kind: str, scene: Scene) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url, store_timeout=1.0) as limiter:
            patiently(lambda: limiter.get_limits(entity))
            scene.proxy.forget()
            scene.proxy.lose_replies(1, operation="UpdateItem", silently=True)
            assert "did not answer" in told(lambda: take(limiter, entity, 3))
            assert scene.proxy.count("UpdateItem") == 1
        assert scene.left(entity) == 7

    def test_9_who_waits_for_one_bucket_is_one_write(self, kind: str, scene: Scene) -> None:
        entity, hundred = new_entity(), Limit.per_day("n", 100)
        with limiter_of(kind, scene.url) as limiter:
            assert take(limiter, entity, 1, hundred)
            scene.proxy.forget()
            scene.proxy.delay(1.5)  # in which all have come
            decisions = limiter.together([("try_acquire", (entity, "r", {"n": 1}, [hundred]))] * 64)
            assert all(decisions)
            # The first one goes alone, and the others wait for it. Threads do not all come at once.
            assert scene.writes() == scene.proxy.count() <= (2 if kind == "async" else 3)
        assert scene.left(entity, limit=hundred) == 35

    def test_9_and_as_many_pass_as_can(self, kind: str, scene: Scene) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url) as limiter:
            assert take(limiter, entity)
            decisions = limiter.together([("try_acquire", (entity, "r", {"n": 1}, [TEN]))] * 64)
            assert sum(map(bool, decisions)) == 9
            assert kind == "sync" or all(decisions[:9]), "the first ones"

    def test_10_refusals_write_nothing(self, kind: str, scene: Scene) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url) as limiter, limiter_of(kind, scene.url) as stranger:
            assert take(limiter, entity, 10)
            assert not take(stranger, entity), "one that knows nothing of the bucket has to ask"
            scene.proxy.forget()
            for one in (limiter, stranger):
                for _ in range(100):
                    assert not take(one, entity)
            assert scene.writes() == 0
            assert scene.proxy.count() < 100, "most are answered from what was seen a moment ago"
            scene.direct.adjust(entity, "r", {"n": -1}, [TEN])
            eventually(lambda: bool(take(limiter, entity)), "what comes back is seen")


@both_kinds
class TestLimits:
    """4: limits that come with the call, and stored ones that are lowered, reach a bucket that is in use."""

    def test_limits_of_a_call_are_obeyed_on_a_live_bucket(self, kind: str, scene: Scene) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url) as one, limiter_of(kind, scene.url) as other:
            for limiter in (one, other):
                assert take(limiter, entity, 1, Limit.per_day("n", 100))
            refused = take(other, entity, 6, Limit.per_day("n", 5))
            assert not refused
            assert refused.retry_after_seconds is None, "it never passes under that limit"
            assert take(one, entity, 3, Limit.per_day("n", 5)), "two of the five were used"
            assert not take(other, entity, 1, Limit.per_day("n", 5))
            assert take(one, entity, 15, Limit.per_day("n", 20)), "what a larger one adds is there at once"

    def test_even_by_one_that_is_refused(self, kind: str, scene: Scene) -> None:
        """And knows nothing of the bucket: it has to look, and then to write after all."""
        entity = new_entity()
        with limiter_of(kind, scene.url) as one, limiter_of(kind, scene.url) as other:
            assert other.available(entity, "r", [TEN]) == {"n": 10}
            assert take(one, entity, 1, Limit.per_day("n", 100))
            assert not take(other, entity, 6, Limit.per_day("n", 5))
            (bucket,) = scene.direct.get_buckets(entity)
            assert (bucket.limit.capacity, bucket.available) == (5, 4)

    def test_lowered_stored_limits_are_obeyed_on_a_live_bucket(self, kind: str, scene: Scene) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url) as one, limiter_of(kind, scene.url, config_cache_ttl=0) as other:
            one.set_limits(entity, [Limit.per_day("n", 100)])
            for limiter in (one, other):
                assert limiter.try_acquire(entity, "r", {"n": 1})
            one.set_limits(entity, [Limit.per_day("n", 5)])
            assert [limiter.available(entity, "r") for limiter in (one, other)] == [{"n": 3}] * 2
            assert [bool(other.try_acquire(entity, "r", {"n": 1})) for _ in range(4)] == [True] * 3 + [False]
            assert not one.try_acquire(entity, "r", {"n": 1})

    def test_lowered_resource_defaults_are_obeyed_on_a_live_bucket(self, kind: str, scene: Scene) -> None:
        entity, resource = new_entity(), new_entity("resource")
        with limiter_of(kind, scene.url, config_cache_ttl=0) as other:
            scene.direct.set_resource_defaults(resource, [Limit.per_day("n", 100)])
            assert other.try_acquire(entity, resource, {"n": 1})
            scene.direct.set_resource_defaults(resource, [Limit.per_day("n", 5)])
            assert [bool(other.try_acquire(entity, resource, {"n": amount})) for amount in (5, 4)] == [False, True]

    def test_who_has_not_heard_of_it_does_not_bring_it_back(self, kind: str, scene: Scene) -> None:
        entity = new_entity()
        with limiter_of(kind, scene.url) as late, limiter_of(kind, scene.url) as one:
            one.set_limits(entity, [Limit.per_day("n", 100)])
            assert late.try_acquire(entity, "r", {"n": 1})
            one.set_limits(entity, [Limit.per_day("n", 5)])
            assert one.try_acquire(entity, "r", {"n": 1})
            passed = [bool(each.try_acquire(entity, "r", {"n": 1})) for _ in range(10) for each in (late, one)]
            assert sum(passed) == 3


def test_5_cancelled_tasks_give_back(scene: Scene) -> None:
    """Whenever it happens: here after some turns of the event loop, on another file at each stage."""
    entity, chance = new_entity(), random.Random(5)

    async def work(limiter: RateLimiter) -> None:
        async with limiter.acquire(entity, "r", {"n": 1}, [TEN]):
            await asyncio.sleep(3600)

    async def main() -> None:
        async with RateLimiter(scene.url, store_timeout=20) as limiter:
            await limiter.available(entity, "r", [TEN])
            for _ in range(15):
                tasks = [asyncio.create_task(work(limiter)) for _ in range(10)]
                await asyncio.sleep(chance.uniform(0, 0.01))
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                assert all(task.cancelled() for task in tasks)

    asyncio.run(main())
    assert scene.left(entity) == 10


def test_7_usage_is_what_was_consumed(ministack: Engine, aws_credentials: str) -> None:
    """From the first acquire on, and each window under a key of its own."""
    midnight = "2024-01-01T00:00:00Z"
    assert len({keys.sk_usage("r", window, midnight) for window in LENGTHS}) == 3
    with closing(Table(ministack)) as table:
        entity, day, before = new_entity(), Limit.per_day("n", 100), datetime.now(timezone.utc)
        with limiter_of("sync", table.url) as limiter:
            assert take(limiter, entity, 7, day)
            assert take(limiter, entity, 5, day)
            limiter.adjust(entity, "r", {"n": -2}, [day])
            assert not take(limiter, entity, 91, day)
            with pytest.raises(KeyError), limiter.acquire(entity, "r", {"n": 30}, [day]):
                raise KeyError
        for _ in range(2):  # what was counted is not counted again
            follow(table.url, once=True)
            counted: Counter[str] = Counter()
            for item in table.items(f"/ENTITY#{entity}#USAGE#"):
                *_, window, start = item["SK"]["S"].split("#")
                begun = datetime.fromisoformat(start.replace("Z", "+00:00"))
                assert before - LENGTHS[window] < begun <= datetime.now(timezone.utc)
                counted[window] += int(item["u_n"]["N"])
            assert counted == dict.fromkeys(LENGTHS, 10_000)


LENGTHS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "month": timedelta(days=31)}


@pytest.mark.usefixtures("aws_credentials")
def test_secrets_are_nowhere_in_the_table(ministack: Engine) -> None:
    """Ids that are hashed, after every step of a tour through all methods, whatever kind of item; nor are they sent."""
    with (
        closing(Table(ministack)) as table,
        scene_on(table) as scene,
        limiter_of("async", scene.url, hash_entity_ids=SETTINGS[1]) as it,
    ):
        kinds: set[str] = set()
        steps = count()

        def look(namespace: str) -> Stored:
            if next(steps) % 5:
                return [], []
            items = scene.items()
            assert SECRET not in json.dumps(items)
            kinds.update(re.findall(r"[A-Z_]+#|#[A-Z]+", " ".join(i["PK"]["S"] + i["SK"]["S"] for i in items)))
            return [], []

        it.set_resource_defaults("hot", [TEN])
        scene.proxy.fail(1, "ThrottlingException", operation="UpdateItem")
        assert it.try_acquire(USER, "hot", {"n": 1})
        assert it.try_acquire(USER, "hot", {"n": 1})
        follow(table.url, once=True)
        look("")
        Tour(lambda **_: it, look, "default", 1).go()
        assert kinds >= {
            "ENTITY#",
            "RESOURCE#",
            "SYSTEM#",
            "BUCKET#",
            "#META",
            "#CONFIG",
            "#SHARDED",
            "#SLOTS",
            "#USAGE",
            "#NAMESPACE",
            "#AUDIT",
            "#AUDITED",
        }
        assert SECRET not in json.dumps([sent.body for sent in scene.proxy.requests])
