"""A holder is killed with kill -9: its slot is free when its time is over, not before, and once."""

from __future__ import annotations

import time

from fault_helpers import PATIENCE_SECONDS, PAUSE_SECONDS, ROUNDING_SECONDS, Place, eventually, free, wish

from headgate.limiter.acquire.slot_queue import PLACE_MS

TTL = 3.0  # a machine so busy that a holder does not get to renew for so long is no failure of ours
SLOTS = 2
A_SLOT = wish(SLOTS, TTL)


def test_its_slot_is_free_at_its_ttl_and_once(place: Place) -> None:
    with place.processes(4) as (doomed, other, first, second), place.limiter() as limiter:
        assert doomed.take(**A_SLOT) == other.take(**A_SLOT) == 1
        # For longer than the ttl it is renewed, and nobody else gets it.
        granted = doomed.held_until()
        while doomed.held_until() < granted + TTL:
            assert first.take(**A_SLOT) == 0
            time.sleep(3 * PAUSE_SECONDS)
        until = doomed.held_until()
        doomed.kill()
        taken = 0
        while not taken:
            time.sleep(3 * PAUSE_SECONDS)
            asked_at = time.monotonic()
            for process in (first, second):
                process.tell("take", **A_SLOT)
            limiter.reconcile()
            taken = first.answer() + second.answer()
            assert not taken or time.monotonic() >= until - ROUNDING_SECONDS, "before its time was over"
            assert asked_at < until + PATIENCE_SECONDS, "its slot was never free"
        assert taken == 1
        assert free(limiter, SLOTS, TTL) == 0
        assert first.take(**A_SLOT) + second.take(**A_SLOT) == 0
        assert limiter.reconcile().leases <= 1
        assert first.leave() + second.leave() + other.leave() == 2
        assert free(limiter, SLOTS, TTL) == SLOTS
        assert limiter.reconcile().leases == 0


def test_nobody_needs_it_and_reconcile_finds_it_once(place: Place) -> None:
    with place.processes(2) as (doomed, other), place.limiter() as limiter:
        assert doomed.take(**A_SLOT) == other.take(**wish(SLOTS, TTL, "alive")) == 1
        assert limiter.reconcile().leases == 0
        until = doomed.held_until()
        doomed.kill()
        assert eventually(lambda: limiter.reconcile().leases, "the lease to be found") == 1
        assert time.monotonic() >= until - ROUNDING_SECONDS, "before its time was over"
        assert limiter.reconcile().leases == 0
        assert free(limiter, SLOTS, TTL) == SLOTS
        assert free(limiter, SLOTS, TTL, "alive") == SLOTS - 1
        assert other.lost() == [0, 0]


def test_a_waiter_that_is_killed_does_not_hold_up_the_next(place: Place) -> None:
    one = wish(1, 60.0)
    with place.processes(3) as (holder, doomed, next_in_line), place.limiter() as limiter:
        assert holder.take(**one) == 1
        doomed.tell("take", **one, max_wait=120)
        time.sleep(10 * PAUSE_SECONDS)  # as a rule it is first; whether it is does not matter
        next_in_line.tell("take", **one, max_wait=120)
        time.sleep(10 * PAUSE_SECONDS)
        doomed.kill()
        assert holder.leave() == 1
        freed_at = time.monotonic()
        assert next_in_line.answer() == 1
        assert time.monotonic() - freed_at < PLACE_MS / 1000 + 20, "the place of the dead had expired before"
        assert next_in_line.leave() == 1
        assert eventually(lambda: free(limiter, 1, 60.0) == 1, "no trace of the dead")
