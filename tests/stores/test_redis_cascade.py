"""Cascades across the slots of a cluster: never oversold at any level, and nothing stays taken of what did not pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis_helpers import Load, both_kinds, fixed, on_server, opened

from headgate import Limit, RateLimiter
from headgate.testing import ManualClock
from headgate.testing.servers.redis import RedisCluster

PLENTY = fixed(10_000)
SECOND = Limit.per_second("n", 1)
HALF_SECOND = Limit.per_second("n", 2, burst=1)


class HastyClock(ManualClock):
    """To sleep moves it."""

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    async def asleep(self, seconds: float) -> None:
        self.advance(seconds)


class AlarmClock(ManualClock):
    """Nobody sleeps long."""

    def sleep(self, seconds: float) -> None:
        raise KeyboardInterrupt

    async def asleep(self, seconds: float) -> None:
        raise asyncio.CancelledError


class Family:
    """A root, three teams and six members, spread over the nodes so that no link lies beside the one above it."""

    def __init__(self, cluster: RedisCluster) -> None:
        places = [on_server(cluster, server, f"of{number}-", 5) for number, server in enumerate(cluster.servers)]
        self.root = places[0].pop()
        self.teams = [places[1].pop(), places[2].pop(), places[1].pop()]
        self.members = {
            place.pop(): team for place, team in zip((places[2], places[0], places[0]), self.teams) for _ in range(2)
        }
        self.all = [self.root, *self.teams, *self.members]

    def found(self, limiter: Any, *, root: Limit = PLENTY, team: Limit = PLENTY, member: Limit = PLENTY) -> None:
        limiter.create_entity(self.root)
        limiter.set_limits(self.root, [root])
        for one in self.teams:
            limiter.create_entity(one, parent_id=self.root, cascade=True)
            limiter.set_limits(one, [team])
        for one, its_team in self.members.items():
            limiter.create_entity(one, parent_id=its_team, cascade=True)
            limiter.set_limits(one, [member])

    def used(self, limiter: Any) -> dict[str, int]:
        return {
            one: sum(int(bucket.limit.capacity - bucket.available) for bucket in limiter.get_buckets(one, "r"))
            for one in self.all
        }

    def expected(self, admitted: dict[str, int]) -> dict[str, int]:
        """What is gone at every level if so many of each member were admitted."""
        expected = dict.fromkeys(self.all, 0)
        for member, count in admitted.items():
            for one in (member, self.members[member], self.root):
                expected[one] += count
        return expected


@pytest.fixture
def cluster(redis_cluster: RedisCluster) -> RedisCluster:
    for server in redis_cluster.servers:
        server.command("FLUSHALL")
    return redis_cluster


@pytest.fixture
def family(cluster: RedisCluster) -> Family:
    return Family(cluster)


@both_kinds
@pytest.mark.parametrize("coalesce", [True, False])
def test_concurrent_cascades_never_oversell_and_leave_nothing_taken(
    kind: str, cluster: RedisCluster, family: Family, coalesce: bool
) -> None:
    """Among the refused some were so for tokens that were about to come back. When all is quiet they are there."""
    with opened(kind, cluster.url, coalesce=coalesce) as limiter:
        family.found(limiter, root=fixed(30), team=fixed(12))
        wishes = list(family.members) * 8
        decisions = limiter.together([("try_acquire", (one, "r", {"n": 1})) for one in wishes])
        admitted = dict.fromkeys(family.members, 0)
        for one, decision in zip(wishes, decisions):
            admitted[one] += bool(decision)
        assert family.used(limiter) == family.expected(admitted)
        assert 0 < sum(admitted.values()) <= 30
        for one in family.members:
            while limiter.try_acquire(one, "r", {"n": 1}):
                admitted[one] += 1
        assert sum(admitted.values()) == 30
        assert family.used(limiter) == family.expected(admitted)


def test_threads_and_tasks_of_several_limiters(cluster: RedisCluster, family: Family) -> None:
    with opened("sync", cluster.url) as limiter:
        family.found(limiter, root=fixed(400), team=fixed(170), member=fixed(90))
        wishes = [(one, "r", {"n": 1}) for one in family.members]
        with (
            Load("sync", cluster.url, wishes, callers=6) as threads,
            Load("async", cluster.url, wishes, callers=12) as tasks,
            Load("sync", cluster.url, wishes, callers=6, coalesce=False) as others,
        ):
            for load in (threads, tasks, others):
                load.until(lambda load=load: load.refused >= 100, "the tokens are gone")
        admitted = threads.admitted + tasks.admitted + others.admitted
        assert threads.unavailable == tasks.unavailable == others.unavailable == []
        assert 300 < admitted.total() <= 400
        assert all(count <= 90 for count in admitted.values())
        expected = family.expected(admitted)
        assert family.used(limiter) == expected
        assert all(expected[team] <= 170 for team in family.teams)


@both_kinds
class TestRefused:
    def test_at_any_level_nothing_changes(self, kind: str, cluster: RedisCluster, family: Family) -> None:
        member, team = next(iter(family.members.items()))
        for short in ("root", "team", "member"):
            with opened(kind, cluster.url, namespace=short) as limiter:
                family.found(limiter, **{short: fixed(2)})
                assert limiter.try_acquire(member, "r", {"n": 2})
                before = family.used(limiter)
                decision = limiter.try_acquire(member, "r", {"n": 1})
                assert not decision
                assert [status.entity_id for status in decision.statuses] == [member, team, family.root]
                assert [status.exceeded for status in decision.statuses] == [
                    short == level for level in ("member", "team", "root")
                ]
                assert sorted(status.available for status in decision.statuses) == [0, 9_998, 9_998]
                assert family.used(limiter) == before

    def test_a_batch_in_which_some_pass(self, kind: str, cluster: RedisCluster, family: Family) -> None:
        with opened(kind, cluster.url) as limiter:
            family.found(limiter, member=fixed(2))
            wishes = [one for one in family.members for _ in range(4)]
            decisions = limiter.together([("try_acquire", (one, "r", {"n": 1})) for one in wishes])
            assert sum(map(bool, decisions)) == 12
            assert family.used(limiter) == family.expected(dict.fromkeys(family.members, 2))


@both_kinds
class TestReservation:
    def test_the_slowest_level_says_when(self, kind: str, cluster: RedisCluster, family: Family) -> None:
        clock = HastyClock()
        member = next(iter(family.members))
        with opened(kind, cluster.url, clock=clock) as limiter:
            family.found(limiter, root=SECOND, team=HALF_SECOND, member=PLENTY)
            started = clock.now_ms()
            for count in range(5):
                assert limiter.try_acquire(member, "r", {"n": 1}, max_wait=10)
                assert clock.now_ms() == started + 1000 * count
            assert family.used(limiter) == family.expected({}) | {member: 5, family.root: 1}

    def test_too_long_at_one_level(self, kind: str, cluster: RedisCluster, family: Family) -> None:
        clock = HastyClock()
        member = next(iter(family.members))
        with opened(kind, cluster.url, clock=clock) as limiter:
            family.found(limiter, root=SECOND, team=HALF_SECOND, member=PLENTY)
            limiter.adjust(family.root, "r", {"n": 4})
            before = family.used(limiter)
            decision = limiter.try_acquire(member, "r", {"n": 1}, max_wait=2)
            assert not decision
            assert decision.retry_after_seconds == 4.0
            assert family.used(limiter) == before

    def test_interrupted_reservation_is_given_back_on_every_level(
        self, kind: str, cluster: RedisCluster, family: Family
    ) -> None:
        member = next(iter(family.members))
        with opened(kind, cluster.url, clock=AlarmClock()) as limiter:
            family.found(limiter, root=SECOND, team=HALF_SECOND, member=PLENTY)
            assert limiter.try_acquire(member, "r", {"n": 1})
            before = family.used(limiter)
            with pytest.raises(KeyboardInterrupt if kind == "sync" else asyncio.CancelledError):
                limiter.try_acquire(member, "r", {"n": 1}, max_wait=10)
            assert family.used(limiter) == before


class TestCancelled:
    STEPS = 40

    def check(self, url: str, family: Family, scenario: Callable[[RateLimiter, int], Any]) -> None:
        async def main() -> None:
            async with RateLimiter(url, store_timeout=20) as limiter:
                for steps in range(self.STEPS):
                    await scenario(limiter, steps)
                    for one in family.all:
                        for bucket in await limiter.get_buckets(one, "r"):
                            assert bucket.available == 10_000, (steps, one)

        with opened("sync", url) as limiter:
            family.found(limiter)
        asyncio.run(main())

    async def cancel(self, limiter: RateLimiter, members: list[str], steps: int) -> None:
        """Cancel takers after so many turns of the event loop, some of which are long enough for an answer."""

        async def take(member: str) -> None:
            async with limiter.acquire(member, "r", {"n": 1}):
                await asyncio.sleep(3600)

        tasks = [asyncio.create_task(take(member)) for member in members]
        for _ in range(steps):
            await asyncio.sleep(0.0002 if steps % 4 == 3 else 0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)

    @pytest.mark.parametrize("takers", [1, 6])
    def test_cascade_cancelled_at_any_moment_leaves_nothing_taken(
        self, cluster: RedisCluster, family: Family, takers: int
    ) -> None:
        async def scenario(limiter: RateLimiter, steps: int) -> None:
            await self.cancel(limiter, list(family.members)[:takers], steps)

        self.check(cluster.url, family, scenario)

    @pytest.mark.parametrize("takers", [1, 6])
    def test_cascade_cancelled_while_it_connects_leaves_nothing_taken(
        self, cluster: RedisCluster, family: Family, takers: int
    ) -> None:
        async def scenario(_: RateLimiter, steps: int) -> None:
            async with RateLimiter(cluster.url, store_timeout=20) as fresh:
                members = list(family.members)[:takers]
                for member in members:  # it knows its chain, and has a connection to one node only
                    await fresh.resolve_limits(member, "r")
                await self.cancel(fresh, members, steps)

        self.check(cluster.url, family, scenario)

    def test_cascade_cancelled_twice_leaves_nothing_taken(self, cluster: RedisCluster, family: Family) -> None:
        async def scenario(limiter: RateLimiter, steps: int) -> None:
            task = asyncio.create_task(limiter.try_acquire(next(iter(family.members)), "r", {"n": 1}))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                await task.result().lease.rollback()

        self.check(cluster.url, family, scenario)
