"""Who runs against whom. The first of each group is headgate, and the ratios are to it."""

from __future__ import annotations

import asyncio

import limits.aio.strategies as aio_strategies
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter

from . import bare, ours, peers
from .measure import Contender

# Kept hits make each further one slower, so there are as many as a real limit might have.
KEPT = 1_000
KEEPS = f"all {KEPT:,} hits kept"
KEPT_IN_SQLITE = 500  # with the file lock, about one checkpoint
KEEPS_IN_SQLITE = f"all {KEPT_IN_SQLITE} hits kept"
BARE = "sqlite3"  # how the rows begin that are no limiter
TRANSACTION = f"{BARE} transaction"
HAND_OVER = "16 threads answered by another one"
LEAST = "the least a limiter could do"
# The write-ahead log is brought into the file every 8,192 pages. A turn has to bear its share of that.
COMMITS = 20_000


def memory() -> list[Contender]:
    return [
        Contender("headgate try_acquire", ours.one_caller(ours.memory), note="token bucket"),
        Contender("headgate with acquire", ours.as_lease(ours.memory), note="token bucket, with a lease"),
        Contender("limits fixed window", peers.limits_memory(FixedWindowRateLimiter)),
        Contender("limits sliding counter", peers.limits_memory(SlidingWindowCounterRateLimiter)),
        Contender("limits moving window", peers.limits_memory(MovingWindowRateLimiter), KEPT, KEEPS),
        Contender("throttled token bucket", peers.throttled_memory("token_bucket")),
        Contender("throttled fixed window", peers.throttled_memory("fixed_window")),
        Contender("throttled GCRA", peers.throttled_memory("gcra")),
        Contender("pyrate in-memory bucket", peers.pyrate_memory, KEPT, f"one key; {KEEPS}"),
        Contender("pyrate token bucket", peers.pyrate_token_bucket, note="one key"),
    ]


def asynchronous(loop: asyncio.AbstractEventLoop) -> list[Contender]:
    fixed, moving = aio_strategies.FixedWindowRateLimiter, aio_strategies.MovingWindowRateLimiter
    return [
        Contender("headgate try_acquire", ours.one_task(ours.memory)(loop), note="token bucket"),
        Contender("aiolimiter", peers.aio_aiolimiter(loop), note="no keys, one event loop, waits only"),
        Contender("limits.aio fixed window", peers.aio_limits_memory(fixed)(loop)),
        Contender("limits.aio moving window", peers.aio_limits_memory(moving)(loop), KEPT, KEEPS),
        Contender("throttled token bucket", peers.aio_throttled_memory("token_bucket")(loop)),
        Contender("throttled fixed window", peers.aio_throttled_memory("fixed_window")(loop)),
        Contender("throttled GCRA", peers.aio_throttled_memory("gcra")(loop)),
        Contender("pyrate in-memory bucket", peers.aio_pyrate_memory(loop), KEPT, f"one key; {KEEPS}"),
    ]


def sqlite() -> list[Contender]:
    locked, unlocked = (peers.pyrate_sqlite(use_file_lock=on) for on in (True, False))
    return [
        Contender("headgate try_acquire", ours.one_caller(ours.sqlite), COMMITS, "many processes"),
        Contender("pyrate SQLite, file lock", locked, KEPT_IN_SQLITE, f"many processes; {KEEPS_IN_SQLITE}"),
        Contender("pyrate SQLite, no lock", unlocked, KEPT_IN_SQLITE, f"one process; {KEEPS_IN_SQLITE}"),
        Contender(TRANSACTION, bare.transaction, COMMITS, LEAST),
    ]


def concurrent(loop: asyncio.AbstractEventLoop) -> list[Contender]:
    return [
        Contender("headgate 1 thread", ours.one_caller(ours.sqlite), COMMITS),
        Contender("headgate 16 threads, a key each", ours.many_threads(ours.sqlite, 16, one_key=False), 2 * COMMITS),
        Contender("headgate 16 threads, one key", ours.many_threads(ours.sqlite, 16, one_key=True), 2 * COMMITS),
        Contender("headgate 64 tasks, a key each", ours.many_tasks(ours.sqlite, 64)(loop), 8 * COMMITS),
        Contender("pyrate 16 threads, one key", peers.pyrate_sqlite_threads, KEPT_IN_SQLITE, KEEPS_IN_SQLITE),
        Contender(
            f"{TRANSACTION}s of 16 threads", bare.transactions_of_threads(16), 2 * COMMITS, "one after the other"
        ),
        Contender(HAND_OVER, bare.hand_over(16), 2 * COMMITS, "no file: what it takes to be woken"),
    ]
