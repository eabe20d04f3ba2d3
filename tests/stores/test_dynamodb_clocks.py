"""DynamoDB has no clock to ask, so the limiters' own count. They differ, and are set: nothing is minted for good."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from dynamodb_limiters import Scene, Table, both_kinds, limiter_of, new_entity, scene_on, take

from headgate import Limit
from headgate.testing import ManualClock
from local_servers.dynamodb import Engine

NOW_MS = 1_700_000_000_000
SKEW = 30 * 60
HOUR = 3600
# One a second. It holds more than the skew is worth, or what is earned by it would be lost to the rim.
LIMIT = Limit.custom("n", 5000, 1, 1)


@pytest.fixture(scope="module")
def table(ministack: Engine, aws_credentials: str) -> Iterator[Table]:
    with closing(Table(ministack)) as table:
        yield table


@pytest.fixture
def scene(table: Table) -> Iterator[Scene]:
    with scene_on(table) as scene:
        yield scene


class Pair:
    """Two limiters on one bucket, the clock of one half an hour behind. Time passes for both alike."""

    def __init__(self, limiters: tuple[Any, Any], clocks: tuple[ManualClock, ManualClock]) -> None:
        self.behind, self.ahead = limiters
        self._clocks = clocks
        self.entity = new_entity()
        self.passed = 0.0
        self.taken = dict.fromkeys(limiters, 0)

    @property
    def total(self) -> int:
        return sum(self.taken.values())

    def advance(self, seconds: float) -> None:
        self.passed += seconds
        for clock in self._clocks:
            clock.advance(seconds)

    def take(self, limiter: Any, most: int = 10**9) -> int:
        """Whatever there is, down to the last one."""
        available = min(most, max(0, limiter.available(self.entity, "r", [LIMIT])["n"]))
        if available:
            assert take(limiter, self.entity, available, LIMIT)
        assert most == available or not take(limiter, self.entity, 1, LIMIT)
        self.taken[limiter] += available
        return available

    def check(self) -> None:
        assert self.total <= LIMIT.capacity + self.passed + SKEW


@pytest.fixture(params=["sync", "async"])
def pair(request: pytest.FixtureRequest, scene: Scene) -> Iterator[Pair]:
    clocks = ManualClock(NOW_MS), ManualClock(NOW_MS + SKEW * 1000)
    with (
        limiter_of(request.param, scene.url, clock=clocks[0], config_cache_ttl=10**6) as behind,
        limiter_of(request.param, scene.url, clock=clocks[1], config_cache_ttl=10**6) as ahead,
    ):
        yield Pair((behind, ahead), clocks)


@pytest.mark.parametrize("first", ["behind", "ahead"])
def test_clocks_an_hour_apart_admit_no_more_than_one_hour_extra(pair: Pair, first: str) -> None:
    """Both take whatever there is, in either order."""
    limiters = [pair.behind, pair.ahead] if first == "behind" else [pair.ahead, pair.behind]
    for _ in range(30):
        for limiter in limiters:
            pair.take(limiter)
            pair.check()
        pair.advance(120)
    assert pair.total >= LIMIT.capacity + pair.passed - 120, "and they do not get less for it"


def test_the_skew_is_worth_its_refill_once(pair: Pair) -> None:
    assert pair.take(pair.behind) == 5000
    assert pair.take(pair.ahead) == SKEW, "what it earns by its clock"
    for _ in range(20):
        pair.advance(HOUR / 2)
        assert pair.take(pair.behind) + pair.take(pair.ahead) == HOUR / 2
    assert pair.total == LIMIT.capacity + pair.passed + SKEW


def test_the_one_behind_has_what_the_other_leaves(pair: Pair) -> None:
    pair.take(pair.ahead)
    for _ in range(10):
        pair.advance(100)
        assert pair.take(pair.ahead, 60) == 60
        assert pair.take(pair.behind) == 40


def test_the_one_behind_waits_no_longer_than_the_skew(pair: Pair) -> None:
    """The other takes everything and is gone."""
    pair.take(pair.ahead)
    pair.advance(SKEW - 1)
    refused = take(pair.behind, pair.entity, 1, LIMIT)
    assert not refused
    pair.advance(1)
    assert pair.take(pair.behind) == 0
    for _ in range(3):
        pair.advance(100)
        assert pair.take(pair.behind) == 100
    pair.check()


def test_the_one_behind_writes_first_and_last(pair: Pair) -> None:
    """It writes its own time over the other's. That makes it more careful, and the other does not mind."""
    assert take(pair.behind, pair.entity, 1, LIMIT)
    assert take(pair.ahead, pair.entity, 1, LIMIT)
    assert take(pair.behind, pair.entity, 1, LIMIT)
    ahead, behind = (one.available(pair.entity, "r", [LIMIT])["n"] for one in (pair.ahead, pair.behind))
    assert 4998 - SKEW <= behind <= ahead == 4998


@both_kinds
class TestStepped:
    def test_clock_stepped_back_waits_as_of_the_last_write(self, kind: str, scene: Scene) -> None:
        entity, clock = new_entity(), ManualClock(NOW_MS)
        with limiter_of(kind, scene.url, clock=clock) as limiter:
            assert take(limiter, entity, 5000, LIMIT)
            clock.advance(-HOUR)
            assert not take(limiter, entity, 1, LIMIT)
            assert take(limiter, entity, 1, LIMIT).retry_after_seconds == 1.0, "as of the last write"
            clock.advance(HOUR)
            assert not take(limiter, entity, 1, LIMIT)
            clock.advance(10)
            assert take(limiter, entity, 10, LIMIT)
            assert not take(limiter, entity, 1, LIMIT)

    def test_clock_stepped_back_after_a_look_still_has_what_was_shown(self, kind: str, scene: Scene) -> None:
        """What was said to be there is still there: time does not run backwards for a limiter."""
        entity, clock = new_entity(), ManualClock(NOW_MS)
        with limiter_of(kind, scene.url, clock=clock) as limiter:
            assert take(limiter, entity, 5000, LIMIT)
            clock.advance(10)
            assert limiter.available(entity, "r", [LIMIT]) == {"n": 10}
            clock.advance(-HOUR)
            assert limiter.available(entity, "r", [LIMIT]) == {"n": 10}
            assert take(limiter, entity, 10, LIMIT)
            assert not take(limiter, entity, 1, LIMIT)

    def test_clock_stepped_to_and_fro_earns_an_hour_once(self, kind: str, scene: Scene) -> None:
        """What was earned in an hour that never was is had once, however often the clock goes there."""
        entity, clock = new_entity(), ManualClock(NOW_MS)
        with limiter_of(kind, scene.url, clock=clock) as limiter:
            assert take(limiter, entity, 5000, LIMIT)
            taken = 0
            for _ in range(5):
                clock.advance(HOUR)
                available = limiter.available(entity, "r", [LIMIT])["n"]
                if available:
                    assert take(limiter, entity, available, LIMIT)
                taken += available
                clock.advance(-HOUR)
                assert not take(limiter, entity, 1, LIMIT)
            assert taken == HOUR

    def test_a_restart_with_a_clock_that_is_behind(self, kind: str, scene: Scene) -> None:
        """Another process knows nothing, but the item does."""
        entity = new_entity()
        with limiter_of(kind, scene.url, clock=ManualClock(NOW_MS)) as limiter:
            assert take(limiter, entity, 5000, LIMIT)
        for seconds in (-HOUR, -1):
            with limiter_of(kind, scene.url, clock=ManualClock(NOW_MS + seconds * 1000)) as limiter:
                assert not take(limiter, entity, 1, LIMIT)
                assert limiter.available(entity, "r", [LIMIT]) == {"n": 0}


@both_kinds
@pytest.mark.parametrize("year", [2001, 2099])
def test_time_to_live_is_by_the_machines_clock(kind: str, year: int, scene: Scene) -> None:
    """DynamoDB deletes by its own, which the injected one has nothing to do with."""
    entity = new_entity()
    clock = ManualClock((year - 1970) * 365 * 86_400_000)
    with limiter_of(kind, scene.url, clock=clock, usage_days=0) as limiter:
        limiter.create_entity(entity)
        limiter.set_limits(entity, [LIMIT])
        for amount in (1, 4000, 999):
            assert limiter.try_acquire(entity, "r", {"n": amount})
            now = time.time()
            (item,) = scene.items(f"/BUCKET#{entity}#")
            full_in = LIMIT.capacity  # at the latest
            assert now + HOUR - 60 < int(item["ttl"]["N"]) < now + full_in + 2 * HOUR
        limiter.adjust(entity, "r", {"n": 50_000})
        (item,) = scene.items(f"/BUCKET#{entity}#")
        assert int(item["ttl"]["N"]) > time.time() + 50_000, "not before the debt is repaid"
        assert all(int(one["ttl"]["N"]) > time.time() for one in scene.items(entity) if "ttl" in one)
        clock.advance(86_400 * 365)
        limiter.reconcile()
        assert limiter.available(entity, "r") == {"n": 5000}
