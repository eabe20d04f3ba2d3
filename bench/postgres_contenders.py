"""Who runs against whom on a PostgreSQL server that writes to the disk before it answers, and on one that does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import ours
from . import postgres_peers as peers
from .measure import Contender, Turn, calls, coroutines, tasks, threads
from .peers import KEY
from .postgres_scenes import BARE, LEAST_ROW

Tables = dict[str, list[Contender]]

TASKS, THREADS = 64, 16

ROAD, NOTHING, LEAST = "the road's limit", "a function that does nothing", "the least a limiter could do"
LOG = "a Limiter for each caller; all hits kept"

BLOCKING = (("headgate try_acquire", ours.on, "token bucket"), ("pyrate PostgreSQL bucket", peers.pyrate, LOG))
ASYNC = (("headgate try_acquire", ours.aio_on, "token bucket"), ("pyrate PostgreSQL bucket", peers.aio_pyrate, LOG))
BARE_BLOCKING = (
    (f"{BARE} SELECT 1", peers.call(peers.SELECT_1), ROAD),
    (f"{BARE} function", peers.call(peers.NOTHING), NOTHING),
    (LEAST_ROW, peers.call(peers.READ_AND_WRITE), LEAST),
)
BARE_ASYNC = (
    (f"{BARE} SELECT 1", peers.aio_call(peers.SELECT_1), ROAD),
    (f"{BARE} function", peers.aio_call(peers.NOTHING), NOTHING),
    (LEAST_ROW, peers.aio_call(peers.READ_AND_WRITE), LEAST),
)


def lone(url: str, loop: peers.Loop) -> Tables:
    return {
        "postgres, one task": _in_tasks(url, loop, [KEY], (ASYNC[0], *BARE_ASYNC, *ASYNC[1:])),
        "postgres, one thread": _in_threads(url, [KEY], (BLOCKING[0], *BARE_BLOCKING, *BLOCKING[1:])),
    }


def crowds(url: str, loop: peers.Loop) -> Tables:
    return {
        "postgres, 64 tasks, a key each": _in_tasks(url, loop, _keys(TASKS), ASYNC),
        "postgres, 64 tasks, one key": _in_tasks(url, loop, [KEY] * TASKS, ASYNC),
        "postgres, 16 threads, a key each": _in_threads(url, _keys(THREADS), BLOCKING),
        "postgres, 16 threads, one key": _in_threads(url, [KEY] * THREADS, BLOCKING),
    }


def _keys(count: int) -> list[str]:
    return [f"user-{number}" for number in range(count)]


def _in_threads(url: str, keys: list[str], rows: Sequence[tuple[str, peers.Open, str]]) -> list[Contender]:
    def seat(open_at: peers.Open) -> Any:
        @contextmanager
        def opened(_: Path) -> Iterator[Turn]:
            peers.empty(url, keys)
            with open_at(url) as hit_of:
                hits = [hit_of(key) for key in keys]
                yield threads(hits) if len(hits) > 1 else calls(hits[0])

        return opened

    return [Contender(name, seat(open_at), note=note) for name, open_at, note in rows]


def _in_tasks(
    url: str, loop: peers.Loop, keys: list[str], rows: Sequence[tuple[str, peers.AsyncOpen, str]]
) -> list[Contender]:
    def seat(open_at: peers.AsyncOpen) -> Any:
        @contextmanager
        def opened(_: Path) -> Iterator[Turn]:
            peers.empty(url, keys)
            with open_at(url, loop) as hit_of:
                hits = [hit_of(key) for key in keys]
                yield tasks(loop, hits) if len(hits) > 1 else coroutines(loop, hits[0])

        return opened

    return [Contender(name, seat(open_at), note=note) for name, open_at, note in rows]
