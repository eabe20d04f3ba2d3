"""A process that does what it is told, line by line: it takes slots, holds them, leaves; until it is killed or paused.

A line of stdin is a call, `["take", {...}]`; the line of stdout that answers it is JSON too, an error as its text.

Usage: fault_process.py URL NAMESPACE sync|async
"""

from __future__ import annotations

import asyncio
import json
import select
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headgate import Limit, RateLimiter, SyncRateLimiter

LONG_ENOUGH = 30.0


def _sleep_by_select() -> None:
    """Under libfaketime, which gives a process another clock, time.sleep() fails: EINVAL."""
    try:
        time.sleep(0.0001)
    except OSError:
        time.sleep = lambda seconds: select.select([], [], [], seconds)  # type: ignore[assignment,return-value]


_sleep_by_select()


class Caller:
    """Calls a limiter of either kind. The loop of the one with tasks goes on between the calls, for what is kept up."""

    def __init__(self, url: str, namespace: str, kind: str) -> None:
        settings: dict[str, Any] = {"namespace": namespace, "store_timeout": LONG_ENOUGH}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.limiter: Any
        if kind == "sync":
            self.limiter = SyncRateLimiter(url, **settings)
            self._threads = ThreadPoolExecutor(100)
            return
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

        async def new() -> RateLimiter:
            return RateLimiter(url, **settings)

        self.limiter = self._done(new())

    def _done(self, result: Any) -> Any:
        if self._loop is None or not asyncio.iscoroutine(result):
            return result
        return asyncio.run_coroutine_threadsafe(result, self._loop).result()

    def call(self, target: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._done(getattr(target, method)(*args, **kwargs))

    def call_all(self, method: str, calls: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        """At once."""
        function = getattr(self.limiter, method)
        if self._loop is None:
            return list(self._threads.map(lambda call: function(*call[0], **call[1]), calls))

        async def gathered() -> list[Any]:
            return await asyncio.gather(*(function(*args, **kwargs) for args, kwargs in calls))

        return list(self._done(gathered()))


class Actor:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._leases: list[Any] = []
        self._told_lost = 0

    def _on_lost(self, lease: Any) -> None:
        self._told_lost += 1

    def take(self, entities: list[str], consume: dict[str, int], limits: dict[str, list[Any]], **options: Any) -> int:
        """One lease for each entity named; how many were had. `limits`: the arguments that make them, by name."""
        made = [
            Limit.concurrent(name, *rest) if len(rest) == 2 else Limit.custom(name, *rest)
            for name, rest in limits.items()
        ]
        calls = [((entity, "api", consume, made), {"on_lost": self._on_lost, **options}) for entity in entities]
        leases = [decision.lease for decision in self._caller.call_all("try_acquire", calls) if decision]
        self._leases += leases
        return len(leases)

    def held_until(self) -> float:
        """Until when, by CLOCK_MONOTONIC, the store surely keeps the last lease."""
        hold = self._leases[-1]._hold
        return float(hold.asked_at + hold.ttl_seconds)

    def clock(self) -> float:
        return time.time()

    def lost(self) -> list[int]:
        """How many leases are, and how often that was told."""
        return [sum(lease.lost for lease in self._leases), self._told_lost]

    def renew(self) -> bool:
        return bool(self._caller.call(self._leases[-1], "renew"))

    def release(self, **amounts: int) -> None:
        self._caller.call(self._leases[-1], "release", **amounts)

    def leave(self) -> int:
        """All leases; how many."""
        leases, self._leases = self._leases, []
        for lease in leases:
            self._caller.call(lease, "commit")
        return len(leases)

    def lost_at_the_end(self) -> list[Any]:
        """Commit the last lease at once; whether it says then that it was lost, and how often that was told."""
        lease = self._leases.pop()
        self._caller.call(lease, "commit")
        return [lease.lost, self._told_lost]

    def reconcile(self) -> dict[str, int]:
        found: dict[str, int] = self._caller.call(self._caller.limiter, "reconcile").as_dict()
        return found


def main(url: str, namespace: str, kind: str) -> None:
    actor = Actor(Caller(url, namespace, kind))
    for line in sys.stdin:
        method, arguments = json.loads(line)
        try:
            answer = getattr(actor, method)(**arguments)
        except Exception as error:
            answer = repr(error)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
