"""Who runs against whom on a Redis server: in every table the same libraries, each in all its forms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from limits.aio import strategies as aio
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter

from . import ours
from . import redis_peers as peers
from .measure import Contender, Turn, calls, coroutines, tasks, threads
from .peers import KEY

Tables = dict[str, list[Contender]]

BARE, SHARED = "redis-py", "bare"  # how the rows begin that are no limiter
SHARED_CALLS = f"{SHARED} shared calls, GET and PSETEX"
TASKS, THREADS = 64, 16

LOG = "all hits kept"
OWN = "a Limiter for each caller"
PYRATE_LOG, PYRATE_TOKENS = f"{OWN}; {LOG}", OWN
ALGORITHM = "the algorithm alone, without rules"
INCRBY = "INCRBY, no script"

BLOCKING = (
    ("headgate try_acquire", ours.on, "token bucket"),
    ("limits fixed window", peers.limits_redis(FixedWindowRateLimiter), ""),
    ("limits sliding counter", peers.limits_redis(SlidingWindowCounterRateLimiter), ""),
    ("limits moving window", peers.limits_redis(MovingWindowRateLimiter), LOG),
    ("throttled token bucket", peers.throttled_redis("token_bucket"), ""),
    ("throttled fixed window", peers.throttled_redis("fixed_window"), INCRBY),
    ("throttled sliding window", peers.throttled_redis("sliding_window"), ""),
    ("throttled leaking bucket", peers.throttled_redis("leaking_bucket"), ""),
    ("throttled GCRA", peers.throttled_redis("gcra"), ""),
    ("pyrate Redis bucket", peers.pyrate_redis(peers.pyrate_log), PYRATE_LOG),
    ("pyrate token bucket", peers.pyrate_redis(peers.pyrate_token_bucket), PYRATE_TOKENS),
    ("limify token bucket", peers.limify, ALGORITHM),
)
ASYNC = (
    ("headgate try_acquire", ours.aio_on, "token bucket"),
    ("limits.aio fixed window", peers.aio_limits_redis(aio.FixedWindowRateLimiter), ""),
    ("limits.aio sliding counter", peers.aio_limits_redis(aio.SlidingWindowCounterRateLimiter), ""),
    ("limits.aio moving window", peers.aio_limits_redis(aio.MovingWindowRateLimiter), LOG),
    ("throttled token bucket", peers.aio_throttled_redis("token_bucket"), ""),
    ("throttled fixed window", peers.aio_throttled_redis("fixed_window"), INCRBY),
    ("throttled sliding window", peers.aio_throttled_redis("sliding_window"), ""),
    ("throttled leaking bucket", peers.aio_throttled_redis("leaking_bucket"), ""),
    ("throttled GCRA", peers.aio_throttled_redis("gcra"), ""),
    ("pyrate Redis bucket", peers.aio_pyrate_redis(peers.pyrate_log), PYRATE_LOG),
    ("pyrate token bucket", peers.aio_pyrate_redis(peers.pyrate_token_bucket), PYRATE_TOKENS),
    ("limify token bucket", peers.aio_limify, ALGORITHM),
)
NOTHING, LEAST, ROAD = "a script that does nothing", "the least a limiter could do", "the road's limit"
BARE_BLOCKING = (
    (f"{BARE} EVALSHA", peers.evalsha(peers.NOTHING), NOTHING),
    (f"{BARE} EVALSHA, GET and SET", peers.evalsha(peers.GET_AND_SET), LEAST),
    (f"{BARE} PING", peers.ping, ROAD),
)
BARE_ASYNC = (
    (f"{BARE} EVALSHA", peers.aio_evalsha(peers.NOTHING), NOTHING),
    (f"{BARE} EVALSHA, GET and SET", peers.aio_evalsha(peers.GET_AND_SET), LEAST),
    (f"{BARE} PING", peers.aio_ping, ROAD),
)
BARE_CROWD = (
    (SHARED_CALLS, peers.aio_shared_calls(TASKS), "half of the tasks in each, two under way; decides nothing"),
    (f"{SHARED} futures, no server", peers.aio_futures(TASKS), ROAD),
)


def lone(url: str, loop: peers.Loop) -> Tables:
    return {
        "redis, one task": _in_tasks(url, loop, [KEY], (ASYNC[0], *BARE_ASYNC, *ASYNC[1:])),
        "redis, one thread": _in_threads(url, [KEY], (BLOCKING[0], *BARE_BLOCKING, *BLOCKING[1:])),
    }


def crowds(url: str, loop: peers.Loop) -> Tables:
    return {
        "redis, 64 tasks, a key each": _in_tasks(url, loop, _keys(TASKS), (ASYNC[0], *BARE_CROWD, *ASYNC[1:])),
        "redis, 64 tasks, one key": _in_tasks(url, loop, [KEY] * TASKS, (ASYNC[0], *BARE_CROWD, *ASYNC[1:])),
        "redis, 16 threads, a key each": _in_threads(url, _keys(THREADS), BLOCKING),
        "redis, 16 threads, one key": _in_threads(url, [KEY] * THREADS, BLOCKING),
    }


def _keys(count: int) -> list[str]:
    return [f"user-{number}" for number in range(count)]


def _in_threads(url: str, keys: Sequence[str], rows: Sequence[tuple[str, peers.Open, str]]) -> list[Contender]:
    def seat(open_at: peers.Open) -> Any:
        @contextmanager
        def opened(_: Path) -> Iterator[Turn]:
            _empty(url)
            with open_at(url) as hit_of:
                hits = [hit_of(key) for key in keys]
                yield threads(hits) if len(hits) > 1 else calls(hits[0])

        return opened

    return [Contender(name, seat(open_at), note=note) for name, open_at, note in rows]


def _in_tasks(
    url: str, loop: peers.Loop, keys: Sequence[str], rows: Sequence[tuple[str, peers.AsyncOpen, str]]
) -> list[Contender]:
    def seat(open_at: peers.AsyncOpen) -> Any:
        @contextmanager
        def opened(_: Path) -> Iterator[Turn]:
            _empty(url)
            with open_at(url, loop) as hit_of:
                hits = [hit_of(key) for key in keys]
                yield tasks(loop, hits) if len(hits) > 1 else coroutines(loop, hits[0])

        return opened

    return [Contender(name, seat(open_at), note=note) for name, open_at, note in rows]


def _empty(url: str) -> None:
    with peers.client(url) as server:
        server.flushall()
