"""Quotas by the server's clock: clients work out the windows, and the server says when it needs another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from postgres_helpers import set_up

from headgate import Ask, CorruptState, Limit, RateLimiter, RateLimiterUnavailable, ValidationError
from headgate.core.decide import TAKE, Answer, Part, Request
from headgate.core.errors import PartlyAnswered
from headgate.core.names import bucket_key
from headgate.core.usage import HOUR_MS
from headgate.stores import open_store
from headgate.stores.contract import SettledThenCancelled
from headgate.stores.postgres.plans import PostgresPlans
from headgate.stores.postgres.wire import PostgresBatch
from headgate.testing import ManualClock
from headgate.testing.driver import DRIVERS
from local_servers.postgres import PostgresServer

START = 1_790_000_000_000 - 1_790_000_000_000 % HOUR_MS + HOUR_MS // 4
PLENTY = Limit.per_day("plenty", 1000)
FIRST_USE = Limit.quota("q", 5, 3600, from_first_use=True)
SKEW_MS = 45 * 60_000

both_kinds = pytest.mark.parametrize("kind", ["sync", "async"])
both_ways = pytest.mark.parametrize("skew_ms", [SKEW_MS, -SKEW_MS], ids=["server ahead", "server behind"])


class Schema:
    """One of its own, whose clock can be stepped."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.url = f"{server.url}?schema=quotas"
        set_up(self.url)
        self.server.execute("CREATE TABLE quotas.ahead AS SELECT 0::bigint AS ms")
        self.set_clock("floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + (SELECT ms FROM quotas.ahead)")

    def set_clock(self, now_ms: str) -> None:
        self.server.execute(
            "CREATE OR REPLACE FUNCTION quotas.clock(given_ms bigint) RETURNS bigint LANGUAGE sql VOLATILE AS"
            f" 'SELECT coalesce(given_ms, {now_ms})'"
        )

    def step(self, ms: int) -> None:
        self.server.execute(f"UPDATE quotas.ahead SET ms = ms + {ms}")

    def now_ms(self) -> int:
        ((now_ms,),) = self.server.execute("SELECT quotas.clock(null)")
        return int(now_ms)


@pytest.fixture
def schema(postgres_server: PostgresServer) -> Iterator[Schema]:
    yield Schema(postgres_server)
    postgres_server.execute("DROP SCHEMA quotas CASCADE")


@pytest.fixture
def asked_again(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests each time."""
    counts, again_plan = list[int](), PostgresPlans._again_plan

    def counted(plans: Any, batch: Any, execute: Any, results: Any) -> Any:
        counts.append(sum(not isinstance(result, (Answer, CorruptState)) for result in results))
        return again_plan(plans, batch, execute, results)

    monkeypatch.setattr(PostgresPlans, "_again_plan", counted)
    return counts


@contextmanager
def opened(kind: str, url: str, **settings: Any) -> Iterator[Any]:
    driver = DRIVERS[kind](url, **({"store_timeout": 20.0} | settings))
    try:
        yield driver
    finally:
        driver.shut()


def hourly(amount: int = 5, *, minutes: int = 0) -> Limit:
    return Limit.quota("q", amount, "hour", at=f"00:{minutes:02d}")


def far_from_its_edges(amount: int = 5) -> Limit:
    """Half an hour away by the real clock, so that 45 minutes are a step into another window."""
    return hourly(amount, minutes=(time.gmtime().tm_min + 30) % 60)


def edge_after(limit: Limit, at_ms: int) -> int:
    assert limit.calendar is not None
    return limit.calendar.window(at_ms).ends_ms


def take(entity_id: str, limit: Limit, amount: int = 1) -> Request:
    return Request(TAKE, (bucket_key("default", entity_id, "r"),), (Part(0, limit, amount * 1000),))


# Clocks


@both_kinds
@both_ways
@pytest.mark.parametrize("beside", [[], [PLENTY]], ids=["alone", "beside a bucket"])
def test_clocks_on_two_sides_of_an_edge(kind: str, beside: list[Limit], skew_ms: int, schema: Schema) -> None:
    limit = far_from_its_edges()
    limits = [limit, *beside]
    wish = {each.name: 1 for each in limits}
    schema.step(skew_ms)
    with opened(kind, schema.url, usage_days=0) as limiter:
        for _ in range(3):
            assert [bool(limiter.try_acquire("e", "r", wish, limits)) for _ in range(7)] == [True] * 5 + [False] * 2
            before_ms = schema.now_ms()
            wait_ms = limiter.try_acquire("e", "r", wish, limits).retry_after_ms
            edge_ms = edge_after(limit, before_ms)
            assert edge_ms - schema.now_ms() <= wait_ms <= edge_ms - before_ms
            schema.step(HOUR_MS)


@both_kinds
@both_ways
def test_a_client_whose_clock_is_wrong_asks_twice_once(
    kind: str, skew_ms: int, schema: Schema, asked_again: list[int]
) -> None:
    limit = far_from_its_edges()
    with opened(kind, schema.url) as limiter:
        assert limiter.try_acquire("e", "r", {"q": 1}, [limit])
        for number, step_ms in enumerate((skew_ms, -skew_ms), 1):
            schema.step(step_ms)
            for entity in range(10):
                assert limiter.try_acquire(f"e{number}-{entity}", "r", {"q": 1}, [limit])
            assert asked_again == [1] * number


@both_kinds
def test_clocks_that_step_back_over_an_edge_give_no_second_quota(kind: str, schema: Schema) -> None:
    limit = far_from_its_edges()
    with opened(kind, schema.url) as limiter:
        assert limiter.try_acquire("e", "r", {"q": 5}, [limit])
        schema.step(SKEW_MS)
        settled_ms = schema.now_ms()
        assert limiter.try_acquire("e", "r", {"q": 4}, [limit])
        for skew_ms in (-SKEW_MS, SKEW_MS, -SKEW_MS):
            schema.step(skew_ms)
            assert not limiter.try_acquire("e", "r", {"q": 2}, [limit])
            assert limiter.available("e", "r", [limit]) == {"q": 1}
            wait_ms = limiter.time_until_available("e", "r", {"q": 2}, [limit]) * 1000
            assert wait_ms <= edge_after(limit, settled_ms) - settled_ms
        assert limiter.try_acquire("e", "r", {"q": 1}, [limit])


@both_kinds
def test_injected_clocks_on_two_sides_of_an_edge(kind: str, schema: Schema) -> None:
    """The later one is the time, to the millisecond."""
    limit, other = hourly(), hourly(7, minutes=30)
    edge_ms = edge_after(limit, START)
    with opened(kind, schema.url, clock=ManualClock(edge_ms - 1)) as behind:
        assert behind.try_acquire("e", "r", {"q": 3}, [limit])
        assert behind.time_until_available("e", "r", {"q": 3}, [limit]) == 0.001
        with opened(kind, schema.url, clock=ManualClock(edge_ms)) as ahead:
            assert ahead.try_acquire("e", "r", {"q": 4}, [limit])
        assert behind.available("e", "r", [limit]) == {"q": 1}
        assert behind.time_until_available("e", "r", {"q": 2}, [limit]) == 3600
        assert behind.available("e", "r", [other]) == {"q": 3}, "what was used stays used"
        assert behind.try_acquire("e", "r", {"q": 3}, [other])
        assert behind.time_until_available("e", "r", {"q": 1}, [other]) == 1800


# Batches


@both_kinds
def test_others_in_the_batch_are_answered_as_usual(kind: str, schema: Schema, asked_again: list[int]) -> None:
    limit = far_from_its_edges()
    with opened(kind, schema.url) as limiter:
        assert limiter.try_acquire("bad", "r", {"plenty": 1}, [PLENTY])
        schema.server.execute("UPDATE quotas.buckets SET capacity_milli = -1")
        schema.step(SKEW_MS)
        b = [("b", limit, amount) for amount in (3, 2, 1)]
        wanted = [("a", PLENTY, 1), b[0], ("bad", PLENTY, 1), *b[1:], ("c", limit, 6)]
        decisions = limiter.try_acquire_each([Ask(name, "r", {one.name: n}, [one]) for name, one, n in wanted])
        assert [bool(one) for one in decisions] == [True, True, False, True, False, False]
        assert [type(one.error) for one in decisions if one.error] == [CorruptState]
        assert asked_again == [4]
        assert limiter.available("a", "r", [PLENTY]) == {"plenty": 999}
        assert limiter.available("b", "r", [limit]) == {"q": 0}


def test_what_follows_on_a_quota_comes_after_it(schema: Schema, asked_again: list[int]) -> None:
    """Also if it needs no other window itself."""
    earlier, later = hourly(), hourly(minutes=20)
    with closing(open_store(schema.url, 20.0)) as store:
        store.settle([take("e", earlier, 2)], START + HOUR_MS)
        answers = store.settle([take("e", later, 2), take("e", earlier, 1), take("e", later, 2)], START)
    assert [answer.levels[0][0] for answer in answers] == [1000, 0, 0]
    assert [answer.allowed for answer in answers] == [True, True, False]
    assert asked_again == [3]


def test_an_edge_may_pass_until_there_is_no_more_time(schema: Schema) -> None:
    """Here at every look. The others of the batch have their answers."""
    schema.server.execute("CREATE SEQUENCE quotas.looks")
    schema.set_clock(f"{START} + nextval(''quotas.looks'') * {HOUR_MS}")
    with closing(open_store(schema.url, 3.0)) as store:
        with pytest.raises(PartlyAnswered) as partly:
            store.settle([take("a", PLENTY), take("b", hourly()), take("c", PLENTY)], None)
        kinds = [type(result) for result in partly.value.results]
        assert kinds == [Answer, RateLimiterUnavailable, Answer]
        with pytest.raises(PartlyAnswered):
            store.settle([take("b", hourly())], None)
    assert schema.server.execute(
        "SELECT count(*) FROM quotas.buckets WHERE limit_name = 'q' AND settled_at_ms > 0"
    ) == [(0,)]


def test_cancelled_before_it_is_asked_again_the_others_have_happened(schema: Schema) -> None:
    with closing(open_store(schema.url, 20.0)) as store:
        plans: Any = store._plans  # type: ignore[attr-defined]
        plans.checked = True
        batch = PostgresBatch([take("a", PLENTY), take("b", hourly())], "", START)
        plan = plans.settle_plan(batch, plans.settling(batch, None, 1000), [(b"{1,999000,-2,7,%d}" % START,)])
        next(plan)  # how much time is left
        plan.send(1000)
        own = asyncio.CancelledError()
        with pytest.raises(SettledThenCancelled) as cancelled:
            plan.throw(own)
    first, second = cancelled.value.answers
    assert isinstance(first, Answer)
    assert first.allowed
    assert isinstance(second, RateLimiterUnavailable)
    assert cancelled.value.own is own


def test_tasks_that_share_calls_over_an_edge(schema: Schema) -> None:
    limit = far_from_its_edges(10)

    async def main() -> None:
        async with RateLimiter(schema.url, store_timeout=20.0) as limiter:
            for step_ms in (0, SKEW_MS, HOUR_MS, HOUR_MS):
                schema.step(step_ms)
                took = [limiter.try_acquire(f"e{number % 8}", "r", {"q": 1}, [limit]) for number in range(200)]
                assert sum(map(bool, await asyncio.gather(*took))) == 80
                left = await asyncio.gather(*(limiter.available(f"e{number}", "r", [limit]) for number in range(8)))
                assert left == [{"q": 0}] * 8

    asyncio.run(main())


@pytest.mark.parametrize("pool", [1, 10])
def test_a_task_that_is_cancelled_while_it_is_asked_again_leaves_nothing_taken(
    pool: int, schema: Schema, asked_again: list[int]
) -> None:
    clock, limits = ManualClock(START + HOUR_MS), [hourly(9, minutes=minutes) for minutes in (0, 40)]

    async def main() -> None:
        async with RateLimiter(f"{schema.url}&pool={pool}", clock=clock, store_timeout=20.0) as limiter:
            assert await limiter.try_acquire("e", "r", {"q": 4}, limits[:1])
            clock.set(START)
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

    asyncio.run(main())
    assert len(asked_again) >= 20


# What is stored


@pytest.mark.parametrize("limit", [hourly(), FIRST_USE], ids=["of a calendar", "from first use"])
@pytest.mark.parametrize("beside", [[], [PLENTY]], ids=["alone", "beside a bucket"])
def test_a_damaged_quota_is_reported_and_reset_mends(limit: Limit, beside: list[Limit], schema: Schema) -> None:
    damages = {
        "capacity_milli": (0, 2**62), "refill_milli": (-2, 2**62), "period_ms": (-(2**33), 2**62),
        "used_milli": (2**62,), "tokens_milli": (5001, -(2**63)), "settled_at_ms": (-1, 2**62),
        "remainder": (-1, 10**15, 2**62), "blocked_until_ms": (-1, 2**62), "revision": (-1, 2**62),
    }  # fmt: skip
    wish = {each.name: 1 for each in (limit, *beside)}
    with opened("sync", schema.url, clock=ManualClock(START)) as limiter:
        for column, value in [(column, value) for column, values in damages.items() for value in values]:
            for entity_id in ("e", "f"):
                limiter.reset(entity_id, "r")
                assert limiter.try_acquire(entity_id, "r", wish, [limit, *beside])
            schema.server.execute(
                f"UPDATE quotas.buckets SET {column} = {value} WHERE key = 'default/e#r' AND limit_name = 'q'"
            )
            with pytest.raises(CorruptState, match="'e' on 'r'"):
                limiter.try_acquire("e", "r", wish, [limit, *beside])
            with pytest.raises(CorruptState):
                limiter.adjust("e", "r", {"q": -1}, [limit])
            assert [error.entity_id for error in limiter.find_corrupt()] == ["e"], (column, value)
            assert limiter.available("f", "r", [limit]) == {"q": 4}
            limiter.reset("e", "r")
            assert limiter.available("e", "r", [limit]) == {"q": 5}


def test_a_quota_is_swept_when_it_is_full(schema: Schema) -> None:
    clock, daily = ManualClock(START), Limit.quota("daily", 5, "day")

    def swept() -> set[str]:
        limiter.reconcile()
        return {str(name) for (name,) in schema.server.execute("SELECT DISTINCT limit_name FROM quotas.buckets")}

    with opened("sync", schema.url, clock=clock, usage_days=0) as limiter:
        assert limiter.try_acquire("e", "r", {"q": 1, "daily": 1}, [FIRST_USE, daily])
        lease = limiter.try_acquire("e", "r", {"back": 1}, [Limit.quota("back", 5, "day")]).lease
        assert swept() == {"q", "daily", "back"}
        lease.rollback()
        assert swept() == {"q", "daily"}
        clock.advance(3599.999)
        assert swept() == {"q", "daily"}
        clock.advance(0.001)
        assert swept() == {"daily"}
        clock.set(edge_after(daily, START))
        assert swept() == set()


def test_a_schema_of_the_release_before_is_upgraded_with_its_data(schema: Schema) -> None:
    for function in ("take_quota", "other_windows", "from_first_use"):
        schema.server.execute(f"DROP FUNCTION quotas.{function}")
    schema.server.execute("UPDATE quotas.version SET functions = 3")
    row = f"'default/e#r', 'plenty', 1000000, 1000000, 86400000, 400000, {START}, 0, 0, 0, 7000"
    schema.server.execute(f"INSERT INTO quotas.buckets VALUES ({row})")
    limits, wish = [PLENTY, hourly()], {"plenty": 100, "q": 5}
    with opened("sync", schema.url, clock=ManualClock(START)) as limiter:
        with pytest.raises(ValidationError, match=r"revision 3, this one needs 4.*run `headgate setup`"):
            limiter.try_acquire("e", "r", wish, limits)
        limiter.setup()
        assert limiter.try_acquire("e", "r", wish, limits)
        assert limiter.available("e", "r", limits) == {"plenty": 300, "q": 0}


def test_a_client_of_the_release_before_is_answered_as_before(schema: Schema) -> None:
    """With its calls, as it sends them. A quota is for it what a limit of another kind is: it starts anew."""
    shape = "10000,10000,60000"
    asks = (
        f"0,1,0,0,1000,0,1,1,{shape},1000,0",
        f"1,1,0,0,1000,0,1,1,{shape},3000,0",
        f"2,1,0,0,1000,0,1,1,{shape},0,0",
    )
    settle = f"SELECT quotas.settle({START}, 0, 1000, true, '{{n/e#r}}', '{{q}}', '{{{','.join(asks)}}}', '{{}}')"
    taken = f"SELECT quotas.take({START}, 0, 1000, 'n/e#r', 'q', 2, {shape}, 1000, 0)"
    said = [1, 9000, 1, 10000, 10000, 60000, 9000, START, 0, 0, 0, 0, 1, 10000, 10000, 60000, 6000, START, 0, 0, 0, 0]
    with opened("sync", schema.url, clock=ManualClock(START), namespace="n") as limiter:
        for limit in (PLENTY, hourly(), FIRST_USE):
            assert limiter.try_acquire("e", "r", {limit.name: 1}, [limit])
            assert schema.server.execute(settle) == [(said,)]
            assert schema.server.execute(taken) == [([2, 4000],)]
            limiter.reset("e", "r")
