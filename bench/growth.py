"""What more entities and more limits cost in time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from headgate import Limit, SyncRateLimiter
from headgate.core.decide import Mode, Part, Request
from headgate.core.names import bucket_key

from . import bare, ours
from .contenders import COMMITS
from .measure import Contender, Turn, calls, calls_with, quiet

LIMITS_PER_ACQUIRE = (1, 4, 16)
BATCH = 20_000
BARE = "bare dictionary"


def lasting_limit() -> Limit:
    """A bucket that is full again may be forgotten. These stay: what was taken takes an hour to come back."""
    return Limit.per_hour("requests", 1, burst=1_000_000)


def entities(url: ours.URL, counts: Sequence[int]) -> list[Contender]:
    group = [
        Contender(f"{count:,} entities" if count > 1 else "1 entity", _entities(url, count), _hits(url))
        for count in counts
    ]
    if url is ours.memory:  # before the last one, which the first is compared with
        group[-1:-1] = [
            Contender(f"{BARE}, {count:,} key{'s' * (count > 1)}", bare.dictionary(count), 0, "an object each")
            for count in (counts[0], counts[-1])
        ]
    return group


def _hits(url: ours.URL) -> int:
    return COMMITS if url is ours.sqlite else 0


def _entities(url: ours.URL, count: int) -> Any:
    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        with ours.limiter_at(url(folder), [lasting_limit()]) as limiter:
            fill(limiter, count)
            yield calls_with(_hit(limiter), _random_entities(count))

    return opened


def fill(limiter: SyncRateLimiter, count: int) -> None:
    """Take a token of every entity, in any order. Straight to the store in large batches: the same rows, sooner."""
    names = iter(entity(number) for number in random.Random(1).sample(range(count), count))
    limit = lasting_limit()
    with quiet():
        while batch := list(islice(names, BATCH)):
            requests = [
                Request(Mode.TAKE, (bucket_key("default", name, "api"),), (Part(0, limit, 1000),)) for name in batch
            ]
            limiter.engine.store.settle(requests, time.time_ns() // 1_000_000)


def entity(number: int) -> str:
    return f"user-{number}"


def _hit(limiter: SyncRateLimiter) -> Callable[[str], bool]:
    return lambda key: limiter.try_acquire(key, "api", {"requests": 1}).allowed


def _random_entities(count: int) -> Callable[[int], list[str]]:
    chance = random.Random(2)
    return lambda hits: [entity(chance.randrange(count)) for _ in range(hits)]


def limits_per_acquire(url: ours.URL) -> list[Contender]:
    return [
        Contender(f"{count} limit{'s' * (count > 1)}", _several(url, count), _hits(url)) for count in LIMITS_PER_ACQUIRE
    ]


def _several(url: ours.URL, count: int) -> Any:
    names = [f"limit-{number}" for number in range(count)]

    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        limits = [Limit.per_hour(name, ours.PLENTY) for name in names]
        consume = dict.fromkeys(names, 1)
        with ours.limiter_at(url(folder), limits) as limiter:
            yield calls(lambda: limiter.try_acquire(ours.KEY, "api", consume).allowed)

    return opened
