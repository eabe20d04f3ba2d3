"""A holder is paused for longer than its ttl: it learns that it lost its slot, and takes nobody else's with it."""

from __future__ import annotations

import time

import pytest
from fault_helpers import Place, Process, eventually, free, wish

TTL = 2.0
A_SLOT = wish(1, TTL)

both_kinds = pytest.mark.parametrize("kind", ["sync", "async"])


def take_over(holder: Process, other: Process) -> None:
    """Pause the holder until the other has got its slot."""
    assert holder.take(**A_SLOT) == 1
    assert other.take(**A_SLOT) == 0
    holder.pause()
    eventually(lambda: other.take(**A_SLOT), "the slot to be free")


@both_kinds
def test_it_is_told_once_that_its_slot_is_lost(place: Place, kind: str) -> None:
    with place.processes(2, kind) as (holder, other), place.limiter() as limiter:
        take_over(holder, other)
        holder.resume()
        eventually(lambda: holder.lost()[1], "the holder to be told")
        assert holder.renew() is False
        assert holder.lost() == [1, 1]
        assert holder.leave() == 1
        assert free(limiter, 1, TTL) == 0
        time.sleep(1.2 * TTL)  # the other goes on, and nobody is told again
        assert holder.take(**A_SLOT) == 0
        assert holder.lost() == [0, 1]
        assert other.lost() == [0, 0]
        assert other.leave() == 1
        assert free(limiter, 1, TTL) == 1
        assert holder.take(**A_SLOT) == 1


def test_leaving_late_does_not_free_the_slot_of_the_next(place: Place) -> None:
    """The first thing that it does when it goes on is to give back, twice, what it no longer has."""
    with place.processes(2) as (holder, other), place.limiter() as limiter:
        take_over(holder, other)
        holder.tell("release", slots=1)
        holder.tell("leave")
        holder.resume()
        holder.answer()
        assert holder.answer() == 1
        assert free(limiter, 1, TTL) == 0
        assert holder.take(**A_SLOT) == 0
        assert other.renew() is True
        assert other.leave() == 1
        assert free(limiter, 1, TTL) == 1


def test_it_is_lost_even_if_nobody_wanted_it(place: Place) -> None:
    with place.processes(1) as (holder,), place.limiter() as limiter:
        assert holder.take(**A_SLOT) == 1
        holder.pause()
        eventually(lambda: free(limiter, 1, TTL) == 1, "the slot to be free")
        holder.resume()
        eventually(lambda: holder.lost() == [1, 1], "the holder to be told")
        assert holder.leave() == 1
        assert free(limiter, 1, TTL) == 1


@both_kinds
def test_holder_that_ends_right_after_its_pause_learns_that_its_slot_was_lost(place: Place, kind: str) -> None:
    """Its own clock knows: there is no need for a renewal that fails."""
    with place.processes(2, kind) as (holder, other), place.limiter() as limiter:
        take_over(holder, other)
        holder.tell("lost_at_the_end")
        holder.resume()
        assert holder.answer() == [True, 1]
        assert free(limiter, 1, TTL) == 0
        assert other.leave() == 1
