"""A client's clock is half an hour off. It does not matter where the store has its own; elsewhere, as is promised.

Ahead, it takes slots that are not free, and whoever held one learns so at its next renewal. Behind, it waits longer for
slots of the dead, by as much as it is behind at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
from fault_helpers import PAUSE_SECONDS, ROUNDING_SECONDS, Place, Process, eventually, free, wish

from headgate import Limit
from headgate.testing.servers.redis.clock import SteppedClock

TTL = 1.5
SKEW_SECONDS = 30 * 60
A_SLOT = wish(1, TTL)
Start: TypeAlias = "Callable[[int], Process]"

with_clocks = pytest.mark.parametrize("store", ["redis", "postgres"], indirect=True)
others = pytest.mark.parametrize("store", ["sqlite", "dynamodb"], indirect=True)


class BehindClock:
    def now_ms(self) -> int:
        return (time.time_ns() - SKEW_SECONDS * 10**9) // 10**6


@pytest.fixture
def start(place: Place, tmp_path: Path, faketime_installed: None) -> Iterator[Start]:
    """Starts a process whose clock is so many seconds ahead."""
    with ExitStack() as stack:

        def start(seconds: int) -> Process:
            clock = SteppedClock(tmp_path / f"clock{seconds}")
            clock.step(seconds)
            (process,) = stack.enter_context(place.processes(1, environment=clock.environment))
            assert abs(process.clock() - time.time() - seconds) < 60
            return process

        yield start


@with_clocks
@pytest.mark.parametrize("seconds", [-SKEW_SECONDS, SKEW_SECONDS])
def test_it_does_not_matter_where_the_store_has_its_own(start: Start, seconds: int) -> None:
    holder, other = start(seconds), start(-seconds)
    assert holder.take(**A_SLOT) == 1
    granted = holder.held_until()
    while holder.held_until() < granted + TTL:
        assert other.take(**A_SLOT) == 0
        time.sleep(5 * PAUSE_SECONDS)
    assert holder.lost() == [0, 0]
    until = holder.held_until()
    holder.kill()
    eventually(lambda: other.take(**A_SLOT), "the slot to be free")
    assert time.monotonic() >= until - ROUNDING_SECONDS


@others
def test_one_ahead_takes_a_slot_that_is_not_free(start: Start, place: Place) -> None:
    holder, other = start(0), start(SKEW_SECONDS)
    assert holder.take(**A_SLOT) == 1
    assert other.take(**A_SLOT) == 1
    eventually(lambda: holder.lost() == [1, 1], "the holder to be told")
    assert holder.leave() == 1
    # From here on there is one again: what is lost cannot be given back, and time does not run backwards.
    with place.limiter() as limiter:
        assert free(limiter, 1, TTL) == 0
        assert holder.take(**A_SLOT) == 0
        assert other.renew() is True
        assert other.leave() == 1
        assert free(limiter, 1, TTL) == 1
        assert holder.take(**A_SLOT) == 1


@others
def test_one_behind_waits_longer_for_the_slots_of_the_dead(start: Start, place: Place) -> None:
    doomed, late = start(0), start(-SKEW_SECONDS)
    assert doomed.take(**A_SLOT) == 1
    until = doomed.held_until()
    doomed.kill()
    with place.limiter() as right, place.limiter(clock=BehindClock()) as behind:
        limits = [Limit.concurrent("slots", 1, TTL)]
        while time.monotonic() < until + TTL:
            assert late.take(**A_SLOT) == 0
            wait = behind.time_until_available("e", "api", {"slots": 1}, limits)
            assert wait is not None
            assert 0 < wait <= SKEW_SECONDS + TTL
            time.sleep(5 * PAUSE_SECONDS)
        # For others it is free, and when one of them has used it, for the one behind too.
        decision = right.try_acquire("e", "api", {"slots": 1}, limits)
        assert decision.lease
        assert late.take(**A_SLOT) == 0
        decision.lease.commit()
        # It has asked often: on DynamoDB what it hears may be as of a fifth of a second ago.
        eventually(lambda: late.take(**A_SLOT), "the slot to be free for the one behind")
