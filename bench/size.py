"""What one idle bucket costs, in memory and on disk: fill many, look, divide."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import limits
import throttled
from pyrate_limiter import (
    BucketFactory,
    Duration,
    InMemoryBucket,
    Limiter,
    MonotonicClock,
    Rate,
    RateItem,
    SQLiteBucket,
)

from . import ours
from .growth import entity, fill, lasting_limit


@dataclass(frozen=True)
class Size:
    name: str
    bytes_each: float
    note: str = ""


def in_memory(count: int) -> list[Size]:
    return [
        Size("headgate bucket", _memory_of(lambda: _headgate(count, cached=False), count)),
        Size("headgate bucket, just used", _memory_of(lambda: _headgate(count, cached=True), count), CACHED),
        Size("limits fixed window", _memory_of(lambda: _limits(count), count), "a counter"),
        Size("throttled token bucket", _memory_of(lambda: _throttled(count), count)),
        Size("pyrate in-memory bucket", _memory_of(lambda: _pyrate(PYRATE_KEYS), PYRATE_KEYS), "a bucket per key"),
    ]


CACHED = "and its limits are cached"
PYRATE_KEYS = 2_000


def on_disk(count: int) -> list[Size]:
    return [
        Size("headgate bucket", _on_disk(lambda folder: _headgate_file(folder, count)) / count, "however many hits"),
        Size("pyrate SQLite item", _on_disk(lambda folder: _pyrate_file(folder, count)) / count, "for every hit"),
    ]


def _memory_of(make: Callable[[], Any], count: int) -> float:
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = make()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        del kept
    finally:
        tracemalloc.stop()
    return (after - before) / count


def _headgate(count: int, *, cached: bool) -> Any:
    limiter = ours.SyncRateLimiter("memory://")
    limiter.set_system_defaults([lasting_limit()])
    if not cached:
        fill(limiter, count)
    else:
        for number in range(count):
            limiter.try_acquire(entity(number), "api", {"requests": 1})
    return limiter


def _limits(count: int) -> Any:
    strategy = limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage())
    item = limits.RateLimitItemPerHour(ours.PLENTY)
    for number in range(count):
        strategy.hit(item, entity(number))
    return strategy


def _throttled(count: int) -> Any:
    store = throttled.MemoryStore(options={"MAX_SIZE": count})
    throttle = throttled.Throttled(quota=throttled.per_hour(ours.PLENTY, burst=ours.PLENTY), store=store)
    for number in range(count):
        throttle.limit(entity(number))
    return throttle


class _PerName(BucketFactory):
    """As in pyrate-limiter's README."""

    def __init__(self) -> None:
        self.clock = MonotonicClock()
        self.made: dict[str, InMemoryBucket] = {}

    def wrap_item(self, name: str, weight: int = 1) -> RateItem:
        return RateItem(name, self.clock.now(), weight=weight)

    def get(self, item: RateItem) -> InMemoryBucket:
        if item.name not in self.made:
            self.made[item.name] = self.create(InMemoryBucket, [Rate(ours.PLENTY, Duration.HOUR)])
        return self.made[item.name]


def _pyrate(count: int) -> Any:
    limiter = Limiter(_PerName())
    for number in range(count):
        limiter.try_acquire(entity(number))
    return limiter


def _on_disk(fill_folder: Callable[[Path], None]) -> int:
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        fill_folder(Path(folder))
        return sum(file.stat().st_size for file in Path(folder).iterdir())


def _headgate_file(folder: Path, count: int) -> None:
    # Closing the last connection brings the write-ahead log into the file.
    with ours.limiter_at(ours.sqlite(folder), [lasting_limit()]) as limiter:
        fill(limiter, count)


def _pyrate_file(folder: Path, count: int) -> None:
    bucket = SQLiteBucket.init_from_file([Rate(ours.PLENTY, Duration.HOUR)], db_path=str(folder / "pyrate.db"))
    with Limiter(bucket) as limiter:
        for number in range(100):
            limiter.try_acquire(entity(number), weight=count // 100)  # one item for each unit of weight
