"""Quotas by the server's clock: clients work out the windows, and the server says when it needs another one."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from damage import redis_bench
from redis_helpers import both_kinds, calls, opened
from redis_play import LATE, LOST, in_turn

from headgate import Ask, CorruptState, Limit, RateLimiter, RateLimiterUnavailable
from headgate.core.decide import TAKE, Answer, Part, Request
from headgate.core.errors import PartlyAnswered
from headgate.core.names import bucket_key
from headgate.core.usage import HOUR_MS
from headgate.plan import run
from headgate.stores.redis.exchange import SendPipelines
from headgate.stores.redis.plans import RedisPlans
from headgate.stores.redis.url import read_url
from headgate.testing import ManualClock
from headgate.testing.servers.redis import RedisCluster, RedisServer

START = 1_790_000_000_000 - 1_790_000_000_000 % HOUR_MS + HOUR_MS // 4
PLENTY = Limit.per_day("plenty", 1000)
ROW = "headgate:{default}:e#r"


@pytest.fixture
def empty_server(redis_server: RedisServer) -> RedisServer:
    redis_server.command("FLUSHDB")
    return redis_server


def hourly(name: str = "q", amount: int = 5, *, minutes: int = 0) -> Limit:
    return Limit.quota(name, amount, "hour", at=f"00:{minutes:02d}")


def far_from_its_edges(amount: int = 5) -> Limit:
    """Half an hour away by the real clock. A step of 45 minutes is a step into another window."""
    return hourly(amount=amount, minutes=(time.gmtime().tm_min + 30) % 60)


def edge_after(limit: Limit, at_ms: int) -> int:
    assert limit.calendar is not None
    return limit.calendar.window(at_ms).ends_ms


def server_ms(server: RedisServer) -> int:
    seconds, microseconds = server.command("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


def asked(server: RedisServer) -> int:
    return calls(server, "evalsha", "eval")


# Clocks


@both_kinds
@pytest.mark.parametrize("beside", [[], [PLENTY]], ids=["alone", "beside a bucket"])
@pytest.mark.parametrize("minutes", [45, -45], ids=["server ahead", "server behind"])
def test_clocks_on_two_sides_of_an_edge(
    kind: str, beside: list[Limit], minutes: int, stepped_redis_server: RedisServer
) -> None:
    server, limit = stepped_redis_server, far_from_its_edges()
    limits = [limit, *beside]
    wish = {each.name: 1 for each in limits}
    server.step_clock(minutes * 60)
    with opened(kind, server.url) as limiter:
        assert [bool(limiter.try_acquire("e", "r", wish, limits)) for _ in range(7)] == [True] * 5 + [False] * 2
        before_ms = server_ms(server)
        wait_ms = limiter.try_acquire("e", "r", wish, limits).retry_after_ms
        edge_ms = edge_after(limit, before_ms)
        assert edge_ms - server_ms(server) <= wait_ms <= edge_ms - before_ms
        server.step_clock(45 * 60)
        assert limiter.available("e", "r", [limit]) == {"q": 5}
        assert limiter.try_acquire("e", "r", {"q": 5}, [limit])


@both_kinds
@pytest.mark.parametrize("minutes", [45, -45], ids=["server ahead", "server behind"])
def test_a_client_whose_clock_is_wrong_asks_twice_once(
    kind: str, minutes: int, stepped_redis_server: RedisServer
) -> None:
    server, limit = stepped_redis_server, far_from_its_edges()
    with opened(kind, server.url) as limiter:
        assert limiter.try_acquire("e0", "r", {"q": 1}, [limit])
        for place in ("there", "back"):
            server.step_clock(minutes * 60)
            before = asked(server)
            for number in range(10):
                assert limiter.try_acquire(f"{place}{number}", "r", {"q": 1}, [limit])
            assert asked(server) == before + 11
            minutes = -minutes


@both_kinds
def test_clocks_that_step_back_over_an_edge_give_no_second_quota(kind: str, stepped_redis_server: RedisServer) -> None:
    server, limit = stepped_redis_server, far_from_its_edges()
    with opened(kind, server.url) as limiter:
        assert limiter.try_acquire("e", "r", {"q": 5}, [limit])
        server.step_clock(45 * 60)
        settled_ms = server_ms(server)
        assert limiter.try_acquire("e", "r", {"q": 4}, [limit])
        edge_ms = edge_after(limit, settled_ms)
        for minutes in (-45, 45, -45):
            server.step_clock(minutes * 60)
            assert not limiter.try_acquire("e", "r", {"q": 2}, [limit])
            assert limiter.available("e", "r", [limit]) == {"q": 1}
            assert limiter.time_until_available("e", "r", {"q": 2}, [limit]) * 1000 <= edge_ms - settled_ms
        assert limiter.try_acquire("e", "r", {"q": 1}, [limit])


@both_kinds
def test_injected_clocks_on_two_sides_of_an_edge(kind: str, empty_server: RedisServer) -> None:
    """The later one is the time, to the millisecond."""
    limit, other = hourly(), hourly(amount=7, minutes=30)
    edge_ms = edge_after(limit, START)
    with opened(kind, empty_server.url, clock=ManualClock(edge_ms - 1)) as behind:
        assert behind.try_acquire("e", "r", {"q": 3}, [limit])
        assert behind.time_until_available("e", "r", {"q": 3}, [limit]) == 0.001
        with opened(kind, empty_server.url, clock=ManualClock(edge_ms)) as ahead:
            assert ahead.try_acquire("e", "r", {"q": 4}, [limit])
        assert behind.available("e", "r", [limit]) == {"q": 1}
        assert behind.time_until_available("e", "r", {"q": 2}, [limit]) == 3600
        assert behind.available("e", "r", [other]) == {"q": 3}, "what was used stays used"
        assert behind.try_acquire("e", "r", {"q": 3}, [other])
        assert behind.time_until_available("e", "r", {"q": 1}, [other]) == 1800


@both_kinds
def test_a_cascade_over_slots_of_a_cluster(kind: str, redis_cluster: RedisCluster) -> None:
    """An earlier clock asks each slot again whose quota is in a later window, and gives back what it took elsewhere."""
    for server in redis_cluster.servers:
        server.command("FLUSHDB")
    ahead, behind = ManualClock(START + HOUR_MS), ManualClock(START)
    members = [f"m{number}" for number in range(8)]
    with opened(kind, redis_cluster.url, clock=ahead) as limiter:
        limiter.create_entity("team")
        for member in members:
            limiter.create_entity(member, parent_id="team", cascade=True)
        limiter.set_limits("team", [hourly(amount=20)])
        limiter.set_system_defaults([hourly(amount=3)])
        assert all(limiter.try_acquire(member, "r", {"q": 2}) for member in members)
        limiter.set_limits("team", [hourly(amount=20, minutes=20)])
        limiter.set_system_defaults([hourly(amount=3, minutes=40)])
        with opened(kind, redis_cluster.url, clock=behind) as earlier:
            decisions = [earlier.try_acquire(member, "r", {"q": 1}) for member in members]
            assert sum(map(bool, decisions)) == 4
            assert {one.retry_after_ms for one in decisions if not one} == {5 * 60_000}
            assert earlier.available("team", "r") == {"q": 0}
            left = [earlier.get_buckets(member)[0].available for member in members]
            assert sorted(left) == [0] * 4 + [1] * 4


# Batches


def play(plans: RedisPlans, batch: list[Request], *results: Any) -> tuple[Any, list[Any]]:
    """What a batch is answered when the server's results are these, and the commands that it was sent."""
    answer, sent = in_turn(*results), []

    def perform(call: Any) -> Any:
        assert isinstance(call, SendPipelines)
        sent.extend(pipeline.commands for pipeline in call.pipelines)
        return [answer(pipeline) for pipeline in call.pipelines]

    try:
        return run(plans.settle_plan(batch, START), perform), sent
    except Exception as error:
        return error, sent


def new_plans() -> RedisPlans:
    return RedisPlans(read_url("redis://a:1"), lambda: "")


def take(entity_id: str, limit: Limit, amount: int = 1) -> Request:
    return Request(TAKE, (bucket_key("default", entity_id, "r"),), (Part(0, limit, amount * 1000),))


ANOTHER = [-2, START + HOUR_MS, START + HOUR_MS]


class TestAskedAgain:
    TWICE = take("b", hourly())
    BATCH = (take("a", PLENTY), TWICE, take("c", PLENTY), TWICE)

    def test_only_what_needs_another_window_is(self) -> None:
        passed = [1, 999_000], [1, 998_000]
        answers, sent = play(new_plans(), [*self.BATCH], [[*passed[0], *ANOTHER, *passed[1]]], [ANOTHER], [[2, 3000]])
        assert [answer.levels[0][0] for answer in answers] == [999_000, 4000, 998_000, 3000]
        assert [command[2:4] for (command,) in sent[1:]] == [("1", "headgate:{default}:b#r")] * 2

    @pytest.mark.parametrize("lost", [LOST, LATE])
    def test_if_that_is_lost_the_others_have_their_answers(self, lost: Any) -> None:
        error, sent = play(new_plans(), [*self.BATCH], [[1, 999_000, *ANOTHER, 1, 998_000]], lost)
        assert isinstance(error, PartlyAnswered)
        kinds = [Answer, RateLimiterUnavailable, Answer, RateLimiterUnavailable]
        assert [type(result) for result in error.results] == kinds
        assert {command[0] for (command,) in sent} == {"EVALSHA"}

    def test_if_that_is_lost_and_there_are_no_others_the_store_is_unavailable(self) -> None:
        error, _ = play(new_plans(), [take("b", hourly())], [ANOTHER], LATE)
        assert type(error) is RateLimiterUnavailable

    def test_an_edge_may_pass_many_times_meanwhile(self) -> None:
        error, sent = play(new_plans(), [take("b", hourly())], *[[ANOTHER]] * 3000, LATE)
        assert isinstance(error, RateLimiterUnavailable)
        assert len(sent) == 3001

    def test_equal_requests_in_unequal_windows(self) -> None:
        """Of one kind, which does not become one again."""
        batch = [self.TWICE._replace(keys=(bucket_key("default", name, "r"),)) for name in "abc"]
        moments = [START + HOUR_MS, START + 9 * HOUR_MS, START + HOUR_MS]
        told = [number for moment in moments for number in (-2, START, moment)]
        answers, sent = play(new_plans(), batch, [told], [[1, 4000, 1, 3000, 1, 2000]])
        assert [answer.levels[0][0] for answer in answers] == [4000, 3000, 2000]
        (again,) = sent[1]
        assert again[2:6] == ("3", *(f"headgate:{{default}}:{name}#r" for name in "abc"))
        assert again.count("q") == 2


@both_kinds
def test_others_in_the_batch_are_answered_as_usual(kind: str, stepped_redis_server: RedisServer) -> None:
    server, limit = stepped_redis_server, far_from_its_edges()
    with opened(kind, server.url) as limiter:
        assert limiter.try_acquire("bad", "r", {"plenty": 1}, [PLENTY])
        server.command("SET", "headgate:{default}:bad#r", "x")
        server.step_clock(45 * 60)
        b = [("b", limit, amount) for amount in (3, 2, 1)]
        wanted = [("a", PLENTY, 1), b[0], ("bad", PLENTY, 1), *b[1:], ("c", limit, 6)]
        asks = [Ask(entity_id, "r", {one.name: amount}, [one]) for entity_id, one, amount in wanted]
        decisions = limiter.try_acquire_each(asks)
        assert [bool(one) for one in decisions] == [True, True, False, True, False, False]
        assert [type(one.error) for one in decisions if one.error] == [CorruptState]
        assert limiter.available("a", "r", [PLENTY]) == {"plenty": 999}
        assert limiter.available("b", "r", [limit]) == {"q": 0}


def test_tasks_that_share_calls_over_an_edge(stepped_redis_server: RedisServer) -> None:
    """Each time the clock steps, a batch or two under way are in another window; nobody gets more or less."""
    server, limit = stepped_redis_server, far_from_its_edges(amount=10)

    async def main() -> None:
        async with RateLimiter(server.url, store_timeout=20.0) as limiter:
            for step in (0, 45, 60, 60):
                server.step_clock(step * 60)
                took = [limiter.try_acquire(f"e{number % 8}", "r", {"q": 1}, [limit]) for number in range(200)]
                decisions = await asyncio.gather(*took)
                assert sum(map(bool, decisions)) == 80
                left = await asyncio.gather(*(limiter.available(f"e{number}", "r", [limit]) for number in range(8)))
                assert left == [{"q": 0}] * 8

    asyncio.run(main())


def test_a_task_that_is_cancelled_while_it_is_asked_again_leaves_nothing_taken(empty_server: RedisServer) -> None:
    clock = ManualClock(START + HOUR_MS)
    limits = [hourly(amount=9, minutes=minutes) for minutes in (0, 40)]

    async def main() -> None:
        async with RateLimiter(empty_server.url, clock=clock, store_timeout=20.0) as limiter:
            assert await limiter.try_acquire("e", "r", {"q": 4}, limits[:1])
            clock.set(START)
            before = asked(empty_server)
            for turns in range(40):
                limit = limits[(turns + 1) % 2]  # as its calendar changes, its window is asked for
                task = asyncio.ensure_future(limiter.acquire("e", "r", {"q": 5}, [limit]).__aenter__())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                (result,) = await asyncio.gather(task, return_exceptions=True)
                if not isinstance(result, BaseException):
                    await result.rollback()
                assert await limiter.available("e", "r", [limit]) == {"q": 5}, turns
            assert asked(empty_server) > before + 80

    asyncio.run(main())


# What is stored


def stored(server: RedisServer, key: str = ROW) -> list[Any]:
    with server.client() as client:
        packed: list[Any] = client.eval(
            "local v = { cmsgpack.unpack(redis.call('GET', KEYS[1])) } "
            "for n = 1, #v do v[n] = tostring(v[n]) end return v",
            1,
            key,
        )
    return [value.decode() if isinstance(value, bytes) else value for value in packed]


def test_rows_have_a_new_format_as_long_as_they_have_a_quota(empty_server: RedisServer) -> None:
    """A release before it says that headgate has to be upgraded, and goes on with all other rows."""
    clock = ManualClock(START)
    with opened("sync", empty_server.url, clock=clock) as limiter:
        for limits, expected in (([PLENTY], "2"), ([hourly()], "3"), ([hourly(), PLENTY], "3"), ([PLENTY], "3")):
            assert limiter.try_acquire("e", "r", {limit.name: 1 for limit in limits}, limits)
            assert stored(empty_server)[0] == expected
        clock.advance(3 * 86_400)  # the quota is full again, and leaves
        assert limiter.try_acquire("e", "r", {"plenty": 1}, [PLENTY])
        assert stored(empty_server)[0] == "2"
        assert limiter.available("e", "r", [PLENTY]) == {"plenty": 999}


@pytest.mark.parametrize("used", [[], [7000]], ids=["of the first release", "of the release before"])
def test_data_of_earlier_releases_is_read(used: list[int], empty_server: RedisServer) -> None:
    row = [2 if used else 1, "plenty", 1_000_000, 1_000_000, 86_400_000, 400_000, START, 0, 0, 0, 0, *used]
    with empty_server.client() as client, opened("sync", empty_server.url, clock=ManualClock(START)) as limiter:
        client.eval(f"redis.call('SET', KEYS[1], cmsgpack.pack({str(row)[1:-1]}))", 1, ROW)
        limits = [PLENTY, hourly()]
        assert limiter.try_acquire("e", "r", {"plenty": 100, "q": 5}, limits)
        assert limiter.available("e", "r", limits) == {"plenty": 300, "q": 0}


def test_a_damaged_quota_is_reported_and_reset_mends(empty_server: RedisServer) -> None:
    bench, wrong = redis_bench(empty_server), {}
    for limit in (hourly(), Limit.quota("q", 5, 3600, from_first_use=True)):
        for number, (what, damage) in enumerate(bench.damages.items()):
            namespace = f"{limit.period_ms}-{number}"
            with opened("sync", empty_server.url, clock=ManualClock(START), namespace=namespace) as limiter:
                for entity_id in ("e", "f"):
                    assert limiter.try_acquire(entity_id, "r", {"q": 1}, [limit])
                damage(namespace, "e#r")
                try:
                    with pytest.raises(CorruptState, match="'e' on 'r'"):
                        limiter.try_acquire("e", "r", {"q": 1}, [limit])
                    with pytest.raises(CorruptState):
                        limiter.adjust("e", "r", {"q": -1}, [limit])
                    assert [error.entity_id for error in limiter.find_corrupt()] == ["e"]
                    assert limiter.available("f", "r", [limit]) == {"q": 4}
                    limiter.reset("e", "r")
                    assert limiter.available("e", "r", [limit]) == {"q": 5}
                except BaseException as error:
                    wrong[f"{limit}, {what}"] = f"{type(error).__name__}: {error}"
    assert not wrong, "\n".join(f"{what}: {error}" for what, error in wrong.items())


def test_a_row_without_the_new_format_has_no_quota(empty_server: RedisServer) -> None:
    with opened("sync", empty_server.url, clock=ManualClock(START)) as limiter, empty_server.client() as client:
        assert limiter.try_acquire("e", "r", {"q": 1}, [hourly()])
        client.eval(
            "local v = { cmsgpack.unpack(redis.call('GET', KEYS[1])) } v[1] = 2 "
            "redis.call('SET', KEYS[1], cmsgpack.pack(unpack(v)))",
            1,
            ROW,
        )
        with pytest.raises(CorruptState, match="refill"):
            limiter.try_acquire("e", "r", {"q": 1}, [hourly()])


@pytest.mark.parametrize(
    ("limit", "expires_ms"), [(hourly(), 45 * 60_000), (Limit.quota("q", 5, 600, from_first_use=True), 600_000)]
)
@pytest.mark.parametrize("beside", [[], [Limit.per_second("s", 10)]], ids=["alone", "beside a bucket"])
def test_a_quota_expires_with_its_window(
    limit: Limit, expires_ms: int, beside: list[Limit], empty_server: RedisServer
) -> None:
    margin_ms = 86_400_000  # of an injected clock
    with opened("sync", empty_server.url, clock=ManualClock(START), usage_days=0) as limiter:
        assert limiter.try_acquire("e", "r", {"q": 1} | {one.name: 1 for one in beside}, [limit, *beside])
    left_ms = empty_server.command("PTTL", ROW)
    assert margin_ms + expires_ms - 60_000 < left_ms <= margin_ms + expires_ms + 60_000


@pytest.mark.parametrize("from_first_use", [False, True])
def test_what_is_taken_is_not_forgotten_before_its_window_is_over(
    from_first_use: bool, empty_server: RedisServer
) -> None:
    limit = Limit.quota("q", 5, 900, from_first_use=True) if from_first_use else far_from_its_edges()
    with opened("sync", empty_server.url, usage_days=0) as limiter:
        for amount in (1, 4):
            assert limiter.try_acquire("e", "r", {"q": amount}, [limit])
            left_ms = 1000 * limiter.time_until_available("e", "r", {"q": 5}, [limit])
            assert empty_server.command("PTTL", ROW) >= left_ms
            limiter.adjust("e", "r", {"q": -5}, [limit])
            assert empty_server.command("PTTL", ROW) < 120_000, "it is as if it was never used"


# A store that lost its memory


@both_kinds
def test_cold_start_gives_the_share_of_this_window_only(kind: str, own_redis_server: RedisServer) -> None:
    limit, from_first_use = hourly(amount=10), Limit.quota("f", 10, 600, from_first_use=True)
    limits = [limit, from_first_use]
    clock = ManualClock(START)
    with opened(kind, f"{own_redis_server.url}?cold_start=0.5", clock=clock) as limiter:
        assert limiter.available("e", "r", limits) == {"q": 5, "f": 5}
        assert limiter.try_acquire("e", "r", {"q": 3, "f": 3}, limits)
        assert limiter.time_until_available("e", "r", {"q": 3}, limits) == (edge_after(limit, START) - START) / 1000
        clock.advance(300)
        assert limiter.available("late", "r", limits) == {"q": 5, "f": 5}
        assert limiter.time_until_available("late", "r", {"f": 6}, limits) == 300
        clock.advance(300)
        assert limiter.available("later", "r", limits) == {"q": 5, "f": 10}
        clock.set(edge_after(limit, START))
        assert limiter.available("e", "r", limits) == {"q": 10, "f": 10}
        assert limiter.available("new", "r", limits) == {"q": 10, "f": 10}
        assert limiter.try_acquire("new", "r", {"q": 10}, limits)
