"""Hundreds of recorded leases die at once, and three reconcilers find them at once: what they took comes back once."""

from __future__ import annotations

import threading
import time
from typing import Any

from fault_helpers import PAUSE_SECONDS, Place, Process, eventually

from headgate import Limit, SyncRateLimiter

TTL = 4.0
ALIVE = AT_ONCE = 20
CAPACITY = 1000
STILL = [CAPACITY, 0.001, 366 * 86_400]  # in a test it gains nothing
QUICK = [CAPACITY, CAPACITY, 0.1]  # full again before anything can come back
LIMITS = [Limit.custom("still", *STILL), Limit.custom("quick", *QUICK)]
RECORDED: dict[str, Any] = {
    "consume": {"still": 2, "quick": 1},
    "limits": {"still": STILL, "quick": QUICK},
    "record_lease": True,
    "restore_on_expiry": True,
    "lease_ttl": TTL,
}
ENTITIES = [f"e{number}" for number in range(3)]


def tokens(limiter: SyncRateLimiter) -> tuple[int, int]:
    """Of all entities together."""
    found = [limiter.available(entity, "api", LIMITS) for entity in ENTITIES]
    return sum(one["still"] for one in found), sum(one["quick"] for one in found)


def take(process: Process, count: int) -> None:
    """A few at a time: who is busy for longer than the ttl does not get to renew."""
    for _ in range(count // AT_ONCE):
        assert process.take(entities=[ENTITIES[number % 3] for number in range(AT_ONCE)], **RECORDED) == AT_ONCE


def test_three_at_once_restore_everything_once(place: Place, store: str) -> None:
    dead = 60 if store == "dynamodb" else 300  # there each writes all that hold with it
    full = CAPACITY * len(ENTITIES)
    with place.processes(5, "async") as (doomed, alive, *reconcilers), place.limiter() as limiter:
        take(doomed, dead)
        take(alive, ALIVE)
        assert limiter.reconcile().restored == 0
        assert tokens(limiter)[0] == full - 2 * (dead + ALIVE)
        doomed.kill()

        totals = {"leases": 0, "restored": 0}
        most = 0
        done = threading.Event()

        def look() -> None:
            nonlocal most
            with place.limiter() as own:
                while not done.is_set():
                    most = max(most, tokens(own)[0])
                    time.sleep(3 * PAUSE_SECONDS)

        looking = threading.Thread(target=look)
        looking.start()

        def all_restored() -> bool:
            time.sleep(10 * PAUSE_SECONDS)
            for reconciler in reconcilers:
                reconciler.tell("reconcile")
            for found in [reconciler.answer() for reconciler in reconcilers]:
                for name in totals:
                    totals[name] += found[name]
            return totals["restored"] >= dead

        try:
            eventually(all_restored, "all to be restored")
            all_restored()  # and nothing once more
        finally:
            done.set()
            looking.join()
        assert totals == {"leases": dead, "restored": dead}
        assert tokens(limiter) == (full - 2 * ALIVE, full)
        assert most <= full - 2 * ALIVE
        assert alive.lost() == [0, 0]
        assert alive.leave() == ALIVE
        assert limiter.reconcile().restored == 0
        assert tokens(limiter) == (full - 2 * ALIVE, full)


def test_one_that_was_only_paused_takes_again_what_was_restored(place: Place) -> None:
    """It is not dead after all, and keeps what it used: it counts once, neither twice nor not at all."""
    with place.processes(1) as (holder,), place.limiter() as limiter:
        assert holder.take(entities=["e0"], **RECORDED) == 1
        holder.pause()
        eventually(lambda: limiter.reconcile().restored, "the lease to be taken for dead")
        assert tokens(limiter)[0] == CAPACITY * 3
        holder.resume()
        assert holder.leave() == 1
        assert tokens(limiter)[0] == CAPACITY * 3 - 2
        assert limiter.reconcile().restored == 0
