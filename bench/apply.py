"""Applying a file of many entities, each with a name, a parent and limits: from the file to the last record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from headgate import SyncRateLimiter
from headgate.declare import apply, diff, read_limits_file

from . import ours
from .measure import Contender, Turn, quiet

APPLY = "apply, {place}"
PLACES = ("sqlite", "redis")
NEW, AGAIN = "a file of {count:,} new entities", "the same again: nothing to do"
_namespaces = count()


def contenders(place: str, redis_url: str, count: int = 10_000) -> list[Contender]:
    """To be measured with `warm_up=0`: a hit is a whole file."""
    url = ours.sqlite if place == "sqlite" else lambda _: redis_url
    return [
        Contender(NEW.format(count=count), _opened(url, count, again=False), hits=1),
        Contender(AGAIN, _opened(url, count, again=True), hits=1),
    ]


def _opened(url: ours.URL, count: int, *, again: bool) -> Any:
    @contextmanager
    def opened(folder: Path) -> Iterator[Turn]:
        file = folder / "limits.yaml"
        file.write_text("".join(_lines(count)))
        namespace = f"applied-{next(_namespaces)}"
        if again:
            _apply(url(folder), namespace, file)

        def turn(hits: int) -> float:
            with quiet():
                start = time.perf_counter()
                for number in range(hits):
                    done = _apply(url(folder), namespace if again else f"{namespace}-{number}", file)
                    assert done == (0 if again else 2 * count + 1)
                return time.perf_counter() - start

        yield turn

    return opened


def _apply(url: str, namespace: str, file: Path) -> int:
    with SyncRateLimiter(url, namespace=namespace, store_timeout=10.0) as limiter:
        return apply(limiter, diff(limiter, read_limits_file(file)))


def _lines(count: int) -> Iterator[str]:
    yield "entities:\n  holding: {name: Holding}\n"
    for number in range(count):
        yield (
            f"  tenant-{number:05}:\n    name: Tenant {number}\n    parent: holding\n    cascade: true\n"
            f"    limits: {{rpm: {100 + number % 50}/minute, tpm: 10000/minute}}\n"
        )
