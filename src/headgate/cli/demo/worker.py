"""One worker process: ask, count, ask again. Run as a module by `run`."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from ...limiter import SyncRateLimiter
from .counters import ADMITTED, ASKING, COSTS, FIRST_MS, LAST_MS, REFUSED, Counters

ENTITY = "vendor"
RESOURCE = "llm"
# Longer than any demo: a worker that waits for the file's lock is no reason to end it.
STORE_TIMEOUT_SECONDS = 60.0


def work(url: str, namespace: str, path: str, number: int, parent: int) -> None:
    """Until told to stop, or until `parent` is no longer there to do so."""
    counters = Counters(Path(path))
    mine = counters.slot(number)
    calls = [(ADMITTED + index, cost, {"rpm": 1, "tpm": cost, "calls": 1}) for index, cost in enumerate(COSTS)]
    with SyncRateLimiter(url, namespace=namespace, store_timeout=STORE_TIMEOUT_SECONDS, audit_days=0) as limiter:
        limiter.available(ENTITY, RESOURCE)  # connected, limits read
        mine[FIRST_MS] = time.time_ns() // 1_000_000
        while not counters.stopped and os.getppid() == parent:
            place, cost, consume = random.choice(calls)
            mine[ASKING] = cost
            decision = limiter.try_acquire(ENTITY, RESOURCE, consume)
            mine[place if decision else REFUSED] += 1
            mine[ASKING] = 0
        mine[LAST_MS] = time.time_ns() // 1_000_000


if __name__ == "__main__":
    # Ctrl-C reaches every process of the terminal; the demo says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    directory, namespace, path, number, parent = sys.argv[1:]
    url = sys.stdin.read()
    os.chdir(directory)
    work(url, namespace, path, int(number), int(parent))
