"""A holder is killed with kill -9: its slot is free when its time is over, not before, and once."""

from __future__ import annotations

import time

from fault_helpers import PAUSE_SECONDS, ROUNDING_SECONDS, Place, eventually, free, wish

TTL = 1.0
SLOTS = 2
A_SLOT = wish(SLOTS, TTL)


def test_its_slot_is_free_at_its_ttl_and_once(place: Place) -> None:
    with place.processes(4) as (doomed, other, first, second), place.limiter() as limiter:
        assert doomed.take(**A_SLOT) == other.take(**A_SLOT) == 1
        # For longer than the ttl it is renewed, and nobody else gets it.
        granted = doomed.held_until()
        while doomed.held_until() < granted + TTL:
            assert first.take(**A_SLOT) == 0
            time.sleep(PAUSE_SECONDS)
        until = doomed.held_until()
        doomed.kill()
        taken = 0
        while not taken:
            time.sleep(PAUSE_SECONDS)
            asked_at = time.monotonic()
            for process in (first, second):
                process.tell("take", **A_SLOT)
            limiter.reconcile()
            taken = first.answer() + second.answer()
            assert not taken or time.monotonic() >= until - ROUNDING_SECONDS, "before its time was over"
            assert asked_at < until + 20 * TTL, "its slot was never free"
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
